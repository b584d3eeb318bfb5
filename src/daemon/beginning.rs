//! Where learning begins when no checkpoint can be used, by `learner.start`. Nobody is to find out after days that the
//! daemon trains on all of its log again: the log line, the status and `evergraph status` say so from the start.

use anyhow::{Result, ensure};

use super::Store;
use crate::config::{Config, StartPolicy};
use crate::device::Device;
use crate::event::EdgeId;
use crate::learner::checkpoint::CheckpointHead;
use crate::learner::{Gate, Learned, StreamState};
use crate::train::Trainer;

/// A learner that has learned nothing yet, and its position in the log.
///
/// # Errors
/// The log was cut, so that what is missing cannot be learned again, or the model cannot be made.
pub(super) fn learned(config: &Config, store: &Store, device: &Device) -> Result<Learned> {
    let log = store.log.readers();
    let (first, end, policy) = (log.first(), log.durable_end(), config.learner.start);
    let begins_late = policy == StartPolicy::Latest && end > EdgeId(0);
    // The clock of retention follows from the log's events; without them the learner would read what was released.
    let can_begin_late = store.index.stores.graph.retention().is_none();
    let other = match can_begin_late {
        true => "set learner.start = \"latest\", which begins with an empty memory",
        false => "use another data.dir: with graph.retention, learning does not begin in the midst of a log",
    };
    ensure!(
        first == EdgeId(0) || (begins_late && can_begin_late),
        "the log begins at position {first}, and no checkpoint can be used to learn on from there (see above): restore \
         {} from a backup, or {other}",
        store.checkpoints.dir().display()
    );
    if end > EdgeId(0) {
        let (events, start) = (end.0 - first.0, format!("{policy:?}").to_lowercase());
        let what = match policy {
            StartPolicy::Resume => "it is learned and trained on again from its beginning",
            StartPolicy::Remember => "it updates node memory and is not trained on",
            StartPolicy::Latest => "it is left out, and node memory begins empty",
        };
        tracing::warn!(
            events,
            "learner.start" = start,
            "no checkpoint can be used for what is in the log: {what}"
        );
    }
    let trainer = Trainer::new(config.trainer_options(), device)?;
    let gate = config.gate_options().map(Gate::new);
    if !begins_late {
        return Ok(Learned { trainer, gate, stream: None, position: EdgeId(0) });
    }
    // What it has to know of the stream is read from the log, or begins empty, too.
    let unknown = || StreamState::new(&store.index.stores, config.learner.pairs_max);
    let stream = (first > EdgeId(0)).then(unknown);
    Ok(Learned { trainer, gate, stream, position: end })
}

/// When learning began, from the checkpoint or now. A time in the future comes from a wrong clock and is ignored.
pub(super) fn began(checkpoint: Option<CheckpointHead>, now_unix_ms: i64) -> i64 {
    checkpoint.map_or(now_unix_ms, |head| head.began_unix_ms.min(now_unix_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_begins_with_its_first_checkpoint_and_never_in_the_future() {
        let head = |began_unix_ms| Some(CheckpointHead { began_unix_ms, ..CheckpointHead::default() });
        assert_eq!(began(None, 100), 100);
        assert_eq!(began(head(40), 100), 40);
        assert_eq!(began(head(i64::MAX), 100), 100);
    }
}
