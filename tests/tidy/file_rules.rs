//! Rules that look at one file at a time.

use crate::source::{
    Breach, File, block_end, body_of, is_name, is_test, line_of, name_at, places, test_items,
};
use crate::{
    FILE_LINES_MAX, FILES, FLOORS, FUNCTION_LINES_MAX, LINE_CHARS_MAX, PLAIN, SERDE, TERMS, TERMS_IN,
    TEST_FILE_LINES_MAX, WALLS, WORDS,
};
use std::ops::Range;

type Rule = fn(&File) -> Vec<Breach>;

/// All breaches of one file.
pub fn check(file: &File) -> Vec<Breach> {
    let any: [Rule; 3] = [words, terms, machine_paths];
    let rust: [Rule; 11] = [
        module_doc,
        file_length,
        function_length,
        unsafe_code,
        imports,
        plain_floors,
        serde,
        module_names,
        leftovers,
        printing,
        line_length,
    ];
    let is_rust = file.path.ends_with(".rs");
    any.iter().chain(rust.iter().filter(|_| is_rust)).flat_map(|rule| rule(file)).collect()
}

fn module_doc(file: &File) -> Vec<Breach> {
    let instead = "open the file with `//!`: what it is, what it holds, what it refuses to know";
    let missing = !file.text.starts_with("//!");
    missing.then(|| file.breach(0, "module-doc", instead)).into_iter().collect()
}

fn file_length(file: &File) -> Vec<Breach> {
    let all = file.text.lines().count();
    let in_item = |item: &Range<usize>| line_of(&file.code, item.end) - line_of(&file.code, item.start) + 1;
    let (lines, most) = if is_test(&file.path) {
        (all, TEST_FILE_LINES_MAX)
    } else {
        (all - test_items(&file.code).iter().map(in_item).sum::<usize>().min(all), FILE_LINES_MAX)
    };
    let instead =
        format!("{lines} lines without tests, at most {most}: give one of its ideas a file of its own");
    (lines > most).then(|| file.breach(0, "file-length", instead)).into_iter().collect()
}

fn function_length(file: &File) -> Vec<Breach> {
    let code = &file.product;
    let mut found = Vec::new();
    for at in places(code, "fn") {
        let name = name_at(code[at + 2..].trim_start(), 0);
        let Some(open) = body_of(code, at).filter(|_| !name.is_empty()) else { continue };
        let lines = line_of(code, block_end(code, open)) - line_of(code, at) + 1;
        if lines > FUNCTION_LINES_MAX {
            let most = format!("`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}");
            let instead = format!("{most}: keep the decisions here, move the work to leaves");
            found.push(file.breach(at, "function-length", instead));
        }
    }
    found
}

fn unsafe_code(file: &File) -> Vec<Breach> {
    let inside = file.path.starts_with("src/device/");
    let lines: Vec<&str> = file.text.lines().collect();
    let explained = |at: usize| {
        let line = line_of(&file.text, at);
        let near = &lines[line.saturating_sub(9)..line];
        near.iter().any(|text| text.contains("SAFETY:") || text.contains("# Safety"))
    };
    let mut found = Vec::new();
    for at in places(&file.code, "unsafe") {
        if !inside {
            found.push(file.breach(
                at,
                "unsafe",
                "only src/device may be unsafe: give it a safe function and call that",
            ));
        } else if !explained(at) {
            found.push(file.breach(at, "unsafe", "say above it why this is sound: `// SAFETY: …`"));
        }
    }
    found
}

fn imports(file: &File) -> Vec<Breach> {
    let Some(from) = file.module() else { return Vec::new() };
    let mut found = Vec::new();
    for (at, to) in crate_paths(file) {
        if let Some(reason) = refused(from, to) {
            found.push(file.breach(at, "imports", format!("`{from}` must not know `{to}`: {reason}")));
        }
    }
    found
}

