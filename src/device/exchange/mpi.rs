//! [`Mpi`]: ranks that `mpiexec` has started, through Open MPI, which is found at run time as NVIDIA's driver is: no
//! library of MPI is needed to build the program or to start it alone.
//!
//! Only what Open MPI's own interface for compilers has fixed is called: a handle is the address of
//! an object of the library. Messages go from buffer to buffer, without blocking; a rank that waits looks again and
//! again, and lets others have its core between two looks, so that ranks may be more than cores and a lost one is
//! noticed.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

use super::{Exchange, ExchangeError, Message, Traffic};

/// Names of the library, the first that loads is used.
const NAMES: [&str; 2] = ["libmpi.so.40", "libmpi.so"];

/// Calls to the library may come from any thread, one at a time.
const SERIALIZED: c_int = 2;

/// Tags of MPI go as far as this at least; a message has the number of its round, so that rounds never mix.
const TAGS: u64 = 1 << 15;

/// The exit code of a rank that ends because another one is lost.
pub const LOST: i32 = 75;

/// Whether this process has been one of the ranks.
static JOINED: AtomicBool = AtomicBool::new(false);

/// After so many looks a rank lets others have its core between two.
const SPINS: u32 = 200;

/// After so long, it sleeps between two.
const YIELDS: Duration = Duration::from_millis(2);

/// Pauses between two looks of a rank that has waited long: so small a part of the time so far, within these bounds.
const PAUSE_PART: u32 = 200;
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// MPI that cannot be used.
#[derive(Debug, Error)]
pub enum MpiError {
    /// No library.
    #[error(
        "no library of Open MPI was found ({0}); install it (Debian: openmpi-bin) or add its folder to LD_LIBRARY_PATH"
    )]
    Library(libloading::Error),
    /// Another library.
    #[error("the library of MPI that was found is not Open MPI: {0}")]
    Foreign(libloading::Error),
    /// It was started in this process before.
    #[error("a process joins its ranks once")]
    Again,
    /// It does not start.
    #[error("{call} of MPI failed with code {code}")]
    Start {
        /// The function.
        call: &'static str,
        /// Its error code.
        code: c_int,
    },
    /// The library cannot be called by several threads in turn.
    #[error("Open MPI was built without support of threads (level {0}, {SERIALIZED} is needed)")]
    Threads(c_int),
}

type Handle = *mut c_void;

/// What came, as `mpi.h` of Open MPI lays it out.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Status {
    public: [c_int; 3],
    canceled: c_int,
    bytes: usize,
}

/// A function of the library.
macro_rules! function {
    ($($argument:ty),*) => {
        // SAFETY: a type calls nothing; each call has its own reason.
        unsafe extern "C" fn($($argument),*) -> c_int
    };
}

/// What is called of the library, with its objects.
struct Calls {
    world: Handle,
    byte: Handle,
    init: function!(*mut c_int, *mut c_void, c_int, *mut c_int),
    rank: function!(Handle, *mut c_int),
    size: function!(Handle, *mut c_int),
    on_error: function!(Handle, Handle),
    errors_return: Handle,
    send: function!(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle),
    receive: function!(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle),
    test: function!(c_int, *mut Handle, *mut c_int, *mut Status),
    finalize: function!(),
    count: function!(*const Status, Handle, *mut c_int),
    abort: function!(Handle, c_int),
}

/// How long a rank waits for the others in a round.
enum Patience<'a> {
    /// Not longer than this.
    Until(Duration),
    /// For any time; this is called from time to time.
    Endless(&'a dyn Fn()),
}

impl Patience<'_> {
    fn is_over(&self, waited: Duration) -> bool {
        match self {
            Self::Until(deadline) => waited > *deadline,
            Self::Endless(alive) => {
                alive();
                false
            }
        }
    }
}

/// One rank of those that `mpiexec` started.
pub struct Mpi {
    calls: Calls,
    rank: usize,
    ranks: usize,
    deadline: Duration,
    requests: Vec<Handle>,
    statuses: Vec<Status>,
    traffic: Traffic,
}

// SAFETY: the library was started so that any thread may send, receive and wait, one at a time, and what does so takes
// `&mut self`. The handles are addresses of objects of the library, which stays loaded.
unsafe impl Send for Mpi {}

