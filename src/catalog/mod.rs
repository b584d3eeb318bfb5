//! The catalog: what the daemon knows about itself, in SQLite beside the event log. It records checkpoints, decisions
//! of the promotion gate, sources that are held, how far the change feed is, and the settings that are fixed for the
//! life of a data directory. Its schema is the numbered SQL under `migrations/`, compiled in and applied at open.
//!
//! Knows neither the model nor the stream; a checkpoint is a file name with its facts.

mod decisions;
mod feeds;
mod pauses;

use std::path::{Path, PathBuf};

use refinery::error::Kind;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use thiserror::Error;

pub use decisions::DecisionRow;
pub use feeds::FeedRow;
pub use pauses::PausedSource;

mod schema {
    refinery::embed_migrations!("migrations");
}

/// Why the catalog cannot be used.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// The database refused; usually a damaged file or no room.
    #[error("catalog {path}: {source}; if the file is damaged, move it away: checkpoints are found again")]
    Database {
        /// The catalog's file.
        path: PathBuf,
        /// The database's words.
        source: rusqlite::Error,
    },
    /// The schema could not be brought up to date.
    #[error("catalog {path}: migration failed: {source}")]
    Migration {
        /// The catalog's file.
        path: PathBuf,
        /// The migration's words.
        source: Box<refinery::Error>,
    },
    /// The schema has a migration that this program does not know.
    #[error(
        "catalog {path} was made by a newer version of evergraph, which knows its migration {migration}; start that \
         version, or one newer still"
    )]
    Newer {
        /// The catalog's file.
        path: PathBuf,
        /// The migration.
        migration: String,
    },
    /// A setting differs from the one that the data directory was made with.
    #[error(
        "{name} = {found} but this data directory was made with {fixed}; set it back or start with another data.dir"
    )]
    FixedSetting {
        /// The setting.
        name: String,
        /// What the directory was made with.
        fixed: String,
        /// The configured value.
        found: String,
    },
}

/// One written checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointRow {
    /// Log position up to which the learner had applied the stream.
    pub position: u64,
    /// Version of the weights.
    pub model_version: u64,
    /// File name inside the checkpoint folder.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
    /// CRC-32C of the file.
    pub crc32c: u32,
    /// Prequential average precision when it was written.
    pub average_precision: Option<f64>,
    /// The baseline's average precision over the same batches.
    pub baseline: Option<f64>,
    /// When it was written, milliseconds since the Unix epoch.
    pub created_unix_ms: i64,
}

/// The open catalog.
#[derive(Debug)]
pub struct Catalog {
    connection: Connection,
    path: PathBuf,
}

impl Catalog {
    /// Opens or makes the catalog and brings its schema up to date.
    ///
    /// # Errors
    /// When the file cannot be opened, is no database, or a migration fails.
    pub fn open(path: &Path) -> Result<Self, CatalogError> {
        let fail = |source| CatalogError::Database { path: path.to_path_buf(), source };
        let mut connection = Connection::open(path).map_err(fail)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(fail)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
        // Names of deleted nodes are among the rows that are removed.
        connection.pragma_update(None, "secure_delete", true).map_err(fail)?;
        // Grouped: otherwise a migration and the note that it was applied are two transactions, and a death between
        // them leaves a catalog that no start can open.
        let migrated = schema::migrations::runner().set_grouped(true).run(&mut connection);
        migrated.map_err(|source| {
            let path = path.to_path_buf();
            match source.kind() {
                Kind::MissingVersion(migration) => {
                    CatalogError::Newer { path, migration: migration.to_string() }
                }
                _ => CatalogError::Migration { path, source: Box::new(source) },
            }
        })?;
        Ok(Self { connection, path: path.to_path_buf() })
    }

