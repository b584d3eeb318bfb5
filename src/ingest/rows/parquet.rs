//! Rows of a Parquet file as documents. A column is a field of them:
//!
//! | Parquet | in a document |
//! | --- | --- |
//! | group, map | object |
//! | list | array |
//! | decimal | text, as in `19.90` |
//! | bytes that are no text | text with a character a byte |
//! | date, time, timestamp | the integer that it is, in its unit |
//! | a float that is not finite | the text `NaN`, `Infinity` or `-Infinity` |
//!
//! Without a mapping they are plain events, whose features are a list `features` or the columns `f0`, `f1`, …, as in a
//! CSV file. Columns that nobody reads are not decoded. The file is read by the `parquet` crate, row by row: its other
//! interface, of columns, is faster and would have to be taken apart into rows here. That crate bounds neither the
//! depth of a schema nor what it allocates by it; where it panics over a file, the file cannot be read.

use std::collections::HashSet;
use std::fmt::Write;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row as ParquetRow};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::{Row, placed};
use crate::ingest::csv::is_feature;
use crate::ingest::decode::DecodeOptions;
use crate::ingest::document::{Document, characters, number};
use crate::ingest::file_error::FileError;
use crate::ingest::mapping::{Mapping, MessageReader};

/// Columns of plain events; the first are required.
const REQUIRED: usize = 3;
const COLUMNS: [&str; 9] = ["src", "dst", "ts", "label", "type", "features", "op", "node", "idempotency_key"];

/// Reads a file.
pub(super) struct ParquetRows {
    path: PathBuf,
    rows: RowIter<'static>,
    reader: MessageReader,
    row: u64,
    current: Document<'static>,
    /// How many columns `f0`, `f1`, … are the features of plain events.
    features: usize,
    has_list: bool,
    unknown: Vec<String>,
}

impl ParquetRows {
    pub fn open(
        path: &Path,
        options: DecodeOptions,
        mapping: Option<Arc<Mapping>>,
    ) -> Result<Self, FileError> {
        let file = File::open(path).map_err(|source| FileError::Open { path: path.to_path_buf(), source })?;
        let opened = guarded(|| SerializedFileReader::new(file));
        let file =
            opened.map_err(|detail| FileError::Parquet { path: path.to_path_buf(), row: 0, detail })?;
        let schema = file.metadata().file_metadata().schema();
        let names: Vec<String> = schema.get_fields().iter().map(|field| field.name().to_owned()).collect();
        let mut seen = HashSet::new();
        if let Some(column) = names.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(FileError::DuplicateColumn { path: path.to_path_buf(), column: column.clone() });
        }
        let is_there = |column: &str| names.iter().any(|name| name == column);
        let has_list = is_there("features");
        let features = match (&mapping, has_list) {
            (None, false) => names.iter().filter(|name| is_feature(name)).count(),
            _ => 0,
        };
        let wanted: Vec<String> = match &mapping {
            Some(mapping) => mapping.fields().map(str::to_owned).collect(),
            None => {
                let required = COLUMNS[..REQUIRED].iter().map(|name| (*name).to_owned());
                required.chain((0..features).map(|number| format!("f{number}"))).collect()
            }
        };
        if let Some(column) = wanted.into_iter().find(|column| !is_there(column)) {
            let found = names.join(", ");
            return Err(FileError::MissingColumn { path: path.to_path_buf(), column, found });
        }
        let is_read = |name: &str| match &mapping {
            None => COLUMNS.contains(&name) || (features > 0 && is_feature(name)),
            Some(mapping) => mapping.fields().next().is_none() || mapping.fields().any(|field| field == name),
        };
        let unknown = match &mapping {
            None => names.iter().filter(|name| !is_read(name)).cloned().collect(),
            Some(_) => Vec::new(),
        };
        let read = schema.get_fields().iter().filter(|field| is_read(field.name())).cloned().collect();
        let read = Type::group_type_builder(schema.name()).with_fields(read).build();
        let projected = guarded(|| RowIter::from_file_into(Box::new(file)).project(Some(read?)));
        let rows =
            projected.map_err(|detail| FileError::Parquet { path: path.to_path_buf(), row: 0, detail })?;
        Ok(Self {
            path: path.to_path_buf(),
            rows,
            reader: MessageReader::new(options, mapping),
            row: 0,
            current: Document::Value(Value::Null),
            features,
            has_list,
            unknown,
        })
    }

    /// Those of plain events, unless a list holds them.
    pub fn feature_columns(&self) -> Option<usize> {
        (self.reader.mapping().is_none() && !self.has_list).then_some(self.features)
    }

    pub fn warning(&self) -> Option<String> {
        if self.unknown.is_empty() {
            return None;
        }
        Some(format!(
            "{}: ignoring unknown columns {}; known are {} or f0, f1, …",
            self.path.display(),
            self.unknown.join(", "),
            COLUMNS.join(", ")
        ))
    }

    pub fn add_row_text(&self, text: &mut String) {
        if let Document::Value(value) = &self.current {
            // Into memory: there is nothing that can fail.
            let _ = write!(text, "{value}");
        }
    }

    pub fn next_row(&mut self) -> Result<Option<Row>, FileError> {
        let Self { path, rows, row, features, .. } = self;
        let read =
            guarded(|| rows.next().transpose().map(|found| found.map(|found| object(found, *features))));
        let found = read.map_err(|detail| FileError::Parquet { path: path.clone(), row: *row, detail })?;
        let Some(value) = found else { return Ok(None) };
        let number = self.row;
        self.row += 1;
        self.current = Document::Value(value);
        let read = self.reader.read_document(&self.current);
        Ok(Some(read.map_err(|rejection| placed((&self.path, "row", number), rejection))))
    }
}

