//! Event files: CSV with a header, plain or gzip, read row by row.
//!
//! Columns `src`, `dst` and `ts` are required; `label`, `type` and `f0`, `f1`, … `fN` (without a
//! gap) are optional; every other column is ignored and named in [`CsvReader::warning`]. Blanks around fields
//! are dropped. `ts` is an integer in the stream's unit. An empty `label` or `type` means "none", and
//! a row whose feature fields are all empty carries no features.
//!
//! A bad row is one [`FileError`] and reading goes on after it; whether to stop is the caller's choice.
//! Does not check the order of times, known nodes, or anything beyond one row.

pub mod table;

use std::path::Path;

use rayon::prelude::*;

pub use table::read_columns;
use table::{Line, Names, Table};

use super::file_error::FileError;
use crate::event::{EdgeEvent, EventTime, NodeKey};

const REQUIRED: &str = "src,dst,ts";

/// Files with so many feature columns are read in blocks of rows, which several threads decode: of such rows the
/// numbers take longer than the lines.
const WIDE: usize = 32;
/// Rows of a block, and bytes from which on it gets no more.
const BLOCK_ROWS: usize = 256;
const BLOCK_BYTES: usize = 1 << 20;

/// Reads the events of a file in file order. Iterate over it; it ends at the end of the file or after
/// an error that is not about one row.
pub struct CsvReader {
    table: Table,
    decoder: Decoder,
    unknown: Vec<String>,
    /// Rows that were read, the first `count` of them; those before `next` were returned.
    rows: Vec<ReadRow>,
    count: usize,
    next: usize,
    ended: bool,
}

#[derive(Default)]
struct ReadRow {
    line: Line,
    event: Option<Result<EdgeEvent, FileError>>,
}

/// Where an event's parts are in a row.
struct Decoder {
    src: usize,
    dst: usize,
    time: usize,
    label: Option<usize>,
    edge_type: Option<usize>,
    features: Vec<usize>,
}

impl CsvReader {
    /// Opens an event file and reads its header.
    ///
    /// # Errors
    /// When the file cannot be opened or read, is empty, or its header lacks a required column, names
    /// one twice or skips a feature column.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let table = Table::open(path, REQUIRED)?;
        let (src, dst, time) = (table.require("src")?, table.require("dst")?, table.require("ts")?);
        let (label, edge_type) = (table.find("label"), table.find("type"));
        let features = feature_columns(&table)?;
        let known = |column: usize| {
            [Some(src), Some(dst), Some(time), label, edge_type].contains(&Some(column))
                || features.contains(&column)
        };
        let unknown =
            table.columns().iter().enumerate().filter(|(i, _)| !known(*i)).map(|(_, name)| name.clone());
        let unknown = unknown.collect();
        let decoder = Decoder { src, dst, time, label, edge_type, features };
        Ok(Self { table, decoder, unknown, rows: Vec::new(), count: 0, next: 0, ended: false })
    }

    /// Number of feature columns.
    #[must_use]
    pub fn feature_dimension(&self) -> usize {
        self.decoder.features.len()
    }

    /// One sentence about the columns that are not read, if there are any.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        if self.unknown.is_empty() {
            return None;
        }
        Some(format!(
            "{}: ignoring unknown columns {}; known are src, dst, ts, label, type, f0, f1, …",
            self.table.path().display(),
            self.unknown.join(", ")
        ))
    }

    /// The row that was returned last.
    fn row(&self) -> Option<&Line> {
        Some(&self.rows.get(self.next.checked_sub(1)?)?.line)
    }

    /// Appends the row that was returned last to `text`, for keeping a rejected one.
    pub fn add_row_text(&self, text: &mut String) {
        if let Some(row) = self.row() {
            row.add_text(text);
        }
    }

    /// The file, and the line of the row that was returned last.
    pub(super) fn place(&self) -> (&Path, u64) {
        (self.table.path(), self.row().map_or(0, Line::number))
    }

    /// Reads and decodes the next rows, one at least unless the file has ended.
    fn read_on(&mut self) {
        let wide = self.decoder.features.len() >= WIDE;
        let (most, mut bytes) = (if wide { BLOCK_ROWS } else { 1 }, 0);
        (self.count, self.next) = (0, 0);
        while !self.ended && self.count < most && bytes < BLOCK_BYTES {
            if self.rows.len() == self.count {
                self.rows.push(ReadRow::default());
            }
            let row = &mut self.rows[self.count];
            // A row that was long once must not keep its memory.
            if row.line.bytes() > BLOCK_BYTES {
                row.line = Line::default();
            }
            row.event = match self.table.advance() {
                Ok(true) => None,
                Ok(false) => {
                    self.ended = true;
                    break;
                }
                Err(error) => {
                    self.ended = !error.is_row();
                    Some(Err(error))
                }
            };
            self.table.take_row(&mut row.line);
            bytes += row.line.bytes();
            self.count += 1;
        }
        let (decoder, names) = (&self.decoder, self.table.names());
        let decode = |row: &mut ReadRow| {
            row.event.get_or_insert_with(|| decoder.event(names, &row.line));
        };
        let rows = &mut self.rows[..self.count];
        if wide {
            rows.par_iter_mut().with_min_len(BLOCK_ROWS / 16).for_each(decode);
        } else {
            rows.iter_mut().for_each(decode);
        }
    }
}

