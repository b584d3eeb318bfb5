//! Reading through io_uring: many requests in flight from one thread, which is what fast disks are made for.
//!
//! Every thread that reads has a ring of its own, so several read side by side, and the kernel, which knows that
//! nobody else waits at a ring, wakes a thread once for all the completions that it waits for. The kernel writes into
//! the caller's buffer while the call runs. The one rule on which soundness stands: [`Flight`] holds the buffer's
//! exclusive borrow, counts every request that was handed in, and does not end, not by a return, an error or a
//! panic, before each of them was completed.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::time::Duration;

use super::runs::{Failed, Run};
use io_uring::{IoUring, Probe, opcode, types::Fd};

/// Most requests of one call that are in flight.
const DEPTH: usize = 128;
/// How often the kernel may ask to try one request again.
const TRIES: u32 = 1000;

thread_local! {
    /// This thread's ring, while no call uses it.
    static IDLE: Cell<Option<IoUring>> = const { Cell::new(None) };
}

/// The knowledge that this kernel has io_uring and lets us use it.
#[derive(Clone, Copy)]
pub(super) struct Uring(());

impl Uring {
    /// Tries one out.
    ///
    /// # Errors
    /// This kernel has no io_uring, or does not let us use it. Asked once per process.
    pub fn new() -> io::Result<Self> {
        static REFUSED: OnceLock<Option<(io::ErrorKind, String)>> = OnceLock::new();
        let refused = REFUSED.get_or_init(|| try_out().err().map(|error| (error.kind(), error.to_string())));
        match refused {
            Some((kind, text)) => Err(io::Error::new(*kind, format!("io_uring cannot be used: {text}"))),
            None => Ok(Self(())),
        }
    }

    /// Reads all `runs` into `into`; `None` when no ring could be had.
    pub fn read(self, file: &File, runs: &[Run], into: &mut [u8]) -> Option<Result<(), Failed>> {
        let ring = match IDLE.take() {
            Some(ring) => ring,
            None => make_ring().ok()?,
        };
        let mut flight = Flight::new(ring, file, into);
        let result = flight.read(runs);
        IDLE.set(flight.land());
        Some(result)
    }
}

fn make_ring() -> io::Result<IoUring> {
    // A completion then waits until this thread waits for it, instead of interrupting or waking it; new kernels only.
    let gentle = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(DEPTH as u32);
    gentle.or_else(|_| IoUring::new(DEPTH as u32))
}

/// Makes a ring, asks whether it reads, and sends one empty request through.
fn try_out() -> io::Result<()> {
    let mut ring = make_ring()?;
    let mut known = Probe::new();
    ring.submitter().register_probe(&mut known)?;
    if !known.is_supported(opcode::Read::CODE) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: an empty request touches no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    match ring.completion().next() {
        Some(completion) if completion.result() >= 0 => Ok(()),
        Some(completion) => Err(io::Error::from_raw_os_error(-completion.result())),
        None => Err(io::Error::other("no completion")),
    }
}

/// The requests of one call, from the first until the last is complete.
struct Flight<'a> {
    /// Taken when all has landed.
    ring: Option<IoUring>,
    file: &'a File,
    /// Begin and length of the buffer, which is borrowed as long as this lives.
    base: *mut u8,
    length: usize,
    buffer: PhantomData<&'a mut [u8]>,
    /// What each request in flight has still to read, and how often it was tried.
    open: Vec<(Run, u32)>,
    free: Vec<usize>,
    /// Requests handed to the ring that are not complete.
    unanswered: usize,
    /// How often in a row the kernel was too busy to take any.
    refusals: u32,
}

impl<'a> Flight<'a> {
    fn new(ring: IoUring, file: &'a File, into: &'a mut [u8]) -> Self {
        Self {
            ring: Some(ring),
            file,
            base: into.as_mut_ptr(),
            length: into.len(),
            buffer: PhantomData,
            open: vec![(Run::default(), 0); DEPTH],
            free: (0..DEPTH).collect(),
            unanswered: 0,
            refusals: 0,
        }
    }

