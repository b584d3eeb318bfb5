//! The files of the console, compiled in.
//!
//! A browser asks for each file at each visit and, while it has the current one, gets no more than `304`: there are
//! few, and after an upgrade none is outdated. The policy that comes with them lets a page load and contact its own
//! origin only, and run no code but these files: text of a stream that were taken for HTML could do nothing.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use xxhash_rust::xxh3::xxh3_64;

use super::super::error::ApiError;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Lists the files by their paths below `console/`.
macro_rules! files {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/console/", $path)))),+]
    };
}

const FILES: &[(&str, &[u8])] = files![
    "index.html",
    "console.css",
    "icon.svg",
    "js/api.js",
    "js/colors.js",
    "js/drawing.js",
    "js/events.js",
    "js/format.js",
    "js/history.js",
    "js/html.js",
    "js/kept.js",
    "js/key.js",
    "js/latest.js",
    "js/live.js",
    "js/load.js",
    "js/main.js",
    "js/map.js",
    "js/neighborhood.js",
    "js/node.js",
    "js/operations.js",
    "js/overview.js",
    "js/parts.js",
    "js/plot.js",
    "js/root.js",
    "vendor/htm.LICENSE",
    "vendor/htm.js",
    "vendor/hooks.js",
    "vendor/preact.LICENSE",
    "vendor/preact.js",
    "vendor/uplot.LICENSE",
    "vendor/uplot.js",
];

struct File {
    content: Cow<'static, [u8]>,
    kind: &'static str,
    tag: HeaderValue,
}

static BY_PATH: LazyLock<HashMap<&'static str, File>> = LazyLock::new(|| {
    let file = |&(path, content): &(&'static str, &'static [u8])| {
        let content =
            if path.starts_with("js/") { without_comments(content) } else { Cow::Borrowed(content) };
        // Hexadecimal digits in quotes are always a header.
        let tag = HeaderValue::try_from(format!("\"{:016x}\"", xxh3_64(&content))).ok()?;
        Some((path, File { content, kind: kind_of(path), tag }))
    };
    FILES.iter().filter_map(file).collect()
});

/// A script without its comments and indentation, which are for those who change it: empty lines stand for comments, so
/// that an error names the line of the source. Comments have lines of their own there.
fn without_comments(script: &'static [u8]) -> Cow<'static, [u8]> {
    let Ok(script) = std::str::from_utf8(script) else { return Cow::Borrowed(script) };
    let (mut kept, mut in_block) = (String::with_capacity(script.len()), false);
    for line in script.lines() {
        let text = line.trim();
        in_block |= text.starts_with("/*");
        if !in_block && !text.starts_with("//") {
            kept.push_str(text);
        }
        kept.push('\n');
        in_block &= !text.ends_with("*/");
    }
    Cow::Owned(kept.into_bytes())
}

fn kind_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

/// `/ui/`
pub(super) async fn index(headers: HeaderMap) -> Result<Response, ApiError> {
    named("index.html", &headers)
}

/// `/ui/{*path}`
pub(super) async fn file(
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    // What is no text is no name of a file.
    let Path(path) = path.map_err(|_| ApiError::UnknownRoute { path: uri.path().to_owned() })?;
    named(&path, &headers)
}

fn named(path: &str, headers: &HeaderMap) -> Result<Response, ApiError> {
    let file = BY_PATH.get(path).ok_or_else(|| ApiError::UnknownRoute { path: format!("/ui/{path}") })?;
    let mut tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = tags.any(|sent| sent.split(',').any(|tag| file.is_named_by(tag.trim())));
    let caching = [(ETAG, file.tag.clone()), (CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, caching).into_response());
    }
    let about = [
        (CONTENT_TYPE, HeaderValue::from_static(file.kind)),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    Ok((caching, about, file.content.clone()).into_response())
}

impl File {
    /// Whether an item of `If-None-Match` is about this content.
    fn is_named_by(&self, tag: &str) -> bool {
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == self.tag.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The files of the console are small enough to come over a slow line, and few enough to be read.
    const BYTES_MAX: usize = 150_000;

    fn on_disk(folder: &Path, below: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = format!("{below}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                on_disk(&entry.path(), &format!("{name}/"), found);
            } else {
                found.insert(name);
            }
        }
    }

    #[test]
    fn every_file_of_the_console_is_compiled_in() {
        let mut found = BTreeSet::new();
        on_disk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("console"), "", &mut found);
        // What is no file of the page itself.
        found.remove("vendor/SHA256SUMS");
        let listed: BTreeSet<String> = FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
        assert_eq!(listed, found);
        let served = BY_PATH.iter().filter(|(path, _)| !path.ends_with(".LICENSE"));
        let bytes: usize = served.map(|(_, file)| file.content.len()).sum();
        assert!(bytes <= BYTES_MAX, "the console has {bytes} bytes, at most {BYTES_MAX}");
    }

    #[test]
    fn scripts_are_served_without_comments_at_the_lines_that_they_have() {
        let script =
            b"// why\n/** What\n * it takes */\n  export const a = 1;\n\n  // more\nlet b = `//`; // kept\n\
            /* one */\nb;\n";
        let served = without_comments(script);
        let expected = "\n\n\nexport const a = 1;\n\n\nlet b = `//`; // kept\n\nb;\n";
        assert_eq!(std::str::from_utf8(&served).unwrap(), expected);
    }

    #[test]
    fn a_tag_is_recognized_weak_or_strong_and_no_other_is() {
        let file = &BY_PATH["index.html"];
        let tag = file.tag.to_str().unwrap();
        assert!(file.is_named_by(tag) && file.is_named_by(&format!("W/{tag}")) && file.is_named_by("*"));
        assert!(!file.is_named_by("\"0\"") && !file.is_named_by(tag.trim_matches('"')));
    }
}
