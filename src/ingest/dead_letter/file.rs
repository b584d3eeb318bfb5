//! Dead letters as JSON lines, one object a line, with the bytes as text where they are UTF-8 and in
//! base64 where they are not. The file is rotated by size (`dead.jsonl` becomes `dead.1.jsonl`, that
//! `dead.2.jsonl`, …) and bounded: the oldest file is removed with a warning.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use serde::Serialize;

use super::{DeadLetter, DeadLetterError};

/// Where and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterFileOptions {
    /// The file that is written.
    pub path: PathBuf,
    /// It is rotated before it grows above this many bytes.
    pub max_bytes: u64,
    /// So many files are kept, the written one included; at least 1.
    pub max_files: usize,
}

impl DeadLetterFileOptions {
    /// 64 MiB a file; the written one and three older ones.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), max_bytes: 64 << 20, max_files: 4 }
    }
}

pub(super) struct FileSink {
    options: DeadLetterFileOptions,
    /// The file and its length; `None` after a failure, so that the next delivery opens it anew.
    open: Option<(File, u64)>,
    lines: Vec<u8>,
}

/// A dead letter as written.
#[derive(Serialize)]
struct Line<'a> {
    reason: &'static str,
    detail: &'a str,
    source: &'a str,
    partition: i32,
    offset: i64,
    received_unix_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(&'a str, Option<String>)>,
}

impl FileSink {
    pub(super) fn open(options: DeadLetterFileOptions) -> Result<Self, DeadLetterError> {
        let fail = |source| DeadLetterError::File { path: options.path.clone(), source };
        let open = Some(open_at_end(&options.path).map_err(fail)?);
        Ok(Self { options, open, lines: Vec::new() })
    }

    /// Appends the letters and makes them durable.
    pub(super) fn deliver(&mut self, letters: &[DeadLetter]) -> Result<(), DeadLetterError> {
        self.lines.clear();
        for letter in letters {
            write_line(letter, &mut self.lines);
        }
        self.append().map_err(|source| DeadLetterError::File { path: self.options.path.clone(), source })
    }

    fn append(&mut self) -> std::io::Result<()> {
        let more = self.lines.len() as u64;
        let (mut file, mut bytes) = match self.open.take() {
            Some(open) => open,
            None => open_at_end(&self.options.path)?,
        };
        if bytes > 0 && bytes + more > self.options.max_bytes {
            drop(file);
            self.rotate()?;
            (file, bytes) = open_at_end(&self.options.path)?;
        }
        if let Err(error) = file.write_all(&self.lines).and_then(|()| file.sync_data()) {
            // A torn line would spoil the next one. If it cannot be cut off, opening the file ends it.
            let _ = file.set_len(bytes);
            return Err(error);
        }
        self.open = Some((file, bytes + more));
        Ok(())
    }

    /// Makes way for a new file: every file takes the next number. Stops at the first free number, so that
    /// an attempt that was cut short is finished by the next one instead of costing another file.
    fn rotate(&self) -> std::io::Result<()> {
        let path = |number: usize| match number {
            0 => self.options.path.clone(),
            _ => numbered(&self.options.path, number),
        };
        let oldest = self.options.max_files.max(1) - 1;
        let last = (0..=oldest).find(|&number| !path(number).exists()).unwrap_or_else(|| {
            tracing::warn!(
                file = %path(oldest).display(),
                "removing the oldest dead letters; raise ingest.dead_letter_file_bytes_max to keep more"
            );
            oldest
        });
        if last == oldest && path(oldest).exists() {
            fs::remove_file(path(oldest))?;
        }
        for number in (1..=last).rev() {
            fs::rename(path(number - 1), path(number))?;
        }
        Ok(())
    }
}

/// `dead.jsonl` as `dead.3.jsonl`.
pub(super) fn numbered(path: &Path, number: usize) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}.{number}{extension}"))
}

/// Opens for appending; a last line torn by a crash is ended, so that the next one stands alone.
fn open_at_end(path: &Path) -> std::io::Result<(File, u64)> {
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let mut bytes = file.metadata()?.len();
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
    }
    Ok((file, bytes))
}