    fn read(&mut self, runs: &[Run]) -> Result<(), Failed> {
        let mut coming = runs.iter();
        loop {
            while let Some(&number) = self.free.last() {
                let Some(&run) = coming.next() else { break };
                self.free.pop();
                self.open[number] = (run, 0);
                self.push(number)?;
            }
            if self.unanswered == 0 {
                return Ok(());
            }
            // Each waking costs a switch of threads: while more is to come a quarter of the places is filled at once,
            // and the last completions are waited for together.
            let wanted = if coming.len() > 0 { self.unanswered / 4 } else { self.unanswered };
            self.enter(wanted.max(1)).map_err(|source| Failed { run: self.any_open(), source })?;
            while let Some((number, completion)) = self.completion() {
                self.take(number, completion)?;
            }
        }
    }

    /// Hands request `number` to the ring.
    fn push(&mut self, number: usize) -> Result<(), Failed> {
        let (run, _) = self.open[number];
        assert!(run.at + run.bytes <= self.length, "a request beyond its buffer");
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let bytes = u32::try_from(run.bytes).unwrap_or(u32::MAX);
        // SAFETY: `at` lies within the buffer that `base` begins, by the assertion above.
        let target = unsafe { self.base.add(run.at) };
        let request = opcode::Read::new(Fd(self.file.as_raw_fd()), target, bytes).offset(run.offset).build();
        let request = request.user_data(number as u64);
        // SAFETY: `target` and the `bytes` after it are within a buffer that this flight borrows exclusively and
        // nobody touches meanwhile, and the file is open as long; the flight does not end before the completion.
        let pushed = unsafe { ring.submission().push(&request) };
        pushed.map_err(|full| Failed { run, source: io::Error::other(full) })?;
        self.unanswered += 1;
        Ok(())
    }

    /// Submits what was pushed and waits for `wanted` completions.
    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        let Some(ring) = &self.ring else { return Ok(()) };
        match ring.submit_and_wait(wanted) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            // The kernel is short of memory or of room for completions: taking those that are there helps.
            Err(error) if is_busy(&error) && self.refusals < TRIES => {
                self.refusals += 1;
                std::thread::sleep(Duration::from_micros(100));
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// The next completion that is there: the number of its request and its result.
    fn completion(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.as_mut()?.completion().next()?;
        self.unanswered -= 1;
        self.refusals = 0;
        Some((completion.user_data() as usize, completion.result()))
    }

    /// Acts on the completion to request `number`: done, go on, try again, or failed.
    fn take(&mut self, number: usize, completion: i32) -> Result<(), Failed> {
        let (run, tries) = &mut self.open[number];
        let outcome = match usize::try_from(completion) {
            Ok(got) => run.advance(got),
            Err(_) => Err(io::Error::from_raw_os_error(-completion)),
        };
        match outcome {
            Ok(true) => {
                self.free.push(number);
                Ok(())
            }
            Ok(false) => self.push(number),
            Err(error) if may_try_again(&error) && *tries < TRIES => {
                *tries += 1;
                self.push(number)
            }
            Err(source) => Err(Failed { run: *run, source }),
        }
    }

    fn any_open(&self) -> Run {
        let open = (0..DEPTH).find(|number| !self.free.contains(number));
        open.map_or_else(Run::default, |number| self.open[number].0)
    }

    /// Waits until every request is complete, and hands the ring on if it is as good as new.
    fn land(mut self) -> Option<IoUring> {
        self.wait_for_all();
        // What never left the ring dies with it.
        if self.unanswered == 0 { self.ring.take() } else { None }
    }

    /// Returns when the kernel will not touch the buffer any more, and not before.
    fn wait_for_all(&mut self) {
        loop {
            while self.completion().is_some() {}
            let untaken = self.ring.as_mut().map_or(0, |ring| ring.submission().len());
            if self.unanswered <= untaken {
                // What the kernel has not taken it never will: a ring with such a rest is not entered again.
                return;
            }
            if self.enter(1).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.wait_for_all();
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy)
}

fn may_try_again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
