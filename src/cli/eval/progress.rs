//! Progress bars of an evaluation on standard error: stage, epoch, events, current average precision
//! and time left. Without a terminal each finished stage is one line.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::train::evaluate::{Progress, Stage};

/// Redraws per second at most.
const REDRAWS_PER_SECOND: u8 = 8;

/// One bar per stage and epoch.
pub struct ProgressBars {
    epochs: usize,
    current: Option<(Stage, usize)>,
    bar: ProgressBar,
    started: Instant,
}

impl ProgressBars {
    /// No bar yet, for a run of so many epochs.
    #[must_use]
    pub fn new(epochs: usize) -> Self {
        Self { epochs, current: None, bar: ProgressBar::hidden(), started: Instant::now() }
    }

    /// Shows the progress of the run.
    pub fn show(&mut self, progress: &Progress) {
        if self.current != Some((progress.stage, progress.epoch)) {
            self.current = Some((progress.stage, progress.epoch));
            self.started = Instant::now();
            self.bar = ProgressBar::with_draw_target(
                Some(progress.total as u64),
                ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND),
            );
            let template = "{prefix:<22} {bar:24} {pos}/{len} events  {msg}  {elapsed} elapsed, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style);
            }
            self.bar.set_prefix(title(progress, self.epochs));
        }
        if let Some(precision) = progress.average_precision {
            self.bar.set_message(format!("AP {:.2}", 100.0 * precision));
        }
        self.bar.set_position(progress.done as u64);
        if progress.done >= progress.total {
            self.bar.finish_and_clear();
            eprintln!("{}", line(progress, self.epochs, self.started.elapsed()));
        }
    }
}

fn title(progress: &Progress, epochs: usize) -> String {
    let stage = match progress.stage {
        Stage::Train => "train",
        Stage::Validation => "validation",
        Stage::Test => "test",
        Stage::Inductive => "new nodes",
        Stage::Encode => "all events",
        Stage::Prequential => "test-then-train",
    };
    if progress.epoch == 0 { stage.to_owned() } else { format!("epoch {}/{epochs} {stage}", progress.epoch) }
}

fn line(progress: &Progress, epochs: usize, elapsed: Duration) -> String {
    let precision = progress.average_precision.map_or(String::new(), |p| format!("  AP {:.2}", 100.0 * p));
    let (title, seconds) = (title(progress, epochs), elapsed.as_secs_f64());
    format!("{title:<22} {} events{precision}  {seconds:.1} s", progress.total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_stage_tells_epoch_events_precision_and_time() {
        let progress = Progress {
            stage: Stage::Validation,
            epoch: 2,
            done: 50,
            total: 50,
            average_precision: Some(0.91234),
        };
        assert_eq!(
            line(&progress, 3, Duration::from_millis(1250)),
            "epoch 2/3 validation   50 events  AP 91.23  1.2 s"
        );
    }
}