/// Why `from` may not import `to`; nothing if it may.
fn refused(from: &str, to: &str) -> Option<&'static str> {
    let floors: Vec<Vec<&str>> = FLOORS.lines().map(|l| l.split_whitespace().skip(1).collect()).collect();
    let floor_of = |name: &str| floors.iter().position(|floor| floor.contains(&name));
    let (roof, beside) = (floor_of("daemon"), floor_of("metrics"));
    let (Some(high), Some(low)) = (floor_of(from), floor_of(to)) else {
        return (from != "main" && floor_of(from).is_none())
            .then_some("the module has no floor: add it to FLOORS");
    };
    let among = |list: &str, name: &str| list.split(' ').any(|other| other == name);
    let wall = WALLS.iter().find(|(above, below, _)| among(above, from) && among(below, to));
    if let Some((_, _, reason)) = wall {
        return Some(reason);
    }
    if from == to || Some(low) == beside || (Some(high) == roof && Some(low) == roof) {
        return None;
    }
    (high >= low || Some(high) == beside)
        .then_some("imports go down only; move what both need to a lower floor")
}

/// Place and top-level module of every path into the crate: `crate::x`, `evergraph::x`, `super::…::x`, groups too.
fn crate_paths(file: &File) -> Vec<(usize, &str)> {
    let code = &file.product;
    let mut starts: Vec<usize> = places(code, "crate::").map(|at| at + 7).collect();
    starts.extend(places(code, "evergraph::").map(|at| at + 11));
    let climb = "super::".repeat(depth(&file.path));
    let whole =
        |at: &usize| !code[..*at].ends_with("super::") && !code[at + climb.len()..].starts_with("super::");
    starts.extend(places(code, &climb).filter(whole).map(|at| at + climb.len()));
    starts.into_iter().flat_map(|at| heads(code, at)).collect()
}

/// How many `super::` lead from this file to the crate.
fn depth(path: &str) -> usize {
    let inner = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    inner.split('/').count()
}

/// The first names of the path, or of the `{…}` group of paths, at `at`, with their places.
fn heads(code: &str, at: usize) -> Vec<(usize, &str)> {
    if !code[at..].starts_with('{') {
        return vec![(at, name_at(code, at))];
    }
    let mut found = Vec::new();
    let (mut depth, mut fresh) = (0, false);
    for (i, byte) in code.bytes().enumerate().take(block_end(code, at)).skip(at) {
        match byte {
            b'{' => (depth, fresh) = (depth + 1, depth == 0),
            b'}' => depth -= 1,
            b',' => fresh = depth == 1,
            _ if fresh && is_name(byte) => {
                found.push((i, name_at(code, i)));
                fresh = false;
            }
            _ => {}
        }
    }
    found
}

fn plain_floors(file: &File) -> Vec<Breach> {
    if !file.of_module(PLAIN) {
        return Vec::new();
    }
    let mut banned = vec![
        ("async", "floors 0 to 6 are plain functions; the caller at the edge decides where they run"),
        ("tokio", "floors 0 to 6 are plain functions; the caller at the edge decides where they run"),
        ("std::env", "configuration is read once, in config, and handed down as Options"),
        ("std::net", "floors 0 to 6 do no I/O; hand the bytes in"),
    ];
    if !FILES.iter().any(|folder| file.path.starts_with(folder)) {
        let instead = "floors 0 to 6 do no I/O except log and device::disk; take `impl Read` or `impl Write`";
        banned.extend(["std::fs", "File::open"].map(|name| (name, instead)));
    }
    file.product_breaches("plain-floors", &banned)
}

fn serde(file: &File) -> Vec<Breach> {
    if SERDE.iter().any(|path| file.path.starts_with(path)) {
        return Vec::new();
    }
    let instead = "inner types have no wire form: write a type for it at the edge and convert by hand";
    file.product_breaches("serde", &[("serde", instead), ("serde_json", instead)])
}

