//! Rules that compare files with one another: names against the papers, papers against the files.

use crate::source::{Breach, File, Tree, name_at, places};
use std::collections::BTreeSet;

/// All breaches that only the whole tree shows.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let rules: [fn(&Tree) -> Vec<Breach>; 6] =
        [metric_names, code_map, migrations, make_targets, decisions, links];
    rules.iter().flat_map(|rule| rule(tree)).collect()
}

/// Every metric is on a dashboard, in an alert or in docs/metrics.md, and none there is unknown.
fn metric_names(tree: &Tree) -> Vec<Breach> {
    let home = tree.get("src/metrics.rs").or_else(|| tree.get("src/metrics/mod.rs"));
    let Some(home) = home.filter(|file| file.text.lines().count() >= 20) else { return Vec::new() };
    let defined: BTreeSet<String> = tree.under("src/metrics", ".rs").flat_map(metrics_defined).collect();
    if defined.is_empty() {
        return vec![home.breach(
            0,
            "metric",
            "no name found: write it as \"evergraph_…\", or tell tidy how it is written",
        )];
    }
    let mut found = Vec::new();
    let mut shown = BTreeSet::new();
    let alerts = tree.under("deploy/", "").filter(|file| file.text.contains("expr:"));
    for file in tree.under("dashboards/", ".json").chain(alerts).chain(tree.under("docs/metrics.md", "")) {
        for (at, name) in metrics_in(&file.text) {
            let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            match [Some(name), base].into_iter().flatten().find(|name| defined.contains(*name)) {
                Some(known) => drop(shown.insert(known)),
                None => found.push(file.breach(
                    at,
                    "metric",
                    format!("`{name}` is not in src/metrics: name one that is"),
                )),
            }
        }
    }
    for name in defined.iter().filter(|name| !shown.contains(name.as_str())) {
        let at = home.text.find(name.trim_start_matches("evergraph_")).unwrap_or(0);
        found.push(home.breach(
            at,
            "metric",
            format!("`{name}` is on no dashboard, in no alert, not in docs/metrics.md"),
        ));
    }
    found
}

/// Names that a file defines: string literals that are a full name, and, where the file puts the prefix in
/// front by itself, literals that are given with `=` and are a name without it.
fn metrics_defined(file: &File) -> Vec<String> {
    let end = file.text.find("#[cfg(test)]").unwrap_or(file.text.len());
    let code: Vec<&str> =
        file.text[..end].lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let quoted: Vec<&str> = code.split('"').collect();
    // The macro `group!` puts the prefix in front, in the files below as well.
    let prefixes = quoted.contains(&"evergraph_") || code.contains("group! {");
    let is_name =
        |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let mut names = Vec::new();
    for pair in quoted.chunks_exact(2).filter(|pair| is_name(pair[1]) && !pair[1].ends_with('_')) {
        if pair[1].starts_with("evergraph_") {
            names.push(pair[1].to_string());
        } else if prefixes && !pair[1].is_empty() && pair[0].trim_end().ends_with('=') {
            names.push(format!("evergraph_{}", pair[1]));
        }
    }
    names
}

fn metrics_in(text: &str) -> Vec<(usize, &str)> {
    let name = |at: usize| {
        let name = name_at(text, at);
        (at, name.trim_end_matches('_'))
    };
    let starts = text.match_indices("evergraph_").map(|(at, _)| at);
    let whole = |at: &usize| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || "_-/:.".contains(c));
    let lower = |(_, name): &(usize, &str)| name.len() > 10 && !name.chars().any(char::is_uppercase);
    starts.filter(whole).map(name).filter(lower).collect()
}

/// ARCHITECTURE.md names every folder and every file that stands directly in src.
fn code_map(tree: &Tree) -> Vec<Breach> {
    let map = tree.get("ARCHITECTURE.md").map_or("", |file| &file.text);
    let named = |name: &str| places(map, name).any(|at| map[..at].ends_with(['`', '/', ' ', '\n']));
    let mut parts: BTreeSet<&str> = BTreeSet::new();
    for file in tree.under("src/", ".rs") {
        parts.extend(file.path.strip_prefix("src/").and_then(|inner| inner.split('/').next()));
    }
    let missing = parts
        .into_iter()
        .filter(|part| !named(&format!("{}{}", part, if part.ends_with(".rs") { "" } else { "/" })));
    let breach = |part| Breach {
        file: "ARCHITECTURE.md".into(),
        line: 1,
        rule: "code-map",
        instead: format!("say in the code map what src/{part} is for"),
    };
    missing.map(breach).collect()
}

