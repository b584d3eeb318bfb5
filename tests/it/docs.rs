//! The pages for people against the tree: every link leads somewhere, the front page is short, the commands that the
//! pages show run, and those that cannot run here have flags that exist. Commands of `docs/operate.md` are run by
//! `operate.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::operate::{blocks, to_run};
use crate::process::Start;

const README: &str = "README.md";
const README_BYTES_MAX: usize = 8_000;

/// How long the event file is that pages call `events.csv.gz`.
const EVENTS: usize = 900;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// All pages, as paths from the root and their texts.
fn pages() -> BTreeMap<String, String> {
    let mut found: Vec<PathBuf> =
        [README, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].iter().map(PathBuf::from).collect();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension() == Some("md".as_ref()) {
                found.push(path);
            }
        }
    }
    let name = |path: PathBuf| path.to_str().unwrap().to_owned();
    found.into_iter().map(name).map(|name| (name.clone(), read(&name))).collect()
}

/// The lines of a page outside of fenced blocks, numbered from 1.
fn prose(page: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            found.push((index + 1, line));
        }
    }
    found
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// What a page links to, with the line: targets of links and images, of Markdown and of HTML.
fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(page) {
        let line = without_code(line);
        for (open, close) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"'), ("href=\"", '"')] {
            for (at, _) in line.match_indices(open) {
                let target = line[at + open.len()..].split(close).next().unwrap_or_default();
                found.push((number, target.split_whitespace().next().unwrap_or_default().to_owned()));
            }
        }
    }
    found
}

/// The anchors of a page: its headings in lower case, spaces as hyphens, without punctuation; numbered where they
/// repeat.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let headings = prose(page).into_iter().filter(|(_, line)| line.starts_with('#'));
    let anchor = |(_, line): (usize, &str)| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let times = seen.entry(slug.clone()).or_default();
        *times += 1;
        if *times == 1 { slug } else { format!("{slug}-{}", *times - 1) }
    };
    headings.map(anchor).collect()
}

/// Links that lead nowhere, each as `page:line: target`. `exists` is asked about paths from the root.
fn broken(pages: &BTreeMap<String, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in pages {
        for (line, target) in links(text) {
            if ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = if path.is_empty() { PathBuf::from(name) } else { resolved(name, path) };
            let page = pages.get(to.to_str().unwrap());
            let leads =
                exists(&to) && (anchor.is_empty() || page.is_some_and(|to| anchors(to).contains(anchor)));
            if !leads {
                found.push(format!("{name}:{line}: {target}"));
            }
        }
    }
    found
}

/// A path that stands on a page, from the root.
fn resolved(page: &str, path: &str) -> PathBuf {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.iter().collect()
}

#[test]
fn every_link_and_anchor_leads_somewhere() {
    let pages = pages();
    assert!(pages.len() > 30, "{:?}", pages.keys());
    let broken = broken(&pages, |path| root().join(path).exists());
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let a = "# A page\n[ok](docs/b.md#one-two-1) [ok](#a-page) [ok](https://x.y/z) `[no](link)`\n[x](docs/c.md)\n\
             ```sh\n[no](link)\n```\n<img src=\"docs/d.svg\"> [x](docs/b.md#three) [x](#b)\n";
    let b = "# One, `two`\n## One two\n[ok](../a.md) [x](a.md)\n";
    let pages = BTreeMap::from([("a.md", a), ("docs/b.md", b)].map(|(k, v)| (k.to_owned(), v.to_owned())));
    let found = broken(&pages, |path| ["a.md", "docs/b.md"].iter().any(|known| path == Path::new(known)));
    let expected = [
        "a.md:3: docs/c.md",
        "a.md:7: docs/b.md#three",
        "a.md:7: #b",
        "a.md:7: docs/d.svg",
        "docs/b.md:3: a.md",
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_front_page_is_short() {
    let bytes = read(README).len();
    assert!(
        bytes <= README_BYTES_MAX,
        "{README} has {bytes} bytes, at most {README_BYTES_MAX}: move text to docs"
    );
}

/// An image without its colors.
fn colorless(image: &str) -> String {
    let mut parts = image.split("=\"#");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "=\"" + part.split_once('"').map_or(part, |(_, rest)| rest))
}

#[test]
fn the_picture_is_the_same_on_light_and_dark_pages() {
    let [light, dark] = ["light", "dark"].map(|name| read(&format!("docs/images/data-flow-{name}.svg")));
    assert!(light != dark && light.contains("Promotion gate"));
    assert_eq!(colorless(&light), colorless(&dark), "the variants differ in more than colors");
}

#[test]
fn the_glossary_is_in_order() {
    let page = read("docs/glossary.md");
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(2);
    let terms: Vec<String> =
        rows.map(|row| row[2..].split('|').next().unwrap().replace('`', "").to_lowercase()).collect();
    assert!(terms.len() >= 40, "{terms:?}");
    for pair in terms.windows(2) {
        assert!(pair[0] < pair[1], "`{}` comes before `{}`", pair[1], pair[0]);
    }
}

#[test]
fn the_figures_of_the_front_page_are_on_the_pages_that_it_names() {
    let page = read(README);
    let (_, section) = page.split_once("\n## Benchmarks\n").unwrap();
    let mut count = 0;
    for row in section.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let source = cells[5].split_once("](").unwrap().1.trim_end_matches(')');
        let text = read(source);
        let words = cells[2..4].iter().flat_map(|cell| cell.split_whitespace());
        for figure in words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            count += 1;
            let has = |word: &str| word.trim_matches('*') == figure;
            assert!(
                text.split_whitespace().any(has),
                "{source} does not have the figure {figure} of {README}"
            );
        }
    }
    assert!(count >= 12, "{count} figures");
}

