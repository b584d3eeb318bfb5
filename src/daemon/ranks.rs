//! Processes that `mpiexec` starts to train together (`learner.ranks`): the first is the daemon, with the data
//! directory, the graph and the HTTP interface; the others compute their shares of its steps, and have nothing of their
//! own.
//!
//! MPI is started and ended on the main thread, as it demands; in between, the thread of the learner has it.

use std::num::NonZero;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::config::{ClusterRole, Config};
use crate::device::exchange::mpi::Mpi;
use crate::device::exchange::{Exchange, ExchangeError, Message, Traffic};
use crate::learner::follow;

/// How many processes `mpiexec` of Open MPI has started, this one included: in all, and on this machine.
const STARTED: &str = "OMPI_COMM_WORLD_SIZE";
const HERE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";

/// This process as one of several that train together.
pub struct Ranks {
    lent: Lent,
    returned: Receiver<Mpi>,
}

impl Ranks {
    /// Whether `mpiexec` of Open MPI has started this process among others.
    #[must_use]
    pub fn are_started() -> bool {
        started_processes(STARTED) > 1
    }

    /// How many processes train together by the settings. A replica trains nothing.
    #[must_use]
    pub fn expected(config: &Config) -> usize {
        let learns = config.cluster.role != ClusterRole::Replica;
        if learns { config.learner.ranks } else { 1 }
    }

    /// Meets the other processes; `None` where there are none.
    ///
    /// # Errors
    /// `mpiexec` has started another number of them than the settings have, or MPI is not there.
    pub fn join(config: &Config) -> Result<Option<Self>> {
        let ranks = Self::expected(config);
        if ranks <= 1 {
            let started = started_processes(STARTED);
            ensure!(
                started <= 1,
                "mpiexec has started {started} processes, and learner.ranks is 1: set learner.ranks={started} for them \
                 to train together"
            );
            return Ok(None);
        }
        let deadline = Duration::from_secs(config.learner.ranks_deadline_seconds);
        let mpi = Mpi::join(deadline).with_context(|| format!("learner.ranks is {ranks}"))?;
        ensure!(
            mpi.ranks() == ranks,
            "learner.ranks is {ranks}, and processes that train together are {}: start all of them as \
             `mpiexec -n {ranks} evergraph serve …`",
            mpi.ranks()
        );
        let (sender, returned) = bounded(1);
        Ok(Some(Self { lent: Lent { mpi: Some(mpi), sender }, returned }))
    }

    /// Whether this process is the daemon.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.lent.rank() == 0
    }

    /// Trains with the first process until that one ends. Serves nothing, so unless the settings say how many threads
    /// train, those are the cores of the machine, shared with the other processes there.
    ///
    /// # Errors
    /// The ranks cannot go on together.
    pub fn follow(self, config: &Config) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = match config.learner.threads {
            0 => (cores / started_processes(HERE)).max(1),
            set => set,
        };
        let nice = u8::try_from(config.learner.nice).unwrap_or(19);
        let Self { lent, returned } = self;
        follow(Box::new(lent), config.trainer_options(), (threads, nice))?;
        leave(&returned);
        Ok(())
    }

    /// What the learner exchanges by, and what parts from the others when it is done.
    #[must_use]
    pub fn lend(self) -> (Box<dyn Exchange>, Parting) {
        (Box::new(self.lent), Parting(self.returned))
    }
}

fn started_processes(variable: &str) -> usize {
    std::env::var(variable).ok().and_then(|count| count.parse().ok()).unwrap_or(1).max(1)
}

/// Parts from the other processes.
pub struct Parting(Receiver<Mpi>);

impl Parting {
    /// Does so if the learner is done with them. If it failed, they end with this process.
    pub fn leave(self) {
        leave(&self.0);
    }
}

fn leave(returned: &Receiver<Mpi>) {
    if let Ok(mut mpi) = returned.try_recv() {
        mpi.leave();
    }
}

/// MPI on another thread, which gives it back.
struct Lent {
    mpi: Option<Mpi>,
    sender: Sender<Mpi>,
}

impl Exchange for Lent {
    fn rank(&self) -> usize {
        self.mpi.as_ref().map_or(0, Exchange::rank)
    }

    fn ranks(&self) -> usize {
        self.mpi.as_ref().map_or(1, Exchange::ranks)
    }

    fn round(&mut self, messages: &mut [Message<'_>]) -> Result<(), ExchangeError> {
        self.mpi.as_mut().map_or(Ok(()), |mpi| mpi.round(messages))
    }

    fn patient_round(&mut self, messages: &mut [Message<'_>], alive: &dyn Fn()) -> Result<(), ExchangeError> {
        self.mpi.as_mut().map_or(Ok(()), |mpi| mpi.patient_round(messages, alive))
    }

    fn traffic(&self) -> Traffic {
        self.mpi.as_ref().map_or_else(Traffic::default, Exchange::traffic)
    }

    fn leave(&mut self) {
        if let Some(mpi) = self.mpi.take() {
            // There is room for it.
            let _ = self.sender.send(mpi);
        }
    }
}