impl Calls {
    fn load() -> Result<Self, MpiError> {
        // Open MPI's own plugins look for its symbols among the global ones.
        let open = |name: &&str| {
            // SAFETY: Open MPI's initialization of the library does nothing before `MPI_Init_thread`.
            unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_GLOBAL) }
        };
        let [first, other] = NAMES.each_ref();
        let library =
            open(first).or_else(|error| open(other).map_err(|_| error)).map_err(MpiError::Library)?;
        // It stays until the process ends: threads of MPI run in its code.
        let library = ManuallyDrop::new(library);
        macro_rules! symbol {
            ($name:literal) => {{
                // SAFETY: the type is that of `mpi.h` of Open MPI for this name; that the library is Open MPI, its
                // objects show, whose names no other library has, and which are looked up before anything is called.
                let found = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *found.map_err(MpiError::Foreign)?
            }};
        }
        Ok(Self {
            world: symbol!("ompi_mpi_comm_world"),
            byte: symbol!("ompi_mpi_byte"),
            errors_return: symbol!("ompi_mpi_errors_return"),
            init: symbol!("MPI_Init_thread"),
            rank: symbol!("MPI_Comm_rank"),
            size: symbol!("MPI_Comm_size"),
            on_error: symbol!("MPI_Comm_set_errhandler"),
            send: symbol!("MPI_Isend"),
            receive: symbol!("MPI_Irecv"),
            test: symbol!("MPI_Testall"),
            finalize: symbol!("MPI_Finalize"),
            count: symbol!("MPI_Get_count"),
            abort: symbol!("MPI_Abort"),
        })
    }
}

impl Mpi {
    /// This process as one of the ranks that `mpiexec` started, or as the only one. A round that lasts longer than
    /// `deadline` ends the process, and `mpiexec` the others. Once in the life of a process, on the thread that will
    /// [`leave`](Exchange::leave).
    ///
    /// # Errors
    /// There is no Open MPI, or it does not start.
    pub fn join(deadline: Duration) -> Result<Self, MpiError> {
        let calls = Calls::load()?;
        if JOINED.swap(true, Ordering::Relaxed) {
            return Err(MpiError::Again);
        }
        let started = |call, code| if code == 0 { Ok(()) } else { Err(MpiError::Start { call, code }) };
        let (mut level, mut rank, mut ranks) = (0, 0, 0);
        // SAFETY: null arguments are allowed, and the level is written to a live integer.
        let code = unsafe { (calls.init)(ptr::null_mut(), ptr::null_mut(), SERIALIZED, &raw mut level) };
        started("MPI_Init_thread", code)?;
        if level < SERIALIZED {
            return Err(MpiError::Threads(level));
        }
        // SAFETY: MPI is started, and the handles are its own.
        started("MPI_Comm_set_errhandler", unsafe { (calls.on_error)(calls.world, calls.errors_return) })?;
        // SAFETY: MPI is started, the handle is its own, and the rank is written to a live integer.
        started("MPI_Comm_rank", unsafe { (calls.rank)(calls.world, &raw mut rank) })?;
        // SAFETY: as before.
        started("MPI_Comm_size", unsafe { (calls.size)(calls.world, &raw mut ranks) })?;
        let [rank, ranks] = [rank, ranks].map(|count| usize::try_from(count).unwrap_or_default());
        let (requests, statuses, traffic) = (Vec::new(), Vec::new(), Traffic::default());
        Ok(Self { calls, rank, ranks, deadline, requests, statuses, traffic })
    }

    /// Ends this process and all other ranks.
    fn abort(&mut self, code: i32) -> ! {
        // SAFETY: MPI is started, and the handle is its own. The call does not return.
        unsafe { (self.calls.abort)(self.calls.world, code) };
        std::process::exit(code)
    }

    /// Begins to receive and to send `message`. Between two ranks, MPI keeps the order of messages with one tag.
    fn begin(&mut self, message: &mut Message<'_>) -> Result<(), ExchangeError> {
        let Calls { world, byte, send, receive, .. } = self.calls;
        let count = |bytes: usize| c_int::try_from(bytes).map_err(|_| ExchangeError::TooLong { bytes });
        let (sent, received) = (count(message.sent.len())?, count(message.received.len())?);
        // Ranks are counted in 31 bits.
        let (peer, tag) = (message.rank as c_int, (self.traffic.rounds % TAGS) as c_int);
        let failed = |call, code| if code == 0 { Ok(()) } else { Err(ExchangeError::Mpi { call, code }) };
        let request = self.next_request();
        let to = message.received.as_mut_ptr().cast();
        // SAFETY: the buffer has `received` bytes and is borrowed until the round ends, which is when the request is
        // done, or with the process. The request is a live place.
        failed("MPI_Irecv", unsafe { receive(to, received, byte, peer, tag, world, request) })?;
        let request = self.next_request();
        let from = message.sent.as_ptr().cast();
        // SAFETY: as for receiving; the buffer is only read.
        failed("MPI_Isend", unsafe { send(from, sent, byte, peer, tag, world, request) })
    }