/// `migrations/V1__name.sql`, `V2__…`: no gap, no number twice.
fn migrations(tree: &Tree) -> Vec<Breach> {
    let mut numbers = Vec::new();
    let mut found = Vec::new();
    for file in tree.under("migrations/", ".sql") {
        let stem = file.path.trim_start_matches("migrations/").trim_end_matches(".sql");
        let parts = stem.strip_prefix('V').and_then(|rest| rest.split_once("__"));
        let snake = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        match parts.and_then(|(number, name)| Some((number.parse::<usize>().ok()?, name))) {
            Some((number, name)) if snake(name) => numbers.push((number, file)),
            _ => found.push(file.breach(0, "migration", "name it V<number>__<what_it_does>.sql")),
        }
    }
    numbers.sort_by_key(|(number, _)| *number);
    for (i, (number, file)) in numbers.iter().enumerate() {
        if *number != i + 1 {
            found.push(file.breach(
                0,
                "migration",
                format!("number it V{}: no gap and no number twice", i + 1),
            ));
            break;
        }
    }
    found
}

/// Every `make x` in the papers is a target, and README.md shows the two commands.
fn make_targets(tree: &Tree) -> Vec<Breach> {
    let makefile = tree.get("Makefile").map_or("", |file| &file.text);
    let is_target = |name: &str| {
        makefile.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))
    };
    let mut found = Vec::new();
    for paper in ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"] {
        let Some(file) = tree.get(paper) else {
            found.push(Breach { file: paper.into(), line: 1, rule: "papers", instead: "write it".into() });
            continue;
        };
        for (at, _) in file.text.match_indices("`make ").map(|(at, m)| (at + m.len(), m)) {
            let name = name_at(&file.text, at);
            if !is_target(name) {
                found.push(file.breach(
                    at,
                    "make",
                    format!("`make {name}` is not in the Makefile: add it or take it out"),
                ));
            }
        }
    }
    for command in ["make demo", "make test"] {
        let Some(readme) = tree.get("README.md") else { continue };
        if !readme.text.contains(command) {
            found.push(readme.breach(0, "make", format!("README.md shows `{command}`")));
        } else if !is_target(&command[5..]) {
            found.push(readme.breach(0, "make", format!("`{command}` is not in the Makefile")));
        }
    }
    found
}

/// Every decision record is named `NNNN-what.md` and linked from ARCHITECTURE.md.
fn decisions(tree: &Tree) -> Vec<Breach> {
    let map = tree.get("ARCHITECTURE.md").map_or("", |file| &file.text);
    let mut found = Vec::new();
    for file in tree.under("docs/adr/", ".md").filter(|file| !file.path.ends_with("README.md")) {
        let name = file.path.trim_start_matches("docs/adr/");
        let numbered =
            name.len() > 5 && name.bytes().take(4).all(|b| b.is_ascii_digit()) && name.as_bytes()[4] == b'-';
        if !numbered {
            found.push(file.breach(0, "decision", "name it <four digits>-<what-was-decided>.md"));
        }
        if !map.contains(&format!("({})", file.path)) {
            found.push(file.breach(
                0,
                "decision",
                format!("link it from ARCHITECTURE.md: [{name}]({})", file.path),
            ));
        }
    }
    found
}

/// Relative links in the papers lead somewhere.
fn links(tree: &Tree) -> Vec<Breach> {
    let mut found = Vec::new();
    for file in tree.under("", ".md") {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (at, _) in file.text.match_indices("](").map(|(at, m)| (at + m.len(), m)) {
            let target = file.text[at..].split([')', '#', ' ']).next().unwrap_or("");
            if target.is_empty() || target.contains(':') || exists(tree, &resolve(folder, target)) {
                continue;
            }
            found.push(file.breach(
                at,
                "link",
                format!("`{target}` leads nowhere: correct it or take it out"),
            ));
        }
    }
    found
}

fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

fn exists(tree: &Tree, path: &str) -> bool {
    let folder = format!("{path}/");
    tree.paths.iter().any(|known| known == path || known.starts_with(&folder))
}

/// Asserts that `rule` finds exactly these (file, part of the advice) in a tree of these files.
#[cfg(test)]
fn check_rule(rule: fn(&Tree) -> Vec<Breach>, files: &[(&str, &str)], expected: &[(&str, &str)]) {
    let found = rule(&Tree::of(files));
    let agrees = |(breach, (file, part)): (&Breach, &(&str, &str))| {
        breach.file == *file && breach.instead.contains(part)
    };
    let same = found.len() == expected.len() && found.iter().zip(expected).all(agrees);
    assert!(same, "expected {expected:?}, found {found:#?}");
}

