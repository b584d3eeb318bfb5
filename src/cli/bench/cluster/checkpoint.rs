//! What ranks go on from: a file that rank 0 writes and reads, and gives to the others. Its first line says of which
//! run it is.

use std::fs::File;
use std::io::{BufRead, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::device::exchange::{Exchange, broadcast};
use crate::train::{Trainer, TrainerOptions};

/// What the number of steps counts: the same in every run that goes on from a file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub events: usize,
    pub batch_events: u32,
    pub seed: u64,
}

/// What rank 0 finds at `path`, or a trainer that has learned nothing where there is no file.
pub fn restored(
    path: &Path,
    (place, options): (&Place, TrainerOptions),
    exchange: &mut dyn Exchange,
) -> Result<Trainer> {
    let mut saved = Vec::new();
    if exchange.rank() == 0 {
        match std::fs::read(path) {
            Ok(found) => saved = found,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
        ensure!(!saved.is_empty() || !path.exists(), "{} is empty; remove it to begin again", path.display());
    }
    broadcast(exchange, &mut saved)?;
    if saved.is_empty() {
        return Ok(Trainer::new(options, &Device::Cpu)?);
    }
    read(&saved, place, options).with_context(|| path.display().to_string())
}

fn read(mut saved: &[u8], place: &Place, options: TrainerOptions) -> Result<Trainer> {
    let mut line = Vec::new();
    saved.read_until(b'\n', &mut line)?;
    let found: Place = serde_json::from_slice(&line).context("it is no checkpoint of ranks")?;
    ensure!(
        found == *place,
        "it is of another run ({found:?}, this one is {place:?}); remove it to begin again"
    );
    Ok(Trainer::load(options, &Device::Cpu, &mut saved)?)
}

/// Replaces the file at `path` by what the trainer has learned; whoever reads it finds all of it or all of the one
/// before.
pub fn keep(path: &Path, place: &Place, trainer: &Trainer) -> Result<()> {
    let mut bytes = serde_json::to_vec(place)?;
    bytes.push(b'\n');
    trainer.save(&mut bytes)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let beside = Path::new(&name);
    let written = File::create(beside).and_then(|mut file| {
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(beside, path)?;
        // The folder, so that the name survives as well.
        path.canonicalize()?.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    });
    if written.is_err() {
        _ = std::fs::remove_file(beside);
    }
    written.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_of_one_run() {
        let folder = tempfile::tempdir().unwrap();
        let (path, options) = (folder.path().join("kept"), TrainerOptions::default());
        let place = Place { events: 10, batch_events: 5, seed: 1 };
        keep(&path, &place, &Trainer::new(options, &Device::Cpu).unwrap()).unwrap();
        let saved = std::fs::read(&path).unwrap();
        assert_eq!(read(&saved, &place, options).unwrap().steps(), 0);
        let other = read(&saved, &Place { seed: 2, ..place }, options).err().unwrap();
        assert!(other.to_string().contains("another run"), "{other}");
        for damaged in [&saved[..5], &saved[..saved.len() - 1], b"", b"nonsense\n"] {
            assert!(read(damaged, &Place { events: 10, batch_events: 5, seed: 1 }, options).is_err());
        }
        let nowhere =
            keep(&folder.path().join("no/folder"), &place, &Trainer::new(options, &Device::Cpu).unwrap());
        assert!(format!("{:#}", nowhere.unwrap_err()).contains("no/folder"));
    }
}
