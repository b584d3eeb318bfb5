//! `[learner]` as options of the learner: schedule, replay and gate; and of `[device]` what its trainer takes.

use super::{BeforePromotionKind, Config, DecayKind, Device, ReplayKind};
use crate::learner::{BeforePromotion, GateOptions};
use crate::sampler::DeviceSamplerOptions;
use crate::train::TrainerOptions;
use crate::train::met_share;
use crate::train::replay::{ReplayOptions, ReplayPolicy};
use crate::train::schedule::{Decay, Schedule};

impl Config {
    /// The course of the learning rate.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        let schedule = &self.learner.schedule;
        let decay = match schedule.decay {
            DecayKind::Constant => Decay::Constant,
            DecayKind::InverseSquareRoot => Decay::InverseSquareRoot,
            DecayKind::Cosine => Decay::Cosine,
        };
        let (warmup_steps, decay_steps) = (schedule.warmup_steps, schedule.decay_steps);
        Schedule { warmup_steps, decay, decay_steps, floor: schedule.floor }
    }

    /// How the configured model is trained.
    #[must_use]
    pub fn trainer_options(&self) -> TrainerOptions {
        TrainerOptions {
            model: self.model_options(),
            learning_rate: self.learner.learning_rate,
            schedule: self.schedule(),
            gradient_delay_batches: self.learner.gradient_delay_batches,
            precision: self.learner.matmul_precision.into(),
            seed: self.learner.seed,
        }
    }

    /// Room for the copy of the graph that a GPU which trains samples.
    #[must_use]
    pub fn sampler_options(&self) -> DeviceSamplerOptions {
        let Device { graph_bytes: gpu_bytes_max, graph_host_bytes: host_bytes_max, .. } = &self.device;
        let (gpu_bytes_max, host_bytes_max) = (*gpu_bytes_max, *host_bytes_max);
        DeviceSamplerOptions { gpu_bytes_max, host_bytes_max }
    }

    /// Share of negatives that are destinations which the source met before.
    #[must_use]
    pub fn met_share(&self) -> f64 {
        match self.learner.met_negatives {
            set if set >= 0.0 => set,
            _ => met_share(&self.model_options().needs()),
        }
    }

    /// What is trained on again.
    #[must_use]
    pub fn replay_options(&self) -> ReplayOptions {
        let replay = &self.learner.replay;
        ReplayOptions { ratio: replay.ratio, policy: replay.policy.into() }
    }

    /// The promotion gate; `None` where it is disabled.
    #[must_use]
    pub fn gate_options(&self) -> Option<GateOptions> {
        let gate = &self.learner.gate;
        gate.enabled.then_some(GateOptions {
            every_batches: gate.every_batches,
            window_batches: gate.window_batches,
            promote_seconds: gate.promote_seconds,
            confidence: gate.confidence,
            edgebank_tolerance: gate.edgebank_tolerance,
            rollback_windows: gate.rollback_windows,
            before_promotion: gate.before_promotion.into(),
        })
    }
}

impl From<BeforePromotionKind> for BeforePromotion {
    fn from(kind: BeforePromotionKind) -> Self {
        match kind {
            BeforePromotionKind::Baseline => Self::Baseline,
            BeforePromotionKind::NotReady => Self::NotReady,
            BeforePromotionKind::Candidate => Self::Candidate,
        }
    }
}

impl From<ReplayKind> for ReplayPolicy {
    fn from(kind: ReplayKind) -> Self {
        match kind {
            ReplayKind::Uniform => Self::Uniform,
            ReplayKind::Recent => Self::Recent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_the_options_and_a_gate_can_be_left_out() {
        let config = |settings: &[(&str, &str)]| {
            let flags: Vec<_> =
                settings.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            let none = config::Environment::default().source(Some(config::Map::new()));
            Config::from_layers(None, none, &flags).unwrap()
        };
        let plain = config(&[]);
        assert_eq!((plain.schedule().decay, plain.replay_options().ratio), (Decay::Constant, 0.0));
        let gate = plain.gate_options().unwrap();
        assert_eq!((gate.every_batches, gate.promote_seconds, gate.confidence), (8, 300, 0.95));
        assert_eq!(gate.before_promotion, BeforePromotion::Baseline);
        let other = config(&[
            ("learner.schedule.decay", "inverse-square-root"),
            ("learner.schedule.floor", "0.5"),
            ("learner.replay.policy", "recent"),
            ("learner.replay.ratio", "0.25"),
            ("learner.gate.enabled", "false"),
        ]);
        assert_eq!((other.schedule().decay, other.schedule().floor), (Decay::InverseSquareRoot, 0.5));
        assert_eq!(other.replay_options(), ReplayOptions { ratio: 0.25, policy: ReplayPolicy::Recent });
        assert_eq!(other.gate_options(), None);
    }
}
