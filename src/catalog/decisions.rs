//! Decisions of the promotion gate, and of operators beside it. Rows are added and never changed; the oldest go. A
//! daemon that crashed decides anew about what it had not kept in a checkpoint, and both decisions were in effect.

use rusqlite::{Row, params};

use super::{Catalog, CatalogError};

/// Decisions that are kept; older ones go.
const KEPT: i64 = 100_000;

/// One decision.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRow {
    /// One past the last log record that was learned.
    pub position: u64,
    /// `promoted`, `held` or `rolled_back`.
    pub verdict: String,
    /// Version of the weights that were trained; in a promotion by hand, those that were promoted.
    pub candidate: u64,
    /// Version that was served until then.
    pub published: Option<u64>,
    /// Version that was served before that one.
    pub kept: Option<u64>,
    /// The best version that had been promoted in the last day; `None` in decisions of earlier versions of the program.
    pub anchor: Option<u64>,
    /// Average precision of the candidate; `None` in a decision that was made by hand.
    pub candidate_ap: Option<f64>,
    /// Average precision of the published version.
    pub published_ap: Option<f64>,
    /// Average precision of the kept version, in decisions of earlier versions of the program.
    pub kept_ap: Option<f64>,
    /// Average precision of the anchor.
    pub anchor_ap: Option<f64>,
    /// Average precision of EdgeBank; `None` in a decision that was made by hand.
    pub edgebank_ap: Option<f64>,
    /// When it was decided, milliseconds since the Unix epoch.
    pub created_unix_ms: i64,
}

impl DecisionRow {
    /// Version that was served from then on; `None`: none was promoted yet.
    #[must_use]
    pub fn served(&self) -> Option<u64> {
        match self.verdict.as_str() {
            "rolled_back" if self.by_hand() => self.kept,
            "rolled_back" => self.anchor.or(self.kept),
            "held" => self.published,
            _ => Some(self.candidate),
        }
    }

    /// Whether an operator decided, and not the gate.
    #[must_use]
    pub fn by_hand(&self) -> bool {
        self.candidate_ap.is_none()
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let version = |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.map(i64::cast_unsigned));
        Ok(Self {
            position: row.get::<_, i64>(0)?.cast_unsigned(),
            verdict: row.get(1)?,
            candidate: row.get::<_, i64>(2)?.cast_unsigned(),
            published: version(3)?,
            kept: version(4)?,
            candidate_ap: row.get(5)?,
            published_ap: row.get(6)?,
            kept_ap: row.get(7)?,
            edgebank_ap: row.get(8)?,
            created_unix_ms: row.get(9)?,
            anchor: version(10)?,
            anchor_ap: row.get(11)?,
        })
    }
}

impl Catalog {
    /// Records a decision, and lets the oldest go.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn add_decision(&self, row: &DecisionRow) -> Result<(), CatalogError> {
        let add = || {
            self.connection.execute(
                "INSERT INTO decision (position, verdict, candidate, published, kept, candidate_ap, published_ap,
                                       kept_ap, edgebank_ap, created_unix_ms, anchor, anchor_ap)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                params![
                    row.position.cast_signed(),
                    row.verdict,
                    row.candidate.cast_signed(),
                    row.published.map(u64::cast_signed),
                    row.kept.map(u64::cast_signed),
                    row.candidate_ap,
                    row.published_ap,
                    row.kept_ap,
                    row.edgebank_ap,
                    row.created_unix_ms,
                    row.anchor.map(u64::cast_signed),
                    row.anchor_ap
                ],
            )?;
            let last = self.connection.last_insert_rowid();
            self.connection.execute("DELETE FROM decision WHERE id <= ?1", [last - KEPT])
        };
        add().map(drop).map_err(|error| self.fail(error))
    }

    /// The latest decisions, `most` at most, the latest first.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn decisions(&self, most: u32) -> Result<Vec<DecisionRow>, CatalogError> {
        let read = || {
            let mut statement = self.connection.prepare(
                "SELECT position, verdict, candidate, published, kept, candidate_ap, published_ap, kept_ap,
                        edgebank_ap, created_unix_ms, anchor, anchor_ap
                 FROM decision ORDER BY id DESC LIMIT ?1",
            )?;
            statement.query_map([most], DecisionRow::read)?.collect::<Result<Vec<_>, _>>()
        };
        read().map_err(|error| self.fail(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(position: u64, verdict: &str) -> DecisionRow {
        DecisionRow {
            position,
            verdict: verdict.to_owned(),
            candidate: 30,
            published: Some(20),
            kept: Some(10),
            candidate_ap: Some(0.9),
            published_ap: Some(0.8),
            kept_ap: None,
            anchor: Some(15),
            anchor_ap: Some(0.85),
            edgebank_ap: Some(0.7),
            created_unix_ms: 1,
        }
    }

    #[test]
    fn decisions_survive_reopening_and_record_what_was_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.sqlite");
        let catalog = Catalog::open(&path).unwrap();
        let cold = DecisionRow { published: None, kept: None, ..row(1, "held") };
        let by_hand = DecisionRow { candidate_ap: None, edgebank_ap: None, ..row(4, "rolled_back") };
        let rows = [cold, row(2, "promoted"), row(3, "held"), by_hand, row(5, "rolled_back")];
        assert_eq!(rows.each_ref().map(DecisionRow::by_hand), [false, false, false, true, false]);
        rows.iter().for_each(|row| catalog.add_decision(row).unwrap());
        assert_eq!(rows.each_ref().map(DecisionRow::served), [None, Some(30), Some(20), Some(10), Some(15)]);
        drop(catalog);
        let catalog = Catalog::open(&path).unwrap();
        assert_eq!(catalog.decisions(2).unwrap(), [rows[4].clone(), rows[3].clone()]);
        assert_eq!(catalog.decisions(100).unwrap().len(), 5);
        assert!(catalog.add_decision(&row(5, "guessed")).is_err(), "verdicts are a closed list");
        let half = DecisionRow { candidate_ap: None, ..row(5, "held") };
        assert!(catalog.add_decision(&half).is_err(), "a gate has all its figures");
    }

    #[test]
    fn the_oldest_decisions_go() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(&dir.path().join("catalog.sqlite")).unwrap();
        catalog.add_decision(&row(1, "held")).unwrap();
        catalog.connection.execute("UPDATE decision SET id = 1 - ?1", [KEPT]).unwrap();
        catalog
            .connection
            .execute(
                "INSERT INTO decision SELECT 1, 2, verdict, candidate, published, kept,
            candidate_ap, published_ap, kept_ap, edgebank_ap, 1, anchor, anchor_ap FROM decision",
                [],
            )
            .unwrap();
        catalog.add_decision(&row(3, "held")).unwrap();
        let left: Vec<u64> = catalog.decisions(9).unwrap().iter().map(|row| row.position).collect();
        assert_eq!(left, [3, 2]);
    }
}
