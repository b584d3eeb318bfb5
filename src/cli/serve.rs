//! `evergraph serve`: the daemon until a signal; told to systemd where there is one.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigArgs, output};
use crate::daemon::Daemon;

/// Runs the daemon.
pub(super) fn run(args: &ConfigArgs) -> Result<()> {
    let config = args.load()?;
    output::start_log(&config.output)?;
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let stop = Signals::listen()?;
    let daemon = Daemon::start(&config, None)?;
    notify(sd_notify::NotifyState::Ready);
    stop.wait();
    notify(sd_notify::NotifyState::Stopping);
    tracing::info!("stopping: draining, then a last checkpoint; a second signal ends at once");
    stop.exit_on_the_next();
    daemon.stop()
}

/// Tells the service manager; where there is none, nobody listens.
fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager was not told");
    }
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

    /// Waits for a signal.
    pub(super) fn wait(&self) {
        // An error means that the listening thread is gone; ending is all that is left then, too.
        let _ = self.received.recv();
    }

    /// Waits for a signal until `timeout` passes; says whether one came.
    pub(super) fn wait_timeout(&self, timeout: std::time::Duration) -> bool {
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
