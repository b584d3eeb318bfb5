//! The data directory of a stopped daemon, for commands that change it. What a command run by root writes there belongs
//! to the directory's owner afterwards: a daemon that runs as another user could not read it, and would begin to learn
//! anew.

use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, openat};
use rustix::process::geteuid;

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
    expect_data_directory(&dir)?;
    Ok(Stopped { store: Store::open(config).context("the daemon must be stopped")?, dir })
}

/// Refuses a folder in which no daemon has kept anything.
///
/// # Errors
/// It is one.
pub fn expect_data_directory(dir: &Path) -> Result<()> {
    let made = dir.join("catalog.sqlite").exists();
    ensure!(made, "{} is not a data directory; --data must be the daemon's data.dir", dir.display());
    Ok(())
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
            let advice = format!("run `chown -R --reference={dir}/. {dir}/`");
            // Commands have no log.
            let _ = writeln!(
                io::stderr(),
                "warning: what root wrote could not be given to the owner of {dir}, who could not read it: {error}; \
                 {advice}"
            );
        }
    }
}

/// Gives the files and folders that root has in `dir` to the owner of `dir`, if root is who runs this and that is
/// somebody else. Never by way of a link, and no file with several names, which that owner could have made of files of
/// others.
fn give_to_owner(dir: &Path) -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    // The operator names it, by a link too.
    let within = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let owner = fstat(&within)?;
    if owner.st_uid == ROOT {
        return Ok(());
    }
    let (uid, gid) = (Some(Uid::from_raw(owner.st_uid)), Some(Gid::from_raw(owner.st_gid)));
    let mut folders = vec![within];
    while let Some(folder) = folders.pop() {
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            // The last is the file system's own.
            if matches!(name.to_bytes(), b"." | b".." | b"lost+found") {
                continue;
            }
            // Held, so that it is what is looked at, and what is given away.
            let held =
                openat(&folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            let facts = fstat(&held)?;
            let kind = FileType::from_raw_mode(facts.st_mode);
            let is_own =
                kind == FileType::Directory || (kind == FileType::RegularFile && facts.st_nlink == 1);
            if !is_own || facts.st_dev != owner.st_dev {
                continue;
            }
            if facts.st_uid == ROOT {
                chownat(&held, c"", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            if kind == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                folders.push(openat(&held, c".", flags, Mode::empty())?);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, symlink};

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
        // By way of a link to it, as an operator may have one.
        let link = outside.path().with_extension("link");
        symlink(data.path(), &link).unwrap();
        give_to_owner(&link).unwrap();
        fs::remove_file(&link).unwrap();
        assert_eq!(owned(&file), (65_534, 65_533));
        assert_eq!(owned(&data.path().join("checkpoints")), (65_534, 65_533));
        assert_eq!(owned(outside.path()), (0, 0));
    }
}
