//! Reading with one system call per request, by several threads when there are many. Works everywhere.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;

use super::runs::{Failed, Run};

/// Requests that make another thread worth its start.
const RUNS_PER_THREAD: usize = 16;
/// Most threads of one call. They wait for the disk, not for a CPU.
const THREADS: usize = 16;

/// Reads all `runs`, in the order of the buffer, into `into`.
pub(super) fn read(file: &File, runs: &[Run], into: &mut [u8]) -> Result<(), Failed> {
    let threads = (runs.len() / RUNS_PER_THREAD).clamp(1, THREADS);
    let share = runs.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let mut started = Vec::new();
        let (mut rest, mut begin) = (into, 0);
        let mut result = Ok(());
        for (i, runs) in runs.chunks(share).enumerate() {
            let end = runs.last().map_or(begin, |run| run.at + run.bytes);
            let (mine, after) = rest.split_at_mut(end - begin);
            (rest, begin) = (after, end);
            if i + 1 == threads {
                result = read_each(file, runs, mine);
                break;
            }
            let work = move || read_each(file, runs, mine);
            match thread::Builder::new().name("spill-read".to_owned()).spawn_scoped(scope, work) {
                Ok(thread) => started.push(thread),
                Err(source) => {
                    result = Err(Failed { run: runs[0], source });
                    break;
                }
            }
        }
        for thread in started {
            let found = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(found);
        }
        result
    })
}

/// Reads `runs` one by one; `into` begins where the first of them does.
fn read_each(file: &File, runs: &[Run], into: &mut [u8]) -> Result<(), Failed> {
    let begin = runs.first().map_or(0, |run| run.at);
    for run in runs {
        let mut rest = *run;
        let done = loop {
            let bytes = &mut into[rest.at - begin..][..rest.bytes];
            match file.read_at(bytes, rest.offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
                Ok(got) => match rest.advance(got) {
                    Ok(false) => {}
                    Ok(true) => break Ok(()),
                    Err(error) => break Err(error),
                },
            }
        };
        done.map_err(|source| Failed { run: rest, source })?;
    }
    Ok(())
}
