//! What a rule reads and says: files of the repository, and Rust without a parser.
//!
//! `code_only` blanks comments and the insides of literals in place, byte for byte, after which searching for
//! words and counting braces is exact enough. Every blanked copy has the offsets of the original.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

#[derive(Debug)]
pub struct Breach {
    pub file: String,
    pub line: usize,
    pub rule: &'static str,
    pub instead: String,
}

/// One file, its Rust also with comments and literals blanked, and again with test modules blanked.
pub struct File {
    pub path: String,
    pub text: String,
    pub code: String,
    pub product: String,
}

pub struct Tree {
    /// Those that are text.
    pub files: Vec<File>,
    /// The paths of all.
    pub paths: Vec<String>,
}

impl File {
    pub fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { code_only(text) } else { String::new() };
        let product = if is_test(path) { String::new() } else { without(&code, &test_items(&code)) };
        Self { path: path.into(), text: text.into(), code, product }
    }

    pub fn breach(&self, at: usize, rule: &'static str, instead: impl Into<String>) -> Breach {
        Breach { file: self.path.clone(), line: line_of(&self.text, at), rule, instead: instead.into() }
    }

    /// Every place in code outside tests where a word stands, as breaches of one rule.
    pub fn product_breaches(&self, rule: &'static str, words: &[(&str, &str)]) -> Vec<Breach> {
        let at_each = |(word, instead): &(&str, &str)| -> Vec<Breach> {
            places(&self.product, word).map(|at| self.breach(at, rule, *instead)).collect()
        };
        words.iter().flat_map(at_each).collect()
    }

    /// The module of the crate that this file belongs to, if it is one of `src`.
    pub fn module(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        let name = inside.split('/').next()?;
        Some(name.strip_suffix(".rs").unwrap_or(name)).filter(|name| *name != "lib")
    }

    pub fn of_module(&self, modules: &str) -> bool {
        self.module().is_some_and(|module| modules.split(' ').any(|other| other == module))
    }
}

impl Tree {
    /// Every file that git tracks, if it is text.
    pub fn read(root: &Path) -> Self {
        let listing =
            Command::new("git").args(["-c", "safe.directory=*", "ls-files", "-z"]).current_dir(root).output();
        let listing = listing.expect("tidy asks git for the tracked files");
        assert!(listing.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listing.stderr));
        let names = String::from_utf8(listing.stdout).expect("file names are UTF-8");
        let text_of = |name: &str| Some(File::new(name, &fs::read_to_string(root.join(name)).ok()?));
        let paths: Vec<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
        let files = paths.iter().filter_map(|name| text_of(name)).collect();
        Self { files, paths: paths.into_iter().map(str::to_owned).collect() }
    }

    pub fn of(files: &[(&str, &str)]) -> Self {
        let paths = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        Self { files: files.iter().map(|(path, text)| File::new(path, text)).collect(), paths }
    }

    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    pub fn under<'a>(&'a self, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| file.path.starts_with(start) && file.path.ends_with(end))
    }
}

/// Tests and benches, and modules of `src` that hold only tests.
pub fn is_test(path: &str) -> bool {
    let product = path.starts_with("src/") || path == "build.rs";
    !product || path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// The same text with comments and the insides of literals as spaces: same bytes per line, same lines.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let after_name = at > 0 && is_name(bytes[at - 1]);
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => find(text, at, "\n").unwrap_or(bytes.len()),
            b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment_end(bytes, at),
            b'r' | b'b' | b'c' if !after_name => raw_string_end(text, at).unwrap_or(at),
            b'"' => quoted_end(bytes, at),
            b'\'' => char_end(text, at),
            _ => at,
        };
        blank(&mut out[at..end]);
        at = end.max(at + 1);
    }
    String::from_utf8(out).expect("whole literals were blanked")
}

pub fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn find(text: &str, from: usize, what: &str) -> Option<usize> {
    text.get(from..)?.find(what).map(|at| from + at)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// The end of `r"…"`, `r#"…"#`, `br…`, `cr…` that starts here, if one does.
fn raw_string_end(text: &str, start: usize) -> Option<usize> {
    let rest = text[start..].strip_prefix(['b', 'c']).unwrap_or(&text[start..]).strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    if !rest[hashes..].starts_with('"') {
        return None;
    }
    let open = text.len() - rest.len() + hashes + 1;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(find(text, open, &close).map_or(text.len(), |at| at + close.len()))
}

fn quoted_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != bytes[start] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    bytes.len().min(at + 1)
}

/// The end of a character literal; `start` itself if this is a lifetime.
fn char_end(text: &str, start: usize) -> usize {
    let mut chars = text[start + 1..].chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => quoted_end(text.as_bytes(), start),
        (Some(one), Some('\'')) => start + 1 + one.len_utf8() + 1,
        _ => start,
    }
}

/// Where the items under `#[cfg(test)]` stand in blanked code.
pub fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (start, mark) in code.match_indices("#[cfg(test)]") {
        if found.last().is_some_and(|item| item.contains(&start)) {
            continue;
        }
        let from = start + mark.len();
        found.push(
            start
                ..body_of(code, from).map_or_else(|| statement_end(code, from), |open| block_end(code, open)),
        );
    }
    found
}

fn statement_end(code: &str, from: usize) -> usize {
    find(code, from, ";").map_or(code.len(), |at| at + 1)
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

fn without(code: &str, items: &[Range<usize>]) -> String {
    let mut out = code.as_bytes().to_vec();
    items.iter().for_each(|item| blank(&mut out[item.clone()]));
    String::from_utf8(out).expect("whole items were blanked")
}

/// Where the body of the item at `start` opens; nothing if it ends without one.
pub fn body_of(code: &str, start: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// One past the brace that closes the one at `open`.
pub fn block_end(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Every place where `word` stands alone, not inside a longer name.
pub fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let (before, after) = (code[..*at].bytes().next_back(), code[at + word.len()..].bytes().next());
        let first_is_name = word.bytes().next().is_some_and(is_name);
        let last_is_name = word.bytes().next_back().is_some_and(is_name);
        let goes_on =
            first_is_name && before.is_some_and(is_name) || last_is_name && after.is_some_and(is_name);
        !goes_on
    })
}

pub fn name_at(code: &str, at: usize) -> &str {
    let rest = &code[at..];
    &rest[..rest.bytes().take_while(|b| is_name(*b)).count()]
}

/// The number of the line that holds byte `at`, from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1
}

#[test]
fn comments_and_literals_are_blanked_in_place() {
    let text = "a // x {\nb /* y /* z */ { */ c\n\"s { \\\" {\" r#\"t \" {\"# 'l' '{' '\\'' b'{' &'a d\n";
    let code = code_only(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(code.matches('\n').count(), 3);
    assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c", "b", "&'a", "d"]);
}

#[test]
fn test_items_are_found_whole() {
    let text = "fn a() {}\n#[cfg(test)]\nuse x::y;\n#[cfg(test)]\nfn n(z: [u8; 2]) { if z {} }\nfn b() {}\n";
    let file = File::new("src/a.rs", text);
    assert_eq!(file.product.split_whitespace().collect::<String>(), "fna(){}fnb(){}");
    assert_eq!(file.product.len(), text.len());
}

#[test]
fn a_word_is_found_only_where_it_stands_alone() {
    let found: Vec<usize> = places("fn fnord my_fn fn::fn", "fn").collect();
    assert_eq!(found, [0, 15, 19]);
}