/// Calls the crate; what it says or, if it panics, that it did.
fn guarded<T>(work: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!(
                "it is damaged, or of a kind that is not read ({})",
                words.unwrap_or("the reader stopped")
            ))
        }
    }
}

/// A row, the first so many columns `f0`, `f1`, … of which are its features.
fn object(row: ParquetRow, features: usize) -> Value {
    let (mut fields, mut numbers) = (Map::new(), vec![Value::Null; features]);
    for (name, field) in row.into_columns() {
        let place = name.strip_prefix('f').and_then(|digits| digits.parse::<usize>().ok());
        match place.and_then(|place| numbers.get_mut(place)) {
            Some(number) if is_feature(&name) => *number = value(field),
            _ => drop(fields.insert(name, value(field))),
        }
    }
    if numbers.iter().any(|number| !number.is_null()) {
        fields.insert("features".to_owned(), numbers.into());
    }
    Value::Object(fields)
}

fn value(field: Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(is) => is.into(),
        Field::Byte(number) => number.into(),
        Field::Short(number) => number.into(),
        Field::Int(number) | Field::Date(number) | Field::TimeMillis(number) => number.into(),
        Field::Long(number)
        | Field::TimeMicros(number)
        | Field::TimestampMillis(number)
        | Field::TimestampMicros(number) => number.into(),
        Field::UByte(number) => number.into(),
        Field::UShort(number) => number.into(),
        Field::UInt(number) => number.into(),
        Field::ULong(number) => number.into(),
        Field::Float16(real) => number(real.to_f64()),
        Field::Float(real) => number(real.into()),
        Field::Double(real) => number(real),
        // One without places behind its point has the point all the same.
        Field::Decimal(_) => field.to_string().trim_end_matches('.').into(),
        Field::Str(text) => text.into(),
        Field::Bytes(bytes) => characters(bytes.data()).into(),
        Field::Group(row) => object(row, 0),
        Field::ListInternal(list) => list.elements().iter().cloned().map(value).collect(),
        Field::MapInternal(map) => {
            let entries = map.entries().iter().cloned().map(|(key, inner)| (name(key), value(inner)));
            entries.collect::<Map<_, _>>().into()
        }
    }
}

