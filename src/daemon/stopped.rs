//! The data directory of a stopped daemon, for commands that change it. What a command run by root writes there belongs
//! to the directory's owner afterwards: a daemon that runs as another user could not read it, and would begin to learn
//! anew.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, openat, statat};

use super::Store;
use crate::config::Config;

const ROOT: u32 = 0;

/// A store that no daemon has open.
pub(super) struct Stopped {
    store: Store,
    dir: PathBuf,
}

/// The data directory of a stopped daemon.
///
/// # Errors
/// When there is none, or a daemon runs on it.
pub(super) fn open_stopped(config: &Config) -> Result<Stopped> {
    let dir = config.data.dir.clone();
    let made = dir.join("catalog.sqlite").exists();
    ensure!(made, "{} is not a data directory; --data must be the daemon's data.dir", dir.display());
    Ok(Stopped { store: Store::open(config).context("the daemon must be stopped")?, dir })
}

impl Deref for Stopped {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl DerefMut for Stopped {
    fn deref_mut(&mut self) -> &mut Store {
        &mut self.store
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Err(error) = give_to_owner(&self.dir) {
            let dir = self.dir.display();
            tracing::warn!(
                %error,
                "what root wrote could not be given to the owner of {dir}: run chown -R --reference={dir} {dir}"
            );
        }
    }
}

/// Gives the files and folders that root has in `dir` to the owner of `dir`, if that is somebody else. Never by way of a
/// link, which that owner could have made to lead to files of others.
fn give_to_owner(dir: &Path) -> io::Result<()> {
    let owner = fs::metadata(dir)?;
    if owner.uid() == ROOT {
        return Ok(());
    }
    let (uid, gid) = (Some(Uid::from_raw(owner.uid())), Some(Gid::from_raw(owner.gid())));
    let mut folders = vec![open_folder(CWD, dir.as_os_str().as_bytes())?];
    while let Some(folder) = folders.pop() {
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let facts = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = FileType::from_raw_mode(facts.st_mode);
            // A file with another name could be a file of others, too.
            let is_own =
                kind == FileType::Directory || (kind == FileType::RegularFile && facts.st_nlink == 1);
            if is_own && facts.st_uid == ROOT {
                chownat(&folder, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            if kind == FileType::Directory {
                folders.push(open_folder(&folder, name.to_bytes())?);
            }
        }
    }
    Ok(())
}

fn open_folder(within: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    openat(
        within,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn what_root_wrote_belongs_to_the_owner_of_the_folder() {
        let data = tempfile::tempdir().unwrap();
        if fs::metadata(data.path()).unwrap().uid() != ROOT {
            eprintln!("SKIPPED: only root can give files away");
            return;
        }
        let owned = |path: &Path| (fs::metadata(path).unwrap().uid(), fs::metadata(path).unwrap().gid());
        let file = data.path().join("checkpoints/1.checkpoint");
        fs::create_dir(data.path().join("checkpoints")).unwrap();
        fs::write(&file, "weights").unwrap();
        give_to_owner(data.path()).unwrap();
        assert_eq!(owned(&file), (0, 0), "a folder of root's stays root's");
        chown(data.path(), Some(65_534), Some(65_533)).unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        symlink(outside.path(), data.path().join("link")).unwrap();
        fs::hard_link(outside.path(), data.path().join("other name")).unwrap();
        give_to_owner(data.path()).unwrap();
        assert_eq!(owned(&file), (65_534, 65_533));
        assert_eq!(owned(&data.path().join("checkpoints")), (65_534, 65_533));
        assert_eq!(owned(outside.path()), (0, 0));
    }
}
