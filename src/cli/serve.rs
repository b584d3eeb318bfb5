//! `evergraph serve`: the daemon until a signal; told to systemd where there is one.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigArgs, output};
use crate::daemon::{Daemon, service};

/// How often the daemon is asked whether it still has all its parts.
const LOOK: Duration = Duration::from_millis(250);

/// Runs the daemon.
pub(super) fn run(args: &ConfigArgs) -> Result<()> {
    let config = args.load()?;
    output::start_log(&config.output)?;
    let stop = Signals::listen()?;
    let daemon = Daemon::start(&config, None)?;
    service::ready();
    while daemon.fault().is_none() && !stop.wait_timeout(LOOK) {}
    service::stopping();
    match daemon.fault() {
        None => tracing::info!("stopping: draining, then a last checkpoint; a second signal ends at once"),
        Some(fault) => {
            tracing::error!(fault, "stopping, to be started again: a part of the daemon has ended")
        }
    }
    stop.exit_on_the_next();
    daemon.stop()
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    received: std::sync::mpsc::Receiver<()>,
}

impl Signals {
    /// Listens from now on, on a thread of its own.
    pub(super) fn listen() -> Result<Self> {
        let (sender, received) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut terminate = {
            let _inside = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    loop {
                        tokio::select! {
                            _ = terminate.0.recv() => {}
                            _ = terminate.1.recv() => {}
                        }
                        if sender.send(()).is_err() {
                            return;
                        }
                    }
                });
            })
            .context("cannot start the thread that waits for signals")?;
        Ok(Self { received })
    }

    /// Waits for a signal until `timeout` passes; says whether one came.
    pub(super) fn wait_timeout(&self, timeout: Duration) -> bool {
        !matches!(self.received.recv_timeout(timeout), Err(std::sync::mpsc::RecvTimeoutError::Timeout))
    }

    /// Ends the process at the next signal, whatever is going on: the log is safe at every moment.
    pub(super) fn exit_on_the_next(self) {
        std::thread::spawn(move || {
            if self.received.recv().is_ok() {
                std::process::exit(130);
            }
        });
    }
}