/// A key of a map.
fn name(field: Field) -> String {
    match value(field) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EdgeEvent, Event, EventTime, Incoming};
    use crate::ingest::mapping::{Decoded, MappingOptions};
    use crate::ingest::rejection::{Reason, Rejection};

    /// A file that was written by pyarrow.
    fn open(name: &str, mapping: Option<Arc<Mapping>>) -> Result<ParquetRows, FileError> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora/parquet");
        ParquetRows::open(&folder.join(format!("{name}.parquet")), DecodeOptions::default(), mapping)
    }

    fn edges(rows: &mut ParquetRows) -> Vec<Result<EdgeEvent, Rejection>> {
        let mut edges = Vec::new();
        while let Some(row) = rows.next_row().unwrap() {
            match row {
                Err(rejection) => edges.push(Err(rejection)),
                Ok(decoded) => edges.extend(decoded.into_events().map(|incoming| match incoming.event {
                    Event::Edge(edge) => Ok(edge),
                    other => panic!("{other:?}"),
                })),
            }
        }
        edges
    }

    #[test]
    fn columns_are_those_of_a_csv_file() {
        let mut rows = open("good-columns", None).unwrap();
        assert_eq!(rows.feature_columns(), Some(2));
        assert!(rows.warning().unwrap().contains("note"));
        let edges = edges(&mut rows);
        let first = EdgeEvent {
            src: "alice".into(),
            dst: 7.into(),
            time: EventTime(1_700_000_000),
            edge_type: Some("pays".into()),
            features: vec![0.5, 2.0],
            label: Some(0.0),
        };
        assert_eq!(edges[0], Ok(first));
        let second = edges[1].as_ref().unwrap();
        assert_eq!((second.features.len(), second.label), (0, None), "fields without a value");
        let third = edges[2].as_ref().unwrap_err();
        assert_eq!(third.reason, Reason::MissingField);
        assert!(third.detail.contains("good-columns.parquet row 2: src"), "{third}");
        assert_eq!(edges.len(), 3);
        let mut text = String::new();
        rows.add_row_text(&mut text);
        assert!(text.contains(r#""features":[1.5,0.25]"#) && text.contains(r#""src":null"#), "{text}");
    }

    #[test]
    fn features_may_be_a_list_and_times_of_a_type_of_their_own() {
        let mut rows = open("good-list", None).unwrap();
        assert_eq!(rows.feature_columns(), None);
        let edges: Vec<_> = edges(&mut rows).into_iter().map(Result::unwrap).collect();
        let read: Vec<_> = edges.iter().map(|edge| (edge.time.0, edge.features.clone())).collect();
        assert_eq!(read, [(1, vec![0.5, 1.0]), (2, vec![]), (3, vec![])], "over two groups of rows");
        assert!(self::edges(&mut open("good-empty", None).unwrap()).is_empty());
    }

    #[test]
    fn a_whole_decimal_is_an_integer_and_a_row_may_have_a_key_of_its_own() {
        let mut rows = open("good-decimal-ids", None).unwrap();
        let mut read = Vec::new();
        while let Some(row) = rows.next_row().unwrap() {
            let Decoded::One(Incoming { event: Event::Edge(edge), idempotency }) = row.unwrap() else {
                panic!()
            };
            read.push((edge.src, idempotency.is_some()));
        }
        assert_eq!(read, [(19.into(), true), (20.into(), false)]);
    }

    #[test]
    fn a_mapping_reads_what_is_nested() {
        let options = MappingOptions {
            each: "/items".into(),
            src: "{/user/id}-{/user/tags/k}".into(),
            dst: "item:/sku".into(),
            ts: "/at".into(),
            features: vec!["item:/price".into()],
            ..MappingOptions::default()
        };
        let mapping = Arc::new(Mapping::compile(&options).unwrap());
        let mut rows = open("good-nested", Some(Arc::clone(&mapping))).unwrap();
        let edges: Vec<_> = edges(&mut rows).into_iter().map(Result::unwrap).collect();
        let read: Vec<_> =
            edges.iter().map(|edge| (edge.src.to_string(), edge.dst.to_string(), edge.features[0])).collect();
        assert_eq!(read, [("u1-v".into(), "s1".into(), 19.9), ("u1-v".into(), "s2".into(), -0.01)]);
        assert_eq!(edges[0].time.0, 1_769_860_800_000_000, "microseconds, as they are stored");
        let missing = open("good-list", Some(mapping)).err().unwrap().to_string();
        assert!(missing.contains("no column 'items', only src, dst, ts, features"), "{missing}");
    }

    #[test]
    fn a_file_that_is_none_is_named_with_what_is_wrong() {
        for name in ["bad-empty", "bad-text", "bad-cut"] {
            let error = open(name, None).err().unwrap().to_string();
            assert!(error.contains(name) && error.contains("as Parquet after row 0"), "{error}");
        }
        for (name, why) in [("bad-no-time", "no column 'ts'"), ("bad-twice", "column 'src' twice")] {
            let error = open(name, None).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
        for (name, why) in [("bad-page", "after row 0"), ("bad-brotli", "brotli")] {
            let error = open(name, None).unwrap().next_row().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