    /// Room for a handle that the library fills in within one call.
    fn next_request(&mut self) -> *mut Handle {
        self.requests.push(ptr::null_mut());
        self.requests.last_mut().map_or(ptr::null_mut(), |request| &raw mut *request)
    }

    /// Waits until everything that was begun is done, or as long as it may.
    fn wait(&mut self, patience: &Patience<'_>) -> Result<(), ExchangeError> {
        let (begun, mut looks) = (Instant::now(), 0_u32);
        self.statuses.clear();
        self.statuses.resize(self.requests.len(), Status::default());
        // Requests of a round are counted in far less than 31 bits.
        let count = self.requests.len() as c_int;
        loop {
            let mut done = 0;
            let (requests, statuses) = (self.requests.as_mut_ptr(), self.statuses.as_mut_ptr());
            // SAFETY: there are `count` requests that the library has filled in, and as many statuses for it to fill
            // in, whose layout is its own.
            let code = unsafe { (self.calls.test)(count, requests, &raw mut done, statuses) };
            if code != 0 {
                return Err(ExchangeError::Mpi { call: "MPI_Testall", code });
            }
            if done != 0 {
                return Ok(());
            }
            looks = looks.saturating_add(1);
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let waited = begun.elapsed();
            if patience.is_over(waited) {
                return Err(ExchangeError::Lost { rank: self.rank, round: self.traffic.rounds, waited });
            }
            match waited < YIELDS {
                true => std::thread::yield_now(),
                false => std::thread::sleep((waited / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX)),
            }
        }
    }

    fn pass(&mut self, messages: &mut [Message<'_>], patience: &Patience<'_>) -> Result<(), ExchangeError> {
        let (begun, cpu) = (Instant::now(), thread_seconds());
        self.traffic.rounds += 1;
        self.requests.clear();
        let begun_all = messages.iter_mut().try_for_each(|message| self.begin(message));
        let passed = begun_all.and_then(|()| self.wait(patience)).and_then(|()| self.check_lengths(messages));
        self.traffic.bytes += messages.iter().map(|message| message.sent.len() as u64).sum::<u64>();
        self.traffic.seconds += begun.elapsed().as_secs_f64();
        self.traffic.cpu_seconds += thread_seconds() - cpu;
        if let Err(error) = &passed {
            // Messages may still be under way to the buffers of the caller, which must not get them back.
            _ = writeln!(std::io::stderr(), "rank {}: {error}", self.rank);
            self.abort(if matches!(error, ExchangeError::Lost { .. }) { LOST } else { 1 });
        }
        passed
    }

    /// Whether every message that came is as long as it was expected to be: ranks that compute other things would read
    /// old numbers.
    fn check_lengths(&self, messages: &[Message<'_>]) -> Result<(), ExchangeError> {
        // Of each message, receiving was begun first.
        for (message, status) in messages.iter().zip(self.statuses.iter().step_by(2)) {
            let mut came = 0;
            // SAFETY: the library has filled in the status, and writes the count to a live integer.
            let code = unsafe { (self.calls.count)(status, self.calls.byte, &raw mut came) };
            let expected = message.received.len();
            if code != 0 || usize::try_from(came) != Ok(expected) {
                return Err(ExchangeError::Length { rank: message.rank, came: i64::from(came), expected });
            }
        }
        Ok(())
    }
}

impl Exchange for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn round(&mut self, messages: &mut [Message<'_>]) -> Result<(), ExchangeError> {
        self.pass(messages, &Patience::Until(self.deadline))
    }

    fn patient_round(&mut self, messages: &mut [Message<'_>], alive: &dyn Fn()) -> Result<(), ExchangeError> {
        self.pass(messages, &Patience::Endless(alive))
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn leave(&mut self) {
        // SAFETY: MPI is started, nothing is under way, and this is the last call, on the thread that made the first.
        unsafe { (self.calls.finalize)() };
    }
}

/// Seconds that this thread has computed.
#[allow(clippy::cast_precision_loss)] // of a process
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
