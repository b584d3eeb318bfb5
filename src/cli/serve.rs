//! `evergraph serve`: runs the daemon until a signal, and notifies systemd if present. SIGHUP reloads what can be
//! reloaded and never ends the daemon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::ConfigArgs;
use crate::config::ignored_variables;
use crate::daemon::ranks::{Parting, Ranks};
use crate::daemon::{Daemon, Interrupted, log_level, service};
use crate::train::Trainer;

/// Interval of checks whether a part of the daemon has ended.
const POLL_PERIOD: Duration = Duration::from_millis(250);

/// Where `mpiexec` has started several processes, a service manager sends a signal to each, and `mpiexec` passes on its
/// own: those that follow the first one this soon count as the same.
const SAME_WITHIN: Duration = Duration::from_secs(5);

/// Runs the daemon.
pub(super) fn run(args: &ConfigArgs) -> Result<()> {
    let signals =
        Signals::listen_with_reload(if Ranks::are_started() { SAME_WITHIN } else { Duration::ZERO })?;
    let config = args.load()?;
    log_level::start(&config.output)?;
    let warnings = config.warnings().into_iter().chain(ignored_variables());
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    let settings = args.explain()?;
    let ranks = Ranks::join(&config)?;
    let (mut others, parting) = match ranks {
        Some(ranks) if !ranks.is_first() => {
            signals.ignore();
            return ranks.follow(&config);
        }
        ranks => ranks.map(Ranks::lend).unzip(),
    };
    let daemon = match Daemon::start_leading(&config, &mut others, None, &signals.stop_requested) {
        Err(error) if error.is::<Interrupted>() => {
            tracing::info!("{error}");
            others.map_or(Ok(()), Trainer::dismiss)?;
            parting.into_iter().for_each(Parting::leave);
            return Ok(());
        }
        started => started?,
    };
    let read = args.clone();
    daemon.reload_from(Box::new(move || Ok((read.load()?, read.explain()?))), settings);
    service::ready();
    while daemon.fault().is_none() && !signals.wait_timeout(POLL_PERIOD) {
        if signals.reload_requested.swap(false, Ordering::AcqRel)
            && let Err(error) = daemon.reload()
        {
            tracing::error!(error = format!("{error:#}"), "not reloaded; the settings in effect stay");
        }
    }
    service::stopping();
    match daemon.fault() {
        None => tracing::info!("stopping: draining, then a last checkpoint; a second signal ends at once"),
        Some(fault) => {
            tracing::error!(fault, "stopping for a restart: a part of the daemon has ended")
        }
    }
    let stopped = daemon.stop();
    // Where the learner failed, the others end with this process.
    parting.into_iter().for_each(Parting::leave);
    stopped
}

/// SIGTERM and SIGINT. The first one starts an orderly stop; the second ends the process at once:
/// the log is safe at any moment.
pub(super) struct Signals {
    /// Set by the first signal.
    pub(super) stop_requested: Arc<AtomicBool>,
    /// Set by SIGHUP, where it is listened to; elsewhere it ends the process.
    reload_requested: Arc<AtomicBool>,
    received: mpsc::Receiver<()>,
    /// Milliseconds after the first signal within which further ones count as the same.
    same_within_ms: Arc<AtomicU64>,
}

impl Signals {
    /// Listens from now on, on a thread of its own.
    pub(super) fn listen() -> Result<Self> {
        Self::listen_to(false, Duration::ZERO)
    }

    /// The same, and SIGHUP asks for a reload. Signals that follow the first one within `same_within` are the same.
    fn listen_with_reload(same_within: Duration) -> Result<Self> {
        Self::listen_to(true, same_within)
    }

    fn listen_to(hangup: bool, same_within: Duration) -> Result<Self> {
        let (sender, received) = mpsc::sync_channel(1);
        let stop_requested = Arc::new(AtomicBool::new(false));
        let (flag, reload_requested) = (stop_requested.clone(), Arc::new(AtomicBool::new(false)));
        let reload = reload_requested.clone();
        let same_within_ms = Arc::new(AtomicU64::new(u64::try_from(same_within.as_millis())?));
        let same_within = same_within_ms.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut terminate, mut interrupt, mut hangup) = {
            let _inside = runtime.enter();
            let hangup = hangup.then(|| signal(SignalKind::hangup())).transpose()?;
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, hangup)
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let mut first: Option<Instant> = None;
                    loop {
                        let hung_up = async {
                            match &mut hangup {
                                Some(hangup) => hangup.recv().await,
                                None => std::future::pending().await,
                            }
                        };
                        tokio::select! {
                            _ = terminate.recv() => {}
                            _ = interrupt.recv() => {}
                            _ = hung_up => {
                                reload.store(true, Ordering::Release);
                                continue;
                            }
                        }
                        let since = first.get_or_insert_with(Instant::now).elapsed();
                        let is_same = since < Duration::from_millis(same_within.load(Ordering::Acquire));
                        if flag.swap(true, Ordering::AcqRel) && !is_same {
                            std::process::exit(130);
                        }
                        // Nothing receives while the daemon starts or stops; the channel has room for one.
                        let _ = sender.try_send(());
                    }
                });
            })
            .context("cannot start the thread that waits for signals")?;
        Ok(Self { stop_requested, reload_requested, received, same_within_ms })
    }

    /// From now on no signal ends the process.
    fn ignore(&self) {
        self.same_within_ms.store(u64::MAX, Ordering::Release);
    }

    /// Waits for a signal until `timeout` passes; returns whether one came.
    pub(super) fn wait_timeout(&self, timeout: Duration) -> bool {
        !matches!(self.received.recv_timeout(timeout), Err(mpsc::RecvTimeoutError::Timeout))
    }
}
