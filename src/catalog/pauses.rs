//! Sources that an operator holds, until somebody lets them go on.

use rusqlite::params;

use super::{Catalog, CatalogError};

/// A source that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedSource {
    /// Its name.
    pub source: String,
    /// Who holds it.
    pub by: String,
    /// Since when, milliseconds since the Unix epoch.
    pub since_unix_ms: i64,
}

impl Catalog {
    /// Records that a source is held. One that is held already stays as it was.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn pause_source(&self, row: &PausedSource) -> Result<(), CatalogError> {
        let insert =
            "INSERT OR IGNORE INTO paused_source (source, paused_by, since_unix_ms) VALUES (?1, ?2, ?3)";
        let done = self.connection.execute(insert, params![row.source, row.by, row.since_unix_ms]);
        done.map(drop).map_err(|error| self.fail(error))
    }

    /// Records that a source is not held any longer.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn resume_source(&self, source: &str) -> Result<(), CatalogError> {
        let done = self.connection.execute("DELETE FROM paused_source WHERE source = ?1", [source]);
        done.map(drop).map_err(|error| self.fail(error))
    }

    /// Every source that is held, by name.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn paused_sources(&self) -> Result<Vec<PausedSource>, CatalogError> {
        let read = || {
            let mut statement = self
                .connection
                .prepare("SELECT source, paused_by, since_unix_ms FROM paused_source ORDER BY source")?;
            let rows = statement.query_map([], |row| {
                Ok(PausedSource { source: row.get(0)?, by: row.get(1)?, since_unix_ms: row.get(2)? })
            })?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        read().map_err(|error| self.fail(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_held_a_source_first_is_known_until_it_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.sqlite");
        let row = |source: &str, by: &str, since_unix_ms| PausedSource {
            source: source.to_owned(),
            by: by.to_owned(),
            since_unix_ms,
        };
        let catalog = Catalog::open(&path).unwrap();
        for held in [row("kafka:b", "ann", 1), row("http", "bob", 2), row("kafka:b", "bob", 3)] {
            catalog.pause_source(&held).unwrap();
        }
        drop(catalog);
        let catalog = Catalog::open(&path).unwrap();
        assert_eq!(catalog.paused_sources().unwrap(), [row("http", "bob", 2), row("kafka:b", "ann", 1)]);
        catalog.resume_source("http").unwrap();
        catalog.resume_source("http").unwrap();
        assert_eq!(catalog.paused_sources().unwrap(), [row("kafka:b", "ann", 1)]);
    }
}