    /// Opens an existing catalog read-only.
    ///
    /// # Errors
    /// When the file is not there or is no database.
    pub fn open_read_only(path: &Path) -> Result<Self, CatalogError> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
            .map_err(|source| CatalogError::Database { path: path.to_path_buf(), source })?;
        Ok(Self { connection, path: path.to_path_buf() })
    }

    /// The content of a file with all that is in the catalog now, whoever else writes to it.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn copy(&mut self) -> Result<Vec<u8>, CatalogError> {
        let copied = self.connection.serialize("main").map(|bytes| bytes.to_vec());
        copied.map_err(|error| self.fail(error))
    }

    fn fail(&self, source: rusqlite::Error) -> CatalogError {
        CatalogError::Database { path: self.path.clone(), source }
    }

    /// Records a checkpoint whose file is complete and durable.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn add_checkpoint(&self, row: &CheckpointRow) -> Result<(), CatalogError> {
        self.connection
            .execute(
                "INSERT OR REPLACE INTO checkpoint
                 (position, model_version, file, bytes, crc32c, average_precision, baseline, created_unix_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    row.position.cast_signed(),
                    row.model_version.cast_signed(),
                    row.file,
                    row.bytes.cast_signed(),
                    row.crc32c,
                    row.average_precision,
                    row.baseline,
                    row.created_unix_ms
                ],
            )
            .map(drop)
            .map_err(|error| self.fail(error))
    }

    /// All recorded checkpoints, the one recorded last first.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointRow>, CatalogError> {
        let read = || {
            let mut statement = self.connection.prepare(
                "SELECT position, model_version, file, bytes, crc32c, average_precision, baseline, created_unix_ms
                 FROM checkpoint ORDER BY id DESC",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(CheckpointRow {
                    position: row.get::<_, i64>(0)?.cast_unsigned(),
                    model_version: row.get::<_, i64>(1)?.cast_unsigned(),
                    file: row.get(2)?,
                    bytes: row.get::<_, i64>(3)?.cast_unsigned(),
                    crc32c: row.get(4)?,
                    average_precision: row.get(5)?,
                    baseline: row.get(6)?,
                    created_unix_ms: row.get(7)?,
                })
            })?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        read().map_err(|error| self.fail(error))
    }

    /// Forgets a checkpoint; its file is the caller's to remove.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn forget_checkpoint(&self, file: &str) -> Result<(), CatalogError> {
        let forget = self.connection.execute("DELETE FROM checkpoint WHERE file = ?1", [file]);
        forget.map(drop).map_err(|error| self.fail(error))
    }

    /// Fixes a setting to the value that the data directory was made with.
    ///
    /// # Errors
    /// [`CatalogError::FixedSetting`] when it differs, or when the database refuses.
    pub fn fix_setting(&self, name: &str, value: &str) -> Result<(), CatalogError> {
        if self.compare_setting(name, value)? {
            return Ok(());
        }
        let insert = "INSERT INTO fixed_setting (name, value) VALUES (?1, ?2)";
        self.connection.execute(insert, [name, value]).map(drop).map_err(|error| self.fail(error))
    }

    /// Fixes a name to `value` at the first call; returns the fixed value if it is another one.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn fix_value(&self, name: &str, value: &str) -> Result<Option<String>, CatalogError> {
        match self.fix_setting(name, value) {
            Ok(()) => Ok(None),
            Err(CatalogError::FixedSetting { fixed, .. }) => Ok(Some(fixed)),
            Err(error) => Err(error),
        }
    }

    /// A value that an operator has set, if one has.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn operator_value(&self, name: &str) -> Result<Option<String>, CatalogError> {
        let query = "SELECT value FROM fixed_setting WHERE name = ?1";
        self.connection
            .query_row(query, [name], |row| row.get(0))
            .optional()
            .map_err(|error| self.fail(error))
    }

    /// Sets a value for an operator, whatever it was before. It stands beside the fixed settings, under a name of its
    /// own.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn set_operator_value(&self, name: &str, value: &str) -> Result<(), CatalogError> {
        let insert = "INSERT OR REPLACE INTO fixed_setting (name, value) VALUES (?1, ?2)";
        self.connection.execute(insert, [name, value]).map(drop).map_err(|error| self.fail(error))
    }

    /// Compares a setting with the value that the data directory was made with; `false` if it is not held.
    ///
    /// # Errors
    /// [`CatalogError::FixedSetting`] when it differs, or when the database refuses.
    pub fn compare_setting(&self, name: &str, value: &str) -> Result<bool, CatalogError> {
        let known: Option<String> = self
            .connection
            .query_row("SELECT value FROM fixed_setting WHERE name = ?1", [name], |row| row.get(0))
            .optional()
            .map_err(|error| self.fail(error))?;
        match known {
            Some(fixed) if fixed != value => {
                Err(CatalogError::FixedSetting { name: name.to_owned(), fixed, found: value.to_owned() })
            }
            known => Ok(known.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(position: u64) -> CheckpointRow {
        CheckpointRow {
            position,
            model_version: position / 10,
            file: format!("{position}.checkpoint"),
            bytes: 5,
            crc32c: u32::MAX,
            average_precision: Some(0.9),
            baseline: None,
            created_unix_ms: 1,
        }
    }

    #[test]
    fn checkpoints_survive_reopening_and_the_last_recorded_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.sqlite");
        let catalog = Catalog::open(&path).unwrap();
        for position in [10, 30, 20] {
            catalog.add_checkpoint(&row(position)).unwrap();
        }
        drop(catalog);
        let catalog = Catalog::open(&path).unwrap();
        catalog.forget_checkpoint("30.checkpoint").unwrap();
        assert_eq!(catalog.checkpoints().unwrap(), [row(20), row(10)]);
        catalog.add_checkpoint(&row(10)).unwrap();
        assert_eq!(catalog.checkpoints().unwrap(), [row(10), row(20)], "written again is recorded last");
    }

    #[test]
    fn a_fixed_setting_cannot_change() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(&dir.path().join("catalog.sqlite")).unwrap();
        catalog.fix_setting("stream.edge_feature_dimension", "4").unwrap();
        catalog.fix_setting("stream.edge_feature_dimension", "4").unwrap();
        let error = catalog.fix_setting("stream.edge_feature_dimension", "5").unwrap_err().to_string();
        assert!(error.contains("was made with 4"), "{error}");
        assert_eq!(catalog.operator_value("clock").unwrap(), None);
        for value in ["1:2", "3:4"] {
            catalog.set_operator_value("clock", value).unwrap();
            assert_eq!(catalog.operator_value("clock").unwrap().as_deref(), Some(value));
        }
    }

    #[test]
    fn a_foreign_file_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.sqlite");
        std::fs::write(&path, "this is not a database at all, not even nearly").unwrap();
        let error = Catalog::open(&path).unwrap_err().to_string();
        assert!(error.contains("catalog.sqlite"), "{error}");
    }
}