fn module_names(file: &File) -> Vec<Breach> {
    let instead = "name the module after what it holds; a drawer for everything grows for ever";
    let banned = ["utils", "util", "helpers", "helper", "common", "misc"];
    let mut names = file.path.trim_end_matches(".rs").split('/');
    let mut found: Vec<Breach> = names
        .find(|name| banned.contains(name))
        .map(|_| file.breach(0, "module-name", instead))
        .into_iter()
        .collect();
    for at in places(&file.code, "mod") {
        let name = file.code[at + 3..].trim_start();
        if banned.contains(&name_at(name, 0)) {
            found.push(file.breach(at, "module-name", instead));
        }
    }
    found
}

fn leftovers(file: &File) -> Vec<Breach> {
    let banned = [
        ("todo!", "write it; a stub is not a part"),
        ("unimplemented!", "write it; a stub is not a part"),
        ("dbg!", "use tracing, or take it out"),
    ];
    let at_each = |(word, instead): &(&'static str, &'static str)| -> Vec<Breach> {
        places(&file.code, word).map(|at| file.breach(at, "leftover", *instead)).collect()
    };
    banned.iter().flat_map(at_each).collect()
}

fn words(file: &File) -> Vec<Breach> {
    let ours = [".rs", ".md", ".toml", ".sql", ".cu", ".cuh", ".yml", ".yaml"];
    if !ours.iter().any(|end| file.path.ends_with(end)) {
        return Vec::new();
    }
    let at_each = |(word, instead): &(&'static str, &'static str)| -> Vec<Breach> {
        places(&file.text, word).map(|at| file.breach(at, "word", *instead)).collect()
    };
    WORDS.iter().flat_map(at_each).collect()
}

/// Terms of the field, and not words of our own: [`TERMS`].
fn terms(file: &File) -> Vec<Breach> {
    if !TERMS_IN.iter().any(|place| file.path.starts_with(place)) || file.path.ends_with(".svg") {
        return Vec::new();
    }
    let text = file.text.to_ascii_lowercase();
    let at_each = |(word, instead): &(&'static str, &'static str)| -> Vec<Breach> {
        let found: Vec<usize> = places(&text, &word.to_ascii_lowercase()).collect();
        found.into_iter().map(|at| file.breach(at, "term", format!("`{word}`: write {instead}"))).collect()
    };
    TERMS.iter().flat_map(at_each).collect()
}

fn printing(file: &File) -> Vec<Breach> {
    if file.path.starts_with("src/cli") || file.path == "src/main.rs" {
        return Vec::new();
    }
    let instead = "the library does not own the terminal: use tracing, or return it for cli to print";
    let macros = ["println!", "print!", "eprintln!", "eprint!"].map(|name| (name, instead));
    file.product_breaches("printing", &macros)
}

fn line_length(file: &File) -> Vec<Breach> {
    if !file.path.starts_with("src/") {
        return Vec::new();
    }
    let long = file.text.lines().enumerate().filter(|(_, text)| text.chars().count() > LINE_CHARS_MAX);
    let instead = format!("at most {LINE_CHARS_MAX} characters: break the line");
    let breach = |(i, _)| Breach {
        file: file.path.clone(),
        line: i + 1,
        rule: "line-length",
        instead: instead.clone(),
    };
    long.map(breach).collect()
}

fn machine_paths(file: &File) -> Vec<Breach> {
    let instead = "a path of one machine: use a relative path, a setting or a temporary folder";
    let starts_path =
        |at: &usize| !file.text[..*at].ends_with(|c: char| c.is_alphanumeric() || "-_./*}".contains(c));
    let folders = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let places = folders.iter().flat_map(|folder| file.text.match_indices(folder)).map(|(at, _)| at);
    places.filter(starts_path).map(|at| file.breach(at, "machine-path", instead)).collect()
}

/// Asserts that checking `text` as the file `path` breaks exactly these (line, rule).
#[cfg(test)]
fn check_text(path: &str, text: &str, expected: &[(usize, &str)]) {
    let found = check(&File::new(path, text));
    let mut found: Vec<(usize, &str)> = found.iter().map(|breach| (breach.line, breach.rule)).collect();
    found.sort_unstable();
    assert_eq!(found, expected, "{path}:\n{text}");
}

