//! Catalogs of older versions, kept as they were left (`tests/catalogs`), are brought up to date with all that is in
//! them; one of a newer version is refused in words.

use std::path::{Path, PathBuf};

use evergraph::catalog::{Catalog, FeedRow};
use rusqlite::Connection;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// How many migrations there are.
fn newest() -> usize {
    std::fs::read_dir(folder("migrations")).unwrap().count()
}

/// The catalog that version `version` left, in `dir`.
fn left_by(version: usize, dir: &Path) -> PathBuf {
    let kept = folder("tests/catalogs").join(format!("v{version}.sql"));
    let text = std::fs::read_to_string(&kept)
        .unwrap_or_else(|error| panic!("{}: {error}; every version of the schema has one", kept.display()));
    let path = dir.join(format!("v{version}.sqlite"));
    Connection::open(&path).unwrap().execute_batch(&text).unwrap();
    path
}

/// What the database is made of, comments and spaces aside.
fn schema(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let mut query = connection
        .prepare(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'refinery%' ORDER BY name",
        )
        .unwrap();
    let tidy = |sql: String| {
        let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ").replace('"', "")
    };
    query.query_map([], |row| row.get(0).map(tidy)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn the_catalog_of_every_older_version_is_brought_up_to_date_with_all_that_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let fresh = dir.path().join("fresh.sqlite");
    drop(Catalog::open(&fresh).unwrap());
    for version in 1..=newest() {
        let path = left_by(version, dir.path());
        let catalog = Catalog::open(&path).unwrap();
        let checkpoints = catalog.checkpoints().unwrap();
        let kept: Vec<_> = checkpoints.iter().map(|row| (row.position, row.average_precision)).collect();
        assert_eq!(kept, [(120_000, None), (115_200, Some(0.9768))], "version {version}");
        assert_eq!((checkpoints[0].crc32c, checkpoints[1].model_version), (u32::MAX, 569));
        let error = catalog.fix_setting("stream.edge_feature_dimension", "100").unwrap_err();
        assert!(error.to_string().contains("made with 172"), "{error}");
        let mut decisions = catalog.decisions(10).unwrap();
        decisions.sort_by_key(|row| row.position);
        let kept: Vec<_> = decisions.iter().map(|row| (row.verdict.as_str(), row.candidate_ap)).collect();
        let all = [("held", Some(0.8345)), ("promoted", Some(0.9614)), ("rolled_back", None)];
        let expected = [0, 2, 3][(version - 1).min(2)];
        assert_eq!(kept, all[..expected], "version {version}");
        let held: Vec<_> = catalog.paused_sources().unwrap().into_iter().map(|row| row.source).collect();
        assert_eq!(held, if version < 4 { vec![] } else { vec!["kafka:payments"] }, "version {version}");
        let feed = FeedRow { position: 119_900, model_version: Some(590) };
        assert_eq!(catalog.feed("embeddings").unwrap(), (version >= 6).then_some(feed), "version {version}");
        let owed = if version < 6 { vec![] } else { vec![(3, "user:7".to_owned())] };
        assert_eq!(catalog.owed_deletions(9).unwrap(), owed, "version {version}");
        drop(catalog);
        assert_eq!(schema(&path), schema(&fresh), "version {version}");
        drop(Catalog::open(&path).unwrap());
    }
}

#[test]
fn a_catalog_of_a_newer_version_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = left_by(1, dir.path());
    drop(Catalog::open(&path).unwrap());
    let newer = "INSERT INTO refinery_schema_history VALUES (9999, 'to_come', '2099-01-01T00:00:00Z', '1')";
    Connection::open(&path).unwrap().execute(newer, []).unwrap();
    let error = Catalog::open(&path).unwrap_err().to_string();
    assert!(error.contains("sqlite") && error.contains("newer version of evergraph"), "{error}");
    let count = "SELECT count(*) FROM refinery_schema_history";
    let versions: u32 = Connection::open(&path).unwrap().query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(versions as usize, newest() + 1);
}