fn write_line(letter: &DeadLetter, out: &mut Vec<u8>) {
    let (key, key_base64) = text_or_base64(letter.key.as_deref());
    let (payload, payload_base64) = text_or_base64(letter.payload.as_deref());
    let line = Line {
        reason: letter.rejection.reason.as_str(),
        detail: &letter.rejection.detail,
        source: &letter.source,
        partition: letter.partition,
        offset: letter.offset,
        received_unix_ms: letter.received_unix_ms,
        key,
        key_base64,
        payload,
        payload_base64,
        headers: letter
            .headers
            .iter()
            .map(|(name, value)| {
                (name.as_str(), value.as_ref().map(|v| String::from_utf8_lossy(v).into_owned()))
            })
            .collect(),
    };
    // Texts and numbers into memory: there is nothing that can fail.
    if serde_json::to_writer(&mut *out, &line).is_ok() {
        out.push(b'\n');
    }
}

fn text_or_base64(bytes: Option<&[u8]>) -> (Option<&str>, Option<String>) {
    match bytes.map(|b| (b, std::str::from_utf8(b))) {
        None => (None, None),
        Some((_, Ok(text))) => (Some(text), None),
        Some((bytes, Err(_))) => (None, Some(base64::engine::general_purpose::STANDARD.encode(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::letter;
    use super::*;

    #[test]
    fn letters_come_back_whole_whatever_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let options = DeadLetterFileOptions::new(dir.path().join("deep/er/dead.jsonl"));
        let mut sink = FileSink::open(options.clone()).unwrap();
        sink.deliver(&[letter(b"{\"src\":\"a\n\"}"), letter(&[0xff, 0, b'\n'])]).unwrap();
        let text = std::fs::read_to_string(&options.path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["payload"], "{\"src\":\"a\n\"}");
        assert_eq!(lines[0]["reason"], "bad_id");
        assert_eq!(lines[0]["offset"], 41);
        assert_eq!(lines[0]["headers"][0][1], "abc");
        assert_eq!(lines[1]["payload_base64"], "/wAK");
        assert!(lines[1].get("payload").is_none());
    }

    #[test]
    fn files_rotate_by_size_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = DeadLetterFileOptions::new(dir.path().join("dead.jsonl"));
        options.max_files = 3;
        options.max_bytes = 600;
        let mut sink = FileSink::open(options.clone()).unwrap();
        for _ in 0..20 {
            sink.deliver(&[letter(b"x"), letter(b"y")]).unwrap();
        }
        let mut names: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["dead.1.jsonl", "dead.2.jsonl", "dead.jsonl"]);
        for name in names {
            let bytes = std::fs::metadata(dir.path().join(&name)).unwrap().len();
            assert!(bytes > 0 && bytes <= 600, "{name} has {bytes} bytes");
        }
    }

    #[test]
    fn a_rotation_that_fails_costs_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = DeadLetterFileOptions::new(dir.path().join("dead.jsonl"));
        options.max_files = 3;
        options.max_bytes = 200;
        let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        std::fs::write(dir.path().join("dead.1.jsonl"), "one\n").unwrap();
        std::fs::write(dir.path().join("dead.2.jsonl"), "two\n").unwrap();
        let mut sink = FileSink::open(options.clone()).unwrap();
        sink.deliver(&[letter(b"x")]).unwrap();
        // The rotation was done before, and the new file could not be opened.
        sink.rotate().unwrap();
        sink.open = None;
        let rotated = (text("dead.1.jsonl"), text("dead.2.jsonl"));
        assert!(rotated.0.contains("bad_id") && rotated.1 == "one\n", "{rotated:?}");
        sink.rotate().unwrap();
        sink.deliver(&[letter(b"y")]).unwrap();
        assert_eq!((text("dead.1.jsonl"), text("dead.2.jsonl")), rotated);
        // A rotation that ended half-way is finished.
        std::fs::rename(dir.path().join("dead.1.jsonl"), dir.path().join("elsewhere")).unwrap();
        sink.deliver(&[letter(b"z")]).unwrap();
        assert!(text("dead.1.jsonl").contains("\"y\"") && text("dead.jsonl").contains("\"z\""));
        assert_eq!(text("dead.2.jsonl"), "one\n");
    }

    #[test]
    fn a_torn_line_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let options = DeadLetterFileOptions::new(dir.path().join("dead.jsonl"));
        std::fs::write(&options.path, b"{\"reason\":\"ba").unwrap();
        FileSink::open(options.clone()).unwrap().deliver(&[letter(b"x")]).unwrap();
        let text = std::fs::read_to_string(&options.path).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(text.lines().nth(1).unwrap()).is_ok());
    }
}