/// A folder to run a page's commands in: the program is on the path, and there is an event file.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(desk.path("bin")).unwrap();
        fs::create_dir_all(desk.path("here")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_evergraph"), desk.path("bin/evergraph")).unwrap();
        std::os::unix::fs::symlink(
            env!("CARGO_BIN_EXE_evergraph-research"),
            desk.path("bin/evergraph-research"),
        )
        .unwrap();
        let mut file =
            GzEncoder::new(fs::File::create(desk.path("here/events.csv.gz")).unwrap(), Compression::fast());
        writeln!(file, "src,dst,ts").unwrap();
        for i in 0..EVENTS {
            writeln!(file, "{},{},{}", i % 31, 100 + i * 7 % 23 + i / 300, i * 10).unwrap();
        }
        file.finish().unwrap();
        desk
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.0.path().join(inside)
    }

    /// Runs the blocks of a page that can run, with one address in place of another, and returns standard output.
    fn run(&self, page: &str, (from, to): (&str, &str)) -> String {
        let text = read(page);
        let blocks = to_run(page, &text);
        assert!(!blocks.is_empty(), "{page}: no block runs");
        let mut script = "set -euo pipefail\n".to_owned();
        for block in &blocks {
            script += &format!("echo '== {page}:{}' >&2\n{}\n", block.line, block.text.replace(from, to));
        }
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(self.path("here")).env("PATH", path);
        let output = command.output().unwrap();
        let [printed, logged] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{logged}\n-- standard output:\n{printed}");
        printed
    }
}

/// The first block of a page that begins with this fence.
fn block_of(page: &str, fence: &str) -> String {
    let lines = page.lines().skip_while(|line| *line != fence).skip(1);
    lines.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect()
}

/// What a JSON value looks like, without its values.
fn shape(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key}:{}", shape(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(shape).collect::<Vec<_>>().join(",")),
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
    }
}

#[test]
fn the_request_of_the_front_page_has_the_response_that_it_shows() {
    let desk = Desk::new();
    let (demo, lines) = crate::demo::start(&desk.path("data"));
    let url = lines.iter().flat_map(|line| line.split_whitespace()).find(|word| word.starts_with("http://"));
    // The first address is that of the console.
    let address = url.unwrap().trim_start_matches("http://").trim_end_matches("/ui/").to_owned();
    let printed = desk.run(README, ("localhost:8080", &address));
    let shown: Value = serde_json::from_str(&block_of(&read(README), "```json")).unwrap();
    let mut found: Value = serde_json::from_str(&printed).unwrap();
    // It is null until there are enough events to compare with.
    let percentile = &mut found["scores"][0]["percentile"];
    if percentile.is_null() {
        *percentile = shown["scores"][0]["percentile"].clone();
    }
    assert_eq!(shape(&found), shape(&shown), "{found:#}");
    drop(demo);
}

#[test]
fn the_commands_of_the_pages_on_models_and_benchmarks_work() {
    let desk = Desk::new();
    let printed = desk.run("docs/models.md", ("", ""));
    assert!(
        printed.contains("\"test_average_precision\"") && printed.contains("\"mean_average_precision\""),
        "{printed}"
    );
    assert!(fs::read_to_string(desk.path("here/curve.svg")).unwrap().contains("polyline"));
    desk.run("docs/benchmarks/README.md", ("", ""));
    assert!(fs::metadata(desk.path("here/cache.json")).unwrap().len() > 0);
}