impl Decoder {
    fn event(&self, names: &Names, row: &Line) -> Result<EdgeEvent, FileError> {
        Ok(EdgeEvent {
            src: node(names, row, self.src)?,
            dst: node(names, row, self.dst)?,
            time: self.event_time(names, row)?,
            edge_type: self.edge_type.map(|at| row.field(at)).filter(|t| !t.is_empty()).map(Into::into),
            features: self.feature_row(names, row)?,
            label: match self.label.map(|at| (at, row.field(at))) {
                None | Some((_, "")) => None,
                Some((at, _)) => Some(number(names, row, at)?),
            },
        })
    }

    /// Integers; `12.0` is one too, since many tools write integer columns that way.
    fn event_time(&self, names: &Names, row: &Line) -> Result<EventTime, FileError> {
        let text = row.field(self.time);
        let whole = match text.split_once('.') {
            Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
            _ => text,
        };
        whole.parse().map(EventTime).map_err(|_| {
            let expected =
                "a 64-bit integer; write times as whole numbers of one unit, which stream.time_unit names";
            names.value_error(row, self.time, expected)
        })
    }

    fn feature_row(&self, names: &Names, row: &Line) -> Result<Vec<f32>, FileError> {
        if self.features.iter().all(|&column| row.field(column).is_empty()) {
            return Ok(Vec::new());
        }
        let mut features = Vec::with_capacity(self.features.len());
        for &column in &self.features {
            features.push(number(names, row, column)?);
        }
        Ok(features)
    }
}

fn node(names: &Names, row: &Line, column: usize) -> Result<NodeKey, FileError> {
    let text = row.field(column);
    if text.is_empty() {
        return Err(names.value_error(row, column, "a node name; fill it in or drop the line"));
    }
    Ok(NodeKey::from_text(text))
}

fn number(names: &Names, row: &Line, column: usize) -> Result<f32, FileError> {
    match row.field(column).parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(names.value_error(row, column, "a finite 32-bit number; correct it or drop the line")),
    }
}

/// Whether a column is called `f0`, `f1`, ….
pub(super) fn is_feature(name: &str) -> bool {
    name.strip_prefix('f').is_some_and(|digits| {
        !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits == "0" || !digits.starts_with('0'))
    })
}

/// The columns `f0`, `f1`, … in the order of their numbers.
fn feature_columns(table: &Table) -> Result<Vec<usize>, FileError> {
    let count = table.columns().iter().filter(|name| is_feature(name)).count();
    (0..count).map(|i| table.require(&format!("f{i}"))).collect()
}

