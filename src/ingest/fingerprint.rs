//! Identifies files of one name by how they begin, so that a position kept for one is never taken for a
//! position in another.
//!
//! A [`Fingerprint`] holds a hash of the first 1, 2, 4, 8, … data lines, each with the header before them if there is
//! one, within the first [`BEGINNING_BYTES`] of the text (after decompression). A file that was only added to
//! keeps every hash it had, whatever its length was; so whoever kept something under one of the hashes finds
//! it again by asking for them from the longest to the shortest. A short file is known by the power of two
//! below its number of lines: five lines by the first four.
//!
//! Two files of one name are taken for the same only if they agree in that many lines, and a file that was
//! cut to fewer is another file. Parquet has no lines, and at its end stands what is in it: such a file is known by its
//! length and its end, and nobody adds to one.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::csv::table::open_text;
use super::file_error::FileError;
use super::rows::{PARQUET_ENDING, is_lines};

/// Bytes of a file's text that are read.
const BEGINNING_BYTES: u64 = 64 << 10;

/// How a file begins; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    name: String,
    /// Number of data lines and hash, from few lines to many, or length and hash; never empty.
    hashes: Vec<(u64, u64)>,
}

impl Fingerprint {
    /// Reads the beginning of a text file, plain or gzip, or the end of a Parquet file.
    ///
    /// # Errors
    /// When the file cannot be opened or read.
    pub fn of(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Read { path: path.to_path_buf(), line: 0, source };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(PARQUET_ENDING) {
            return Ok(Self { name, hashes: vec![end(path).map_err(failed)?] });
        }
        let mut text = Vec::new();
        let (_, input) = open_text(path)?;
        // One byte more shows whether the last line ends here.
        input.take(BEGINNING_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
        let is_whole = text.len() as u64 <= BEGINNING_BYTES;
        let hashes = hashes(&text, is_whole, !is_lines(path));
        Ok(Self { name, hashes })
    }

    /// The file's name with each hash, from many lines to few.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.hashes.iter().rev().map(|(lines, hash)| format!("{}#{lines}-{hash:016x}", self.name))
    }

    /// The file's name with the hash that it keeps however it is added to or cut: that of its first line.
    #[must_use]
    pub fn first(&self) -> String {
        self.names().last().unwrap_or_default()
    }
}

/// The length of a file, and a hash of its end.
fn end(path: &Path) -> io::Result<(u64, u64)> {
    let mut file = File::open(path)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(BEGINNING_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(BEGINNING_BYTES).read_to_end(&mut bytes)?;
    Ok((length, xxh3_64(&bytes)))
}

fn hashes(text: &[u8], is_whole: bool, has_header: bool) -> Vec<(u64, u64)> {
    let mut lines: Vec<&[u8]> = text.split(|&b| b == b'\n').collect();
    if !is_whole && lines.len() > 2 {
        // The rest of it is further back.
        lines.pop();
    }
    let mut hash = Xxh3::new();
    let mut lines = lines.into_iter().map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let mut add = |line: &[u8]| {
        hash.update(line);
        hash.update(b"\n");
        hash.digest()
    };
    let mut hashes = if has_header { vec![(0, add(lines.next().unwrap_or_default()))] } else { Vec::new() };
    for (number, line) in (1_u64..).zip(lines) {
        let hash = add(line);
        if number.is_power_of_two() {
            hashes.push((number, hash));
        }
    }
    match hashes.len() {
        0 => hashes.push((0, 0)),
        // A header alone does not identify the rows to come.
        2.. if has_header => drop(hashes.remove(0)),
        _ => {}
    }
    hashes
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.csv");
        std::fs::write(&path, text).unwrap();
        let found = Fingerprint::of(&path).unwrap();
        assert_eq!(found.first(), found.names().last().unwrap());
        found.names().collect()
    }

    fn rows(n: u64) -> String {
        (0..n).fold("src,dst,ts\n".to_owned(), |text, i| text + &format!("a,b,{i}\n"))
    }

    #[test]
    fn a_file_that_grows_keeps_its_names() {
        let mut before: Vec<String> = Vec::new();
        for n in [1, 2, 3, 5, 6, 100, 5_000, 50_000] {
            let now = names(&rows(n));
            assert!(now.ends_with(&before), "{n}: {now:?} after {before:?}");
            before = now;
        }
        assert_eq!(before.len(), 13, "4,096 lines and not more are in the beginning: {before:?}");
        assert!(before[0].starts_with("events.csv#4096-"), "{before:?}");
        assert_eq!(
            names("src,dst,ts\r\n\r\na,b,0"),
            names("src,dst,ts\na,b,0\n"),
            "ends of lines do not matter"
        );
        // Neither does a first line that is longer than what is read.
        let long = format!("src,dst,ts\n{}", "x".repeat(100_000));
        assert_eq!(names(&long), names(&(long.clone() + "y\na,b,0\n")));
    }

    #[test]
    fn lines_of_json_have_no_header_and_parquet_no_lines() {
        let folder = tempfile::tempdir().unwrap();
        let names = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).unwrap();
            Fingerprint::of(&folder.path().join(name)).unwrap().names().collect::<Vec<_>>()
        };
        let (one, two) = (names("e.jsonl", b"{\"a\":1}\n"), names("e.jsonl", b"{\"a\":1}\n{\"a\":2}\n"));
        assert!(two.ends_with(&one) && two.len() == 2, "{two:?} after {one:?}");
        assert_ne!(one, names("e.jsonl", b"{\"a\":3}\n"));
        assert_eq!(names("e.jsonl", b"").len(), 1);
        let parquet = names("e.parquet", b"PAR1 rows, footer PAR1");
        assert_eq!(parquet.len(), 1);
        assert_ne!(parquet, names("e.parquet", b"PAR1 rows, fooler PAR1"));
        assert_ne!(parquet, names("e.parquet", b"PAR1  rows, footer PAR1"));
    }

    #[test]
    fn files_that_differ_have_no_name_in_common() {
        let day = |day: u64, n: u64| rows(n).replace("a,b,", &format!("a,b,{day}"));
        let first = names(&day(1, 100));
        assert!(names(&day(2, 100)).iter().all(|name| !first.contains(name)));
        let other_header = names(&rows(100).replace("src,dst", "dst,src"));
        assert!(names(&rows(100)).iter().all(|name| !other_header.contains(name)));
        assert_eq!(names("src,dst,ts\n").len(), 1);
    }

    #[test]
    fn compression_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.csv");
        let mut gzip =
            flate2::write::GzEncoder::new(std::fs::File::create(&path).unwrap(), flate2::Compression::fast());
        gzip.write_all(rows(100).as_bytes()).unwrap();
        gzip.finish().unwrap();
        let found: Vec<_> = Fingerprint::of(&path).unwrap().names().collect();
        assert_eq!(found, names(&rows(100)));
    }
}