#[test]
fn a_good_file_passes() {
    let good = "//! Doc.\nuse crate::event::EdgeId;\n/// Doc.\npub fn a() {}\n#[cfg(test)]\nmod tests { use crate::api; }\n";
    check_text("src/graph/view.rs", good, &[]);
    check_text("tests/it/main.rs", "//! Doc.\nuse evergraph::api;\nfn a() { println!(\"async\"); }\n", &[]);
}

#[test]
fn the_terms_of_the_field_are_used() {
    let line = concat!("//! Rows on the ca", "rd.\n");
    check_text("src/graph/view.rs", line, &[(1, "term")]);
    check_text("src/graph/view.rs", "//! Discarded.\n", &[]);
    check_text("docs/operate.md", concat!("A\nThe log has To", "ld so.\n"), &[(2, "term")]);
    check_text("dashboards/a.json", concat!("\"as deli", "vered\""), &[(1, "term")]);
    check_text("tests/it/a.rs", line, &[]);
}

#[test]
fn a_file_says_what_it_is() {
    check_text("src/event/id.rs", "use std::fmt;\n", &[(1, "module-doc")]);
}

#[test]
fn files_and_functions_and_lines_are_short() {
    let long = |lines: usize| format!("//! Doc.\n{}", "const A: u8 = 1;\n".repeat(lines - 1));
    check_text("src/event/id.rs", &long(400), &[]);
    check_text("src/event/id.rs", &long(401), &[(1, "file-length")]);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// more\n".repeat(300));
    check_text("src/event/id.rs", &format!("{}{tests}", long(399)), &[]);
    check_text("tests/it/a.rs", &long(800), &[]);
    check_text("tests/it/a.rs", &long(801), &[(1, "file-length")]);

    let function =
        |lines: usize| format!("//! Doc.\nfn a<T>(b: [u8; 2]) -> T {{\n{}}}\n", "    b;\n".repeat(lines - 2));
    check_text("src/event/id.rs", &function(70), &[]);
    check_text("src/event/id.rs", &function(71), &[(2, "function-length")]);
    check_text("tests/it/a.rs", &function(71), &[]);

    check_text("src/event/id.rs", &format!("//! {}\n", "x".repeat(116)), &[]);
    check_text("src/event/id.rs", &format!("//! Doc.\n// {}\n", "x".repeat(118)), &[(2, "line-length")]);
}

#[test]
fn unsafe_code_is_fenced_and_explained() {
    check_text("src/graph/view.rs", "//! Doc: unsafe.\nfn a() { unsafe { b() } }\n", &[(2, "unsafe")]);
    check_text("src/device/cuda.rs", "//! Doc.\nfn a() { unsafe { b() } }\n", &[(2, "unsafe")]);
    check_text("src/device/cuda.rs", "//! Doc.\n// SAFETY: b is sound.\nfn a() { unsafe { b() } }\n", &[]);
}

#[test]
fn imports_go_down_only() {
    let uses = |path: &str, line: &str, broken: bool| {
        let expected: &[(usize, &str)] = if broken { &[(2, "imports")] } else { &[] };
        check_text(path, &format!("//! Doc.\n{line}\n"), expected);
    };
    uses("src/graph/view.rs", "use crate::device::rng;", false);
    uses("src/graph/view.rs", "use crate::graph::Block;", false);
    uses("src/graph/view.rs", "use crate::metrics::Metrics;", true);
    uses("src/appender/mod.rs", "use crate::metrics::Metrics;", false);
    uses("src/graph/view.rs", "use crate::feature::FeatureStore;", true);
    uses("src/graph/view.rs", "use crate::{event::{EdgeId, graph}, sampler::Seeds};", true);
    uses("src/graph/view.rs", "fn a(x: crate::sampler::Seeds) {}", true);
    uses("src/graph/view.rs", "use super::super::sampler::Seeds;", true);
    uses("src/graph/view.rs", "use super::sampler::Seeds;", false);
    uses("src/graph/mod.rs", "use super::sampler::Seeds;", true);
    uses("src/nn/gru.rs", "use crate::event::EventTime;", true);
    uses("src/model/tgn.rs", "use crate::sampler::MessageFlowGraph;", false);
    uses("src/model/tgn.rs", "use crate::graph::GraphView;", true);
    uses("src/train/step.rs", "use crate::graph::GraphView;", false);
    uses("src/api/mod.rs", "use crate::serving::QueryEngine;", false);
    uses("src/api/mod.rs", "use crate::ingest::Source;", true);
    uses("src/api/mod.rs", "use crate::train::Trainer;", true);
    uses("src/ingest/kafka.rs", "use crate::appender::Appender;", true);
    uses("src/learner/mod.rs", "use crate::appender::Appender;", true);
    uses("src/metrics.rs", "use crate::event::EdgeId;", true);
    uses("src/cli/mod.rs", "use crate::{config, daemon, train};", false);
    uses("src/main.rs", "use evergraph::cli;", false);
    uses("src/newcomer.rs", "use crate::event::EdgeId;", true);
}

