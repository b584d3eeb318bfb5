//! The shape of the walk model, and how fast it lets the past fade.

use thiserror::Error;

use super::Decay;
use super::clock::STRENGTH_MAX;
use super::published::row_dim;
use crate::model::{EdgeTypes, Needs};

/// Vectors are a whole number of these many values long: what one instruction works on.
pub(super) const LANES: usize = 16;

/// Longest vector.
const DIMENSION_MAX: usize = 1024;

/// Longest walk.
pub(super) const STEPS_MAX: usize = 4;

/// Shape of the walk model. The defaults have 14,337 parameters and 2 KiB of state per node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WalkOptions {
    /// Edges `k` of the longest walk counted from either node of a pair; 1 to 4.
    pub steps: usize,
    /// Length `d_R` of a projected vector: a multiple of 16 up to 1024. Inner products are off by about
    /// `1 / sqrt(d_R)` of the lengths multiplied; the paper takes ten times the logarithm of twice the
    /// number of edges, which for a hundred thousand of them is 122.
    pub dimension: usize,
    /// How the weight of an edge falls with its age.
    pub decay: Decay,
    /// Decides the signs of the projection of a model that has seen nothing yet.
    pub seed: u64,
    /// Widths of the network's two hidden layers; at least 1.
    pub hidden: [usize; 2],
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self { steps: 3, dimension: 128, decay: Decay::Span(10.0), seed: 0, hidden: [128, 64] }
    }
}

/// Options that describe no model.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum WalkOptionsError {
    /// Walks are too long or have no edge.
    #[error("walks of {steps} steps: there must be 1 to {STEPS_MAX}")]
    Steps {
        /// Edges asked for.
        steps: usize,
    },
    /// Vectors have no such length.
    #[error(
        "projected vectors of {dimension} values: there must be a multiple of {LANES} up to {DIMENSION_MAX}"
    )]
    Dimension {
        /// Values asked for.
        dimension: usize,
    },
    /// The decay is no number or would make the past grow.
    #[error("a decay of {strength}: it must be a number from 0 to 1e9")]
    Decay {
        /// Strength asked for.
        strength: f64,
    },
    /// A hidden layer has no width.
    #[error("a hidden layer of width 0; it must be at least 1")]
    Hidden,
}

impl WalkOptions {
    /// What the model wants of a batch: no sample and no features. An embedding is the projected vectors of a node.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let embedding_dim = (self.steps + 1) * self.dimension;
        let nothing = Needs::recent(0, 1, [0, 0], EdgeTypes::default(), embedding_dim);
        Needs { walks: Some(*self), ..nothing }
    }

    /// Values of the row of a node that readers get.
    #[must_use]
    pub fn row_dim(&self) -> usize {
        row_dim(self.steps, self.dimension)
    }

    /// The options as named numbers, but for the seed, which stays that of the state; zeros without walks.
    #[allow(clippy::cast_precision_loss)]
    pub(in crate::model) fn as_fields(walks: Option<&Self>) -> Vec<(&'static str, f64)> {
        let none = Self { steps: 0, dimension: 0, decay: Decay::Rate(0.0), seed: 0, hidden: [0; 2] };
        let walks = walks.unwrap_or(&none);
        let [first, second] = walks.hidden;
        let counts = [
            ("walk_steps", walks.steps),
            ("walk_dimension", walks.dimension),
            ("first hidden layer", first),
            ("second hidden layer", second),
        ];
        let (rate, power) = match walks.decay {
            Decay::Rate(rate) => (rate, 0.0),
            Decay::Span(power) => (0.0, power),
        };
        let counts = counts.map(|(name, count)| (name, count as f64));
        counts.into_iter().chain([("walk_decay (rate)", rate), ("walk_decay (span)", power)]).collect()
    }

    /// # Errors
    /// The options describe no model.
    pub(in crate::model) fn check(&self) -> Result<(), WalkOptionsError> {
        let Self { steps, dimension, decay, hidden, .. } = *self;
        if !(1..=STEPS_MAX).contains(&steps) {
            return Err(WalkOptionsError::Steps { steps });
        }
        if !(LANES..=DIMENSION_MAX).contains(&dimension) || !dimension.is_multiple_of(LANES) {
            return Err(WalkOptionsError::Dimension { dimension });
        }
        let strength = decay.strength();
        if !(0.0..=STRENGTH_MAX).contains(&strength) {
            return Err(WalkOptionsError::Decay { strength });
        }
        if hidden.contains(&0) {
            return Err(WalkOptionsError::Hidden);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_describe_no_model_are_refused() {
        let good = WalkOptions::default();
        assert_eq!(good.check(), Ok(()));
        for bad in [
            WalkOptions { steps: 0, ..good },
            WalkOptions { steps: 5, ..good },
            WalkOptions { dimension: 0, ..good },
            WalkOptions { dimension: 100, ..good },
            WalkOptions { dimension: 2048, ..good },
            WalkOptions { decay: Decay::Rate(-1.0), ..good },
            WalkOptions { decay: Decay::Span(f64::NAN), ..good },
            WalkOptions { decay: Decay::Rate(2e9), ..good },
            WalkOptions { hidden: [64, 0], ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
