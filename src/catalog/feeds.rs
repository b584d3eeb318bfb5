//! How far the change feed is, and the deletions that it owes.

use rusqlite::{OptionalExtension, params};

use super::{Catalog, CatalogError};

/// How far the feed to a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedRow {
    /// Every event below is in what was delivered.
    pub position: u64,
    /// Version of the weights with which the last pass over all nodes began.
    pub model_version: Option<u64>,
}

impl Catalog {
    /// How far the feed to `target` is; `None` if it never delivered all that there was.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn feed(&self, target: &str) -> Result<Option<FeedRow>, CatalogError> {
        let query = "SELECT position, model_version FROM feed WHERE target = ?1";
        let row = self.connection.query_row(query, [target], |row| {
            let model_version: Option<i64> = row.get(1)?;
            Ok(FeedRow {
                position: row.get::<_, i64>(0)?.cast_unsigned(),
                model_version: model_version.map(i64::cast_unsigned),
            })
        });
        row.optional().map_err(|error| self.fail(error))
    }

    /// Records how far the feed to `target` is.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn set_feed(&self, target: &str, row: FeedRow) -> Result<(), CatalogError> {
        let insert = "INSERT OR REPLACE INTO feed (target, position, model_version) VALUES (?1, ?2, ?3)";
        let version = row.model_version.map(u64::cast_signed);
        let done = self.connection.execute(insert, params![target, row.position.cast_signed(), version]);
        done.map(drop).map_err(|error| self.fail(error))
    }

    /// Forgets how far all feeds are but that to `target`, so that each begins with all nodes; whether there was one.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn forget_feeds_but(&self, target: Option<&str>) -> Result<bool, CatalogError> {
        let done = self.connection.execute("DELETE FROM feed WHERE target IS NOT ?1", [target]);
        done.map(|rows| rows > 0).map_err(|error| self.fail(error))
    }

    /// Records deleted nodes, all of them or none; the latest deletion of a name counts.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn owe_deletions(&mut self, nodes: &[String]) -> Result<(), CatalogError> {
        let write = |connection: &mut rusqlite::Connection| {
            let all = connection.transaction()?;
            for node in nodes {
                all.execute("INSERT OR REPLACE INTO feed_deletion (node) VALUES (?1)", [node])?;
            }
            all.commit()
        };
        write(&mut self.connection).map_err(|error| self.fail(error))
    }

    /// The oldest of the deletions that are owed, `most` of them at most, with their numbers.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn owed_deletions(&self, most: usize) -> Result<Vec<(i64, String)>, CatalogError> {
        let read = || {
            let query = "SELECT id, node FROM feed_deletion ORDER BY id LIMIT ?1";
            let mut statement = self.connection.prepare_cached(query)?;
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let rows = statement.query_map([most], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        read().map_err(|error| self.fail(error))
    }

    /// Forgets the deletions up to this number: they were delivered.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn settle_deletions(&self, last: i64) -> Result<(), CatalogError> {
        let done = self.connection.execute("DELETE FROM feed_deletion WHERE id <= ?1", [last]);
        done.map(drop).map_err(|error| self.fail(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_feed_owes_survives_a_restart_until_it_is_settled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.sqlite");
        let mut catalog = Catalog::open(&path).unwrap();
        assert_eq!(catalog.feed("rows").unwrap(), None);
        let row = FeedRow { position: 7, model_version: None };
        catalog.set_feed("rows", row).unwrap();
        let later = FeedRow { position: u64::MAX, model_version: Some(3) };
        catalog.set_feed("others", later).unwrap();
        catalog.owe_deletions(&["a".to_owned(), "7".to_owned(), "a".to_owned()]).unwrap();
        drop(catalog);
        let catalog = Catalog::open(&path).unwrap();
        assert_eq!(
            [catalog.feed("rows").unwrap(), catalog.feed("others").unwrap()],
            [Some(row), Some(later)]
        );
        let owed = catalog.owed_deletions(2).unwrap();
        let nodes: Vec<&str> = owed.iter().map(|(_, node)| node.as_str()).collect();
        assert_eq!(nodes, ["7", "a"], "a name that was deleted twice is owed once, by its last deletion");
        catalog.settle_deletions(owed[1].0).unwrap();
        assert_eq!(catalog.owed_deletions(9).unwrap(), []);
        assert!(catalog.forget_feeds_but(Some("rows")).unwrap());
        assert_eq!([catalog.feed("rows").unwrap(), catalog.feed("others").unwrap()], [Some(row), None]);
        assert!(catalog.forget_feeds_but(None).unwrap() && !catalog.forget_feeds_but(None).unwrap());
    }
}