#[test]
fn low_floors_are_plain() {
    check_text("src/train/step.rs", "//! Doc: async.\nasync fn a() {}\n", &[(2, "plain-floors")]);
    check_text("src/graph/view.rs", "//! Doc.\nuse std::fs;\n", &[(2, "plain-floors")]);
    check_text("src/sampler/mod.rs", "//! Doc.\nfn a() { std::env::var(\"A\"); }\n", &[(2, "plain-floors")]);
    check_text("src/device/simd.rs", "//! Doc.\nuse std::fs;\n", &[(2, "plain-floors")]);
    check_text("src/log/segment.rs", "//! Doc.\nuse std::fs::File;\n", &[]);
    check_text("src/device/disk/file.rs", "//! Doc.\nuse std::fs::File;\n", &[]);
    check_text("src/api/mod.rs", "//! Doc.\nasync fn a() {}\n", &[]);
}

#[test]
fn wire_forms_stay_at_the_edge() {
    check_text("src/event/id.rs", "//! Doc.\nuse serde::Serialize;\n", &[(2, "serde")]);
    check_text("src/graph/view.rs", "//! Doc.\nfn a() { serde_json::to_string(); }\n", &[(2, "serde")]);
    check_text("src/api/wire.rs", "//! Doc.\nuse serde::Serialize;\n", &[]);
}

#[test]
fn no_drawers_no_leftovers_no_printing() {
    check_text("src/graph/utils.rs", "//! Doc.\n", &[(1, "module-name")]);
    check_text("src/graph/mod.rs", "//! Doc.\nmod helpers;\n", &[(2, "module-name")]);
    check_text("src/graph/mod.rs", "//! Doc: todo!\nfn a() { todo!() }\n", &[(2, "leftover")]);
    check_text("src/graph/mod.rs", "//! Doc.\nfn a() { unimplemented!() }\n", &[(2, "leftover")]);
    check_text("tests/it/a.rs", "//! Doc.\nfn a() { dbg!(1); }\n", &[(2, "leftover")]);
    check_text("src/daemon.rs", "//! Doc.\nfn a() { println!(\"x\"); }\n", &[(2, "printing")]);
    check_text("src/daemon.rs", "//! Doc.\nfn a() { eprintln!(\"x\"); }\n", &[(2, "printing")]);
    check_text("src/cli/status.rs", "//! Doc.\nfn a() { println!(\"x\"); }\n", &[]);
}

#[test]
fn texts_hold_no_notes_to_self_and_no_machine() {
    for (word, _) in WORDS {
        check_text("docs/a.md", &format!("# A\n\n{word}: b\n"), &[(3, "word")]);
    }
    check_text("deploy/a.sh", concat!("cd /wo", "rk/evergraph\n"), &[(1, "machine-path")]);
    check_text("docs/a.md", concat!("See `/ro", "ot/x`.\n"), &[(1, "machine-path")]);
    check_text("docs/a.md", concat!("See a/wo", "rk/x.\n"), &[]);
}
