//! Dead letters as they are read back from their file and the older ones beside it, and which of them were sent again.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use xxhash_rust::xxh3::Xxh3;

use super::file::{DeadLetterFileOptions, numbered};
use super::{DeadLetter, DeadLetterError};
use crate::ingest::rejection::{Reason, Rejection};

/// Name of the file beside the letters with the ids of those that were sent again, one a line.
const REPLAYED: &str = "replayed";

/// A letter in the file.
#[derive(Clone, Debug)]
pub struct KeptLetter {
    /// Names it: a hash of its origin and its bytes, as 16 hexadecimal digits.
    pub id: String,
    /// The letter.
    pub letter: DeadLetter,
    /// Whether it was sent again.
    pub replayed: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub struct KeptLetters {
    /// Oldest first. One that was delivered twice stands there once.
    pub letters: Vec<KeptLetter>,
    /// Lines that are no letters, such as one torn by a crash.
    pub damaged: usize,
}

#[derive(Deserialize)]
struct Line {
    reason: String,
    detail: String,
    source: String,
    partition: i32,
    offset: i64,
    received_unix_ms: i64,
    key: Option<String>,
    key_base64: Option<String>,
    payload: Option<String>,
    payload_base64: Option<String>,
    #[serde(default)]
    headers: Vec<(String, Option<String>)>,
}

impl KeptLetters {
    /// Reads all files. The daemon may be running.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(options: &DeadLetterFileOptions) -> Result<Self, DeadLetterError> {
        let mut found = Self::default();
        let mut seen = HashSet::new();
        let replayed = replayed(options)?;
        for number in (0..options.max_files.max(1)).rev() {
            let path = if number == 0 { options.path.clone() } else { numbered(&options.path, number) };
            let fail = |source| DeadLetterError::Read { path: path.clone(), source };
            let file = match fs::File::open(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.map_err(fail)?,
            };
            for line in BufReader::new(file).split(b'\n') {
                let line = line.map_err(fail)?;
                let Some(letter) = letter(&line) else {
                    found.damaged += usize::from(!line.is_empty());
                    continue;
                };
                let id = id(&letter);
                if seen.insert(id.clone()) {
                    let replayed = replayed.contains(&id);
                    found.letters.push(KeptLetter { id, letter, replayed });
                }
            }
        }
        Ok(found)
    }

    /// Notes durably that these letters were sent again, besides those that are noted; letters that are not in the
    /// files any more are forgotten.
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn note_replayed(
        &mut self,
        options: &DeadLetterFileOptions,
        ids: &[String],
    ) -> Result<(), DeadLetterError> {
        let ids: HashSet<&String> = ids.iter().collect();
        for letter in &mut self.letters {
            letter.replayed |= ids.contains(&letter.id);
        }
        let path = note_of(options);
        let lines: String =
            self.letters.iter().filter(|kept| kept.replayed).map(|kept| format!("{}\n", kept.id)).collect();
        let written = path.with_extension("tmp");
        let write = || {
            let mut file = fs::File::create(&written)?;
            file.write_all(lines.as_bytes())?;
            file.sync_all()?;
            fs::rename(&written, &path)
        };
        write().map_err(|source| DeadLetterError::File { path: path.clone(), source })
    }
}

fn note_of(options: &DeadLetterFileOptions) -> PathBuf {
    options.path.parent().unwrap_or_else(|| Path::new("")).join(REPLAYED)
}

fn replayed(options: &DeadLetterFileOptions) -> Result<HashSet<String>, DeadLetterError> {
    let path = note_of(options);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(HashSet::new()),
        Err(source) => Err(DeadLetterError::Read { path, source }),
    }
}

fn letter(line: &[u8]) -> Option<DeadLetter> {
    let line: Line = serde_json::from_slice(line).ok()?;
    let bytes = |text: Option<String>, base64: Option<String>| match (text, base64) {
        (Some(text), _) => Some(Some(text.into_bytes())),
        (None, Some(base64)) => STANDARD.decode(base64).ok().map(Some),
        (None, None) => Some(None),
    };
    let reason = Reason::ALL.into_iter().find(|reason| reason.as_str() == line.reason)?;
    Some(DeadLetter {
        source: line.source.into(),
        partition: line.partition,
        offset: line.offset,
        key: bytes(line.key, line.key_base64)?,
        payload: bytes(line.payload, line.payload_base64)?,
        headers: line
            .headers
            .into_iter()
            .map(|(name, value)| (name, value.map(String::into_bytes)))
            .collect(),
        rejection: Rejection::new(reason, line.detail),
        received_unix_ms: line.received_unix_ms,
    })
}

fn id(letter: &DeadLetter) -> String {
    let mut hash = Xxh3::new();
    hash.update(letter.source.as_bytes());
    hash.update(&letter.partition.to_le_bytes());
    hash.update(&letter.offset.to_le_bytes());
    hash.update(&letter.received_unix_ms.to_le_bytes());
    hash.update(letter.payload.as_deref().unwrap_or_default());
    format!("{:016x}", hash.digest())
}

#[cfg(test)]
mod tests {
    use super::super::file::FileSink;
    use super::super::tests::letter;
    use super::*;

    #[test]
    fn letters_are_read_back_from_all_files_once_and_what_was_replayed_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = DeadLetterFileOptions::new(folder.path().join("dead.jsonl"));
        assert!(KeptLetters::read(&options).unwrap().letters.is_empty(), "no file yet");
        (options.max_bytes, options.max_files) = (300, 5);
        let mut sink = FileSink::open(options.clone()).unwrap();
        let sent: Vec<DeadLetter> = [&b"{\"src\":1}"[..], &[0xff, 0, b'\n'], b"x"].map(letter).to_vec();
        for one in &sent {
            sink.deliver(std::slice::from_ref(one)).unwrap();
        }
        // Delivered twice, as after a crash; and a line that a crash has torn.
        sink.deliver(&sent[2..]).unwrap();
        fs::write(numbered(&options.path, 4), "{\"reason\":\"bad\n").unwrap();
        let mut kept = KeptLetters::read(&options).unwrap();
        assert_eq!(kept.damaged, 1);
        assert_eq!(kept.letters.iter().map(|kept| kept.letter.clone()).collect::<Vec<_>>(), sent);
        let ids: Vec<String> = kept.letters.iter().map(|kept| kept.id.clone()).collect();
        assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 16));
        kept.note_replayed(&options, &ids[..1]).unwrap();
        kept.note_replayed(&options, &ids[2..]).unwrap();
        let again = KeptLetters::read(&options).unwrap();
        assert_eq!(again.letters.iter().map(|kept| kept.replayed).collect::<Vec<_>>(), [true, false, true]);
    }
}