#[test]
fn metrics_and_dashboards_name_the_same() {
    let filler = "// filler\n".repeat(20);
    let metrics = format!(
        "//! Doc.\n{filler}fn new() {{ counter(\"evergraph_a_total\"); histogram(\"evergraph_b_seconds\"); }}\n"
    );
    let shown = r#"{"expr": "rate(evergraph_a_total[5m])", "x": "evergraph_b_seconds_bucket"}"#;
    let home = ("src/metrics.rs", metrics.as_str());
    check_rule(metric_names, &[home, ("dashboards/a.json", shown)], &[]);
    check_rule(
        metric_names,
        &[home, ("dashboards/a.json", r#""evergraph_a_total + evergraph_c_bytes""#)],
        &[
            ("dashboards/a.json", "`evergraph_c_bytes` is not"),
            ("src/metrics.rs", "`evergraph_b_seconds` is on no"),
        ],
    );
    let documented = ("docs/metrics.md", "- `evergraph_a_total`\n- `evergraph_b_seconds`\n");
    check_rule(metric_names, &[home, documented], &[]);
    let alert = ("deploy/alerts.yml", "expr: evergraph_d > 0\n");
    check_rule(metric_names, &[home, documented, alert], &[("deploy/alerts.yml", "`evergraph_d` is not")]);
    let prefixed = format!(
        "//! Doc.\n/// `field = \"name\"`\n{filler}concat!(\"evergraph_\", name);\na: Gauge [\"x\"] = \"a_total\" \"help\";\nb: Gauge = \"b_seconds\" \"\";\n"
    );
    let prefixed = ("src/metrics.rs", prefixed.as_str());
    check_rule(metric_names, &[prefixed, documented], &[]);
    check_rule(
        metric_names,
        &[prefixed, ("dashboards/a.json", "\"evergraph_a_total\"")],
        &[("src/metrics.rs", "`evergraph_b_seconds`")],
    );
    let spelled = format!("//! Doc.\n{filler}fn new() {{ counter(PREFIX, \"a_total\"); }}\n");
    check_rule(metric_names, &[("src/metrics.rs", &spelled)], &[("src/metrics.rs", "no name found")]);
    check_rule(metric_names, &[("src/metrics.rs", "//! Placeholder.\n")], &[]);
}

#[test]
fn the_map_names_every_part() {
    let sources = [("src/lib.rs", "//! Doc.\n"), ("src/graph/mod.rs", "//! Doc.\n")];
    let with = |map| [sources[0], sources[1], ("ARCHITECTURE.md", map)];
    check_rule(code_map, &with("`lib.rs`, `graph/`: the store"), &[]);
    check_rule(code_map, &with("`lib.rs`, `subgraph/`"), &[("ARCHITECTURE.md", "src/graph")]);
}

#[test]
fn migrations_count_from_one() {
    check_rule(migrations, &[("migrations/V2__b.sql", ""), ("migrations/V1__a.sql", "")], &[]);
    check_rule(
        migrations,
        &[("migrations/V1__a.sql", ""), ("migrations/V3__b.sql", "")],
        &[("migrations/V3__b.sql", "V2")],
    );
    check_rule(
        migrations,
        &[("migrations/V1__a.sql", ""), ("migrations/V1__b.sql", "")],
        &[("migrations/V1__b.sql", "V2")],
    );
    check_rule(migrations, &[("migrations/0001_a.sql", "")], &[("migrations/0001_a.sql", "V<number>")]);
}

#[test]
fn the_papers_name_targets_that_exist() {
    let papers = |readme, makefile| {
        [("README.md", readme), ("CONTRIBUTING.md", ""), ("ARCHITECTURE.md", ""), ("Makefile", makefile)]
    };
    check_rule(make_targets, &papers("`make demo` `make test`", "demo:\ntest:\n"), &[]);
    check_rule(make_targets, &papers("make demo", "demo:\n"), &[("README.md", "make test")]);
    check_rule(
        make_targets,
        &papers("make demo, make test, `make tea`", "demo:\ntest:\n"),
        &[("README.md", "`make tea`")],
    );
    check_rule(make_targets, &papers("make demo, make test", "demo:\n"), &[("README.md", "`make test`")]);
}

#[test]
fn decisions_are_numbered_and_linked_and_links_lead_somewhere() {
    let map = |text| ("ARCHITECTURE.md", text);
    let adr = ("docs/adr/0001-a.md", "# A\n");
    check_rule(decisions, &[map("[a](docs/adr/0001-a.md)"), adr], &[]);
    check_rule(decisions, &[map(""), adr], &[("docs/adr/0001-a.md", "link it")]);
    check_rule(
        decisions,
        &[map("[a](docs/adr/first.md)"), ("docs/adr/first.md", "# A\n")],
        &[("docs/adr/first.md", "four digits")],
    );

    let up = (
        "docs/adr/0001-a.md",
        "[up](../../ARCHITECTURE.md#top) [web](https://a.b/c) [here](#a) [folder](..)\n",
    );
    check_rule(links, &[map("[a](docs/adr/0001-a.md)"), up], &[]);
    check_rule(links, &[map("\n[a](docs/adr/0009-z.md)")], &[("ARCHITECTURE.md", "0009-z.md")]);
}