#[test]
fn the_commands_of_the_page_on_serving_work() {
    let desk = Desk::new();
    let daemon = Start::in_dir(&desk.path("here/evergraph-data")).ready();
    let url = daemon.url("");
    let printed = desk.run("docs/serving.md", ("http://127.0.0.1:8080", &url));
    assert!(printed.contains("\"end_position\":2") && printed.contains("\"score\""), "{printed}");
    daemon.kill();
}

/// An `evergraph` command that a page shows: its first words, and its flags.
#[derive(Debug, PartialEq)]
struct Shown {
    words: Vec<String>,
    flags: Vec<String>,
}

/// The `evergraph` commands of a line of shell.
fn commands(line: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    // Whether the next word can be a command, and whether the words belong to one of ours.
    let (mut start, mut ours) = (true, false);
    for word in line.split_whitespace() {
        if word.starts_with('#') {
            break;
        }
        if start && (word == "evergraph" || word.ends_with("/evergraph") || word.ends_with("/evergraph.new"))
        {
            found.push(Shown { words: Vec::new(), flags: Vec::new() });
            (start, ours) = (false, true);
        } else if ["|", "||", "&&", ";", "&", "then", "do", ">", ">>"].contains(&word) {
            (start, ours) = (true, false);
        } else if !ours {
            start = start && (word == "sudo" || word.contains('=') || word.starts_with("$("))
                || word.contains("$(sudo");
        } else if let Some(shown) = found.last_mut() {
            let word = word.trim_matches(|c: char| "();\"'".contains(c));
            if let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) {
                shown.flags.push(format!("--{}", flag.split('=').next().unwrap_or_default()));
            } else if shown.flags.is_empty() && !word.starts_with('-') {
                shown.words.push(word.to_owned());
            }
        }
    }
    found
}

/// All `evergraph` commands of a page, in blocks of shell and in code spans, with where they stand.
fn shown(page: &str) -> Vec<(usize, Shown)> {
    let mut found = Vec::new();
    for block in blocks(page) {
        for line in block.text.replace("\\\n", " ").lines() {
            found.extend(commands(line).into_iter().map(|command| (block.line, command)));
        }
    }
    let lines = prose(page);
    let text: String = lines.iter().map(|(_, line)| format!("{line}\n")).collect();
    let mut line = 0;
    for (index, span) in text.split('`').enumerate() {
        let number = lines.get(line).map_or(0, |(number, _)| *number);
        line += span.matches('\n').count();
        let span = span.replace('\n', " ");
        if index % 2 == 1 && span.starts_with("evergraph ") && !span.contains('…') {
            found.extend(commands(&span).into_iter().map(|command| (number, command)));
        }
    }
    found
}

/// What is wrong with a command, if anything: it is not one, or has no such flag.
fn refused(command: &Shown) -> Option<String> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_evergraph")).args(&command.words).arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    let unknown =
        |flag: &&String| !help.split(|c: char| !(c == '-' || c.is_alphanumeric())).any(|word| word == **flag);
    let flag = command.flags.iter().find(unknown);
    if !output.status.success() || help.contains("Commands:") && !command.words.is_empty() && flag.is_some() {
        return Some(format!("evergraph {}: no such command", command.words.join(" ")));
    }
    let flag = flag?;
    Some(format!("evergraph {}: no flag {flag}", command.words.join(" ")))
}

#[test]
fn commands_that_pages_show_are_commands_with_these_flags() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (name, text) in &pages() {
        for (line, command) in shown(text) {
            count += 1;
            wrong.extend(refused(&command).map(|reason| format!("{name}:{line}: {reason}")));
        }
    }
    assert!(count > 60, "{count} commands");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let page = "`evergraph evaluate --json -` and `evergraph\nstatus --readi`\n\
                ```sh\nA=1 sudo x/evergraph bench ops \\\n    --fast --list | evergraph status --ready # --x\n```\n";
    let found = shown(page);
    let reasons: Vec<Option<String>> = found.iter().map(|(_, command)| refused(command)).collect();
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 4, 1, 1], "{found:?}");
    assert_eq!(reasons[0].as_deref(), Some("evergraph bench ops: no flag --fast"));
    assert_eq!(reasons[1], None);
    assert_eq!(reasons[2].as_deref(), Some("evergraph evaluate: no such command"));
    assert_eq!(reasons[3].as_deref(), Some("evergraph status: no flag --readi"));
}
