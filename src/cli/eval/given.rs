//! [`counts`]: how many candidates a file of negatives gives to each event.

use std::path::Path;

use anyhow::{Context, ensure};

use crate::ingest::csv::read_columns;
use crate::ingest::file_error::FileError;

/// How many rows of a file are for each of the `events` of the part called `part`, by its column `event`, the event's
/// number in the part from 1; `None` without this column.
///
/// # Errors
/// When the file cannot be read, a number is none of an event or is below the one before, or an event has no row.
pub fn counts(path: &Path, part: &str, events: usize) -> anyhow::Result<Option<Vec<usize>>> {
    let rows = match read_columns(path, ["event"]) {
        Err(FileError::MissingColumn { .. }) => return Ok(None),
        rows => rows?,
    };
    let (mut counts, mut before) = (vec![0; events], 0);
    for (row, [text]) in rows.iter().enumerate() {
        let number: usize = text.parse().ok().filter(|number| (1..=events).contains(number)).with_context(|| {
            let (path, row) = (path.display(), row + 1);
            format!("{path}: event '{text}' of row {row} is none of the {events} {part} events; number them from 1")
        })?;
        ensure!(
            number >= before,
            "{}: row {} is for event {number} and the one before for event {before}; sort the rows by event",
            path.display(),
            row + 1
        );
        counts[number - 1] += 1;
        before = number;
    }
    if let Some(event) = counts.iter().position(|count| *count == 0) {
        let path = path.display();
        anyhow::bail!("{path}: {part} event {} has no candidates; each event needs at least one", event + 1);
    }
    Ok(Some(counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts_of(text: &str) -> Result<Option<Vec<usize>>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("negatives.csv");
        std::fs::write(&path, text).unwrap();
        counts(&path, "test", 3).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn rows_are_counted_by_event_and_each_event_has_some() {
        assert_eq!(counts_of("neg_src,event,neg_dst\na,1,x\na,1,y\nb,2,x\na,3,y\n"), Ok(Some(vec![2, 1, 1])));
        assert_eq!(counts_of("neg_src,neg_dst\na,x\n"), Ok(None));
        for (rows, text) in [
            ("1\n2\n4\n", "event '4' of row 3 is none of the 3 test events"),
            ("0\n1\n2\n", "event '0' of row 1"),
            ("1\nx\n", "event 'x' of row 2"),
            ("1\n3\n2\n", "row 3 is for event 2 and the one before for event 3"),
            ("1\n3\n", "test event 2 has no candidates"),
            ("", "test event 1 has no candidates"),
        ] {
            let error = counts_of(&format!("event\n{rows}")).unwrap_err();
            assert!(error.contains(text) && error.contains("negatives.csv"), "{error}");
        }
    }
}