impl Iterator for CsvReader {
    type Item = Result<EdgeEvent, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            self.read_on();
        }
        let row = self.rows[..self.count].get_mut(self.next)?;
        self.next += 1;
        row.event.take()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Vec<Result<EdgeEvent, FileError>> {
        CsvReader::open(file(bytes).path()).unwrap().collect()
    }

    fn open_error(bytes: &[u8]) -> FileError {
        CsvReader::open(file(bytes).path()).err().expect("the header should be refused")
    }

    #[test]
    fn every_column_is_read_whatever_their_order() {
        let file = file(
            b"f1,ts,dst,type,src,label,f0,color\n2.5,-7,b c,follows,1,1,-1e3,red\n,8.0,07,,\"x,y\",,,\n",
        );
        let mut reader = CsvReader::open(file.path()).unwrap();
        assert_eq!(reader.feature_dimension(), 2);
        assert_eq!(reader.unknown, ["color"]);
        assert!(reader.warning().unwrap().contains("color"));
        let first = reader.next().unwrap().unwrap();
        let second = reader.next().unwrap().unwrap();
        assert!(reader.next().is_none() && reader.next().is_none());
        assert_eq!(
            first,
            EdgeEvent {
                src: NodeKey::Int(1),
                dst: NodeKey::Text("b c".into()),
                time: EventTime(-7),
                edge_type: Some("follows".into()),
                features: vec![-1000.0, 2.5],
                label: Some(1.0),
            }
        );
        assert_eq!(
            second,
            EdgeEvent {
                src: NodeKey::Text("x,y".into()),
                dst: NodeKey::Text("07".into()),
                time: EventTime(8),
                edge_type: None,
                features: vec![],
                label: None,
            }
        );
    }

    #[test]
    fn gzip_bom_crlf_blanks_and_missing_last_newline_are_understood() {
        let text = "\u{feff}src, dst ,ts\r\n1, 2 , 3\r\n\r\n4,5,6".as_bytes();
        for bytes in [text.to_vec(), gzip(text), [gzip(&text[..20]), gzip(&text[20..])].concat()] {
            let events: Vec<_> = read(&bytes).into_iter().map(Result::unwrap).collect();
            assert_eq!(events.len(), 2);
            assert_eq!(events[0].dst, NodeKey::Int(2));
            assert_eq!(events[1].time, EventTime(6));
        }
    }

    #[test]
    fn bad_headers_are_refused_with_the_reason() {
        assert!(matches!(open_error(b""), FileError::Empty { .. }));
        assert!(matches!(open_error(&gzip(b"")), FileError::Empty { .. }));
        assert!(matches!(open_error(b"src,dst,time\n"), FileError::MissingColumn { column, found, .. }
            if column == "ts" && found == "src, dst, time"));
        assert!(
            matches!(open_error(b"src,dst,ts,src\n"), FileError::DuplicateColumn { column, .. } if column == "src")
        );
        assert!(
            matches!(open_error(b"src,dst,ts,f0,f2\n"), FileError::MissingColumn { column, .. } if column == "f1")
        );
        assert!(matches!(CsvReader::open(Path::new("/nonexistent/x.csv")), Err(FileError::Open { .. })));
        assert!(matches!(CsvReader::open(&std::env::temp_dir()), Err(FileError::Open { .. })));
        assert!(read(b"src,dst,ts\n").is_empty(), "a header alone is an empty stream");
    }

    #[test]
    fn a_bad_row_names_line_column_and_value_and_the_next_row_is_read() {
        let cases: &[(&str, &str, &str)] = &[
            (",2,3,0", "src", ""),
            ("1,,3,0", "dst", ""),
            ("1,2,,0", "ts", ""),
            ("1,2,3.5,0", "ts", "3.5"),
            ("1,2,1e9,0", "ts", "1e9"),
            ("1,2,9223372036854775808,0", "ts", "9223372036854775808"),
            ("1,2,nan,0", "ts", "nan"),
            ("1,2,3,NaN", "f0", "NaN"),
            ("1,2,3,inf", "f0", "inf"),
            ("1,2,3,-1e39", "f0", "-1e39"),
            ("1,2,3,x", "f0", "x"),
        ];
        for &(row, bad_column, bad_value) in cases {
            let rows = read(format!("src,dst,ts,f0\n1,2,3,4\n{row}\n5,6,7,8\n").as_bytes());
            assert_eq!(rows.len(), 3, "{row}");
            assert!(rows[0].is_ok() && rows[2].is_ok(), "{row}");
            let error = rows[1].as_ref().unwrap_err();
            assert!(error.is_row(), "{error}");
            let FileError::Value { line: 3, column, value, .. } = error else { panic!("{row}: {error}") };
            assert_eq!((column.as_str(), value.as_str()), (bad_column, bad_value));
        }
    }

    #[test]
    fn partly_empty_features_and_bad_labels_are_refused() {
        assert!(matches!(&read(b"src,dst,ts,f0,f1\n1,2,3,4,\n")[0],
            Err(FileError::Value { column, .. }) if column == "f1"));
        assert!(matches!(&read(b"src,dst,ts,label\n1,2,3,yes\n")[0],
            Err(FileError::Value { column, value, .. }) if column == "label" && value == "yes"));
    }

    #[test]
    fn ragged_and_non_utf8_rows_are_refused_alone() {
        let rows = read(b"src,dst,ts\n1,2\n1,2,3,4\n\xff\xfe,2,3\n5,6,7\n");
        assert!(matches!(&rows[0], Err(FileError::Ragged { line: 2, expected: 3, found: 2, .. })));
        assert!(matches!(&rows[1], Err(FileError::Ragged { line: 3, expected: 3, found: 4, .. })));
        assert!(matches!(&rows[2], Err(FileError::Encoding { line: 4, .. })));
        assert_eq!(rows[3].as_ref().unwrap().src, NodeKey::Int(5));
        assert_eq!(rows.len(), 4);
    }

    #[test]
    fn a_cut_off_gzip_file_gives_its_whole_rows_and_then_one_error() {
        let mut text = String::from("src,dst,ts\n");
        for i in 0..20_000_i64 {
            text.push_str(&format!("{},{},{i}\n", i * 7919 % 10_007, i * 104_729 % 9_973));
        }
        let whole = gzip(text.as_bytes());
        for cut in [whole.len() / 2, whole.len() - 4] {
            let rows = read(&whole[..cut]);
            let (last, complete) = rows.split_last().unwrap();
            assert!(complete.len() > 1000 && complete.iter().all(Result::is_ok), "cut at {cut}");
            let error = last.as_ref().unwrap_err();
            assert!(matches!(error, FileError::Gzip { line, .. } if *line > 1000), "{error}");
            assert!(!error.is_row());
        }
    }

    #[test]
    fn wide_rows_are_those_that_are_read_one_by_one() {
        let columns: String = (0..WIDE).map(|i| format!(",f{i}")).collect();
        let mut text = format!("src,dst,ts{columns}\n");
        let rows = 2 * BLOCK_ROWS + 3;
        for i in 0..rows {
            let value = |j: usize| if (i, j) == (BLOCK_ROWS, 5) { "x".into() } else { format!("{i}.{j}") };
            let values: Vec<String> = (0..if i == 300 { WIDE - 1 } else { WIDE }).map(value).collect();
            text.push_str(&format!("{i},b,{i},{}\n", values.join(",")));
        }
        let file = file(text.as_bytes());
        let mut reader = CsvReader::open(file.path()).unwrap();
        for i in 0..rows {
            let read = reader.next().unwrap();
            let (mut text, place) = (String::new(), reader.place().1);
            reader.add_row_text(&mut text);
            assert!(text.starts_with(&format!("{i},b,{i},{i}.0,")), "{text}");
            assert_eq!(place, i as u64 + 2);
            match (i, read) {
                (BLOCK_ROWS, Err(FileError::Value { line, column, .. })) => {
                    assert_eq!((line, column.as_str()), (place, "f5"));
                }
                (300, Err(FileError::Ragged { line, .. })) => assert_eq!(line, place),
                (_, read) => {
                    let event = read.unwrap();
                    assert_eq!((event.src, event.features.len()), (NodeKey::Int(i as i64), WIDE));
                    assert_eq!(event.features[1], format!("{i}.1").parse::<f32>().unwrap());
                }
            }
        }
        assert!(reader.next().is_none() && reader.next().is_none());
    }

    #[test]
    fn long_rows_end_a_block_and_keep_no_memory() {
        let columns: String = (0..WIDE).map(|i| format!(",f{i}")).collect();
        let (name, zeros) = ("n".repeat(BLOCK_BYTES), ",0".repeat(WIDE));
        let mut text = format!("src,dst,ts{columns}\n");
        (0..4).for_each(|i| text.push_str(&format!("{name}{i},b,{i}{zeros}\n")));
        let file = file(text.as_bytes());
        let mut reader = CsvReader::open(file.path()).unwrap();
        for i in 0..4 {
            let event = reader.next().unwrap().unwrap();
            assert_eq!((event.time, reader.count), (EventTime(i), 1));
        }
        assert!(reader.next().is_none());
    }

    #[test]
    fn a_quote_that_is_never_closed_is_refused_instead_of_collected() {
        let mut bytes = b"src,dst,ts\n1,2,3\n\"".to_vec();
        while bytes.len() < table::ROW_BYTES_MAX + (1 << 17) {
            bytes.extend_from_slice(b"1,2,3\n");
        }
        let rows = read(&gzip(&bytes));
        assert_eq!(rows.len(), 2);
        assert!(rows[0].is_ok());
        assert!(matches!(&rows[1], Err(FileError::LongRow { .. })));
    }

    #[test]
    fn columns_of_other_files_are_read_in_the_order_asked() {
        let pairs = file(b"neg_src,neg_dst\n1,2\nx,y\n");
        assert_eq!(read_columns(pairs.path(), ["neg_dst", "neg_src"]).unwrap(), [["2", "1"], ["y", "x"]]);
        assert!(matches!(read_columns(pairs.path(), ["node"]), Err(FileError::MissingColumn { .. })));
        let hole = file(b"node\n1\n\"\"\n");
        assert!(matches!(read_columns(hole.path(), ["node"]), Err(FileError::Value { line: 3, .. })));
    }
}
