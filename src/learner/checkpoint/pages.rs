//! The files of pages in a folder of checkpoints: how they are named, and which of them are of no use any more.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use parking_lot::Mutex;

use super::format::{self, Listed};
use super::{CheckpointError, UNFINISHED_SUFFIX};

/// What the name of a whole file of pages ends with.
pub const PAGES_SUFFIX: &str = ".pages";

/// Held while files get their final names and while files are removed: between the pages and the file that lists them,
/// the pages would look as if they were of no use.
pub(super) static NAMING: Mutex<()> = Mutex::new(());

/// Whether a file of pages may have this name, which leads out of no folder.
pub(super) fn is_name(name: &str) -> bool {
    let stem = name.strip_suffix(PAGES_SUFFIX).unwrap_or_default();
    !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// The bytes of a list; of a file that begins in another way, only its begin: it may be of any length.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (File::open(path)?, Vec::new());
    (&mut file).take(format::MAGIC.len() as u64).read_to_end(&mut bytes)?;
    if bytes.starts_with(format::MAGIC) {
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Bytes of a list that have its files of pages, unless there are hundreds. The pieces behind them are many.
const FILES_BYTES: u64 = 64 << 10;

/// What a file says of the files of pages that it refers to.
enum Referred {
    Names(Vec<String>),
    /// It is a list, and cannot be read.
    Damaged,
    /// It is no list.
    Nothing,
}

/// Reads no pieces, so the checksum is not looked at: a list that is damaged in these bytes is of no use, whatever is
/// taken for its pages.
fn referred(path: &Path) -> io::Result<Referred> {
    let (mut file, mut bytes) = (File::open(path)?, Vec::new());
    for more in [FILES_BYTES, u64::MAX] {
        (&mut file).take(more).read_to_end(&mut bytes)?;
        if !bytes.starts_with(format::MAGIC) {
            return Ok(Referred::Nothing);
        }
        if let Some(files) = format::files(&bytes) {
            return Ok(Referred::Names(files.into_iter().map(|file| file.name).collect()));
        }
    }
    Ok(Referred::Damaged)
}

/// The position that a name begins with.
fn position(name: &str) -> Option<u64> {
    name.split('.').next()?.parse().ok()
}

/// A name for new pages of a checkpoint of this position. None that was ever listed is given again while it is there.
pub(super) fn new_name(dir: &Path, position: u64) -> String {
    let mut names = (0_u64..).map(|number| format!("{position:020}.{number}{PAGES_SUFFIX}"));
    // There are fewer files than numbers.
    names.find(|name| !dir.join(name).exists()).unwrap_or_default()
}

/// What a checkpoint lists, and the checksum of its file. Reads no pages.
///
/// # Errors
/// When the file cannot be read or is damaged.
pub(super) fn list(path: &Path) -> Result<(Listed, u32), CheckpointError> {
    let bytes = read(path).map_err(|source| CheckpointError::Io { path: path.to_path_buf(), source })?;
    format::decode(&bytes).map_err(|detail| CheckpointError::Damaged { path: path.to_path_buf(), detail })
}

/// The files of pages that a checkpoint refers to.
///
/// # Errors
/// When the file cannot be read, or its begin is damaged. Neither its pieces nor the pages are looked at.
pub fn files(path: &Path) -> Result<Vec<String>, CheckpointError> {
    match referred(path).map_err(|source| CheckpointError::Io { path: path.to_path_buf(), source })? {
        Referred::Names(names) => Ok(names),
        Referred::Damaged | Referred::Nothing => {
            let detail = "it does not begin with a list of files".to_owned();
            Err(CheckpointError::Damaged { path: path.to_path_buf(), detail })
        }
    }
}

/// Removes the files of pages that no checkpoint in `dir` lists, whatever its name, and returns their names.
///
/// # Errors
/// When the folder or a file in it cannot be read. A damaged checkpoint may need any pages up to its position.
pub fn prune(dir: &Path) -> io::Result<Vec<String>> {
    let _naming = NAMING.lock();
    let (mut found, mut listed, mut uncertain) = (BTreeSet::new(), BTreeSet::new(), None);
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_name(&name) {
            found.insert(name);
        } else if !name.ends_with(UNFINISHED_SUFFIX) && entry.file_type()?.is_file() {
            match referred(&entry.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(Referred::Names(names)) => listed.extend(names),
                Ok(Referred::Damaged) => uncertain = uncertain.max(position(&name)),
                Ok(Referred::Nothing) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let mut gone: Vec<_> = found.difference(&listed).cloned().collect();
    gone.retain(|name| position(name) > uncertain);
    gone.iter().try_for_each(|name| std::fs::remove_file(dir.join(name)))?;
    Ok(gone)
}
