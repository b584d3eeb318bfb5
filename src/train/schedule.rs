//! How the step size goes over the gradient steps of a stream that does not end.
//!
//! It rises in a line over the first steps, because the optimizer's first estimates of its moments are poor, and then
//! stays, unless a decay is asked for (n gradient steps after the rise, d = `decay_steps`, f = `floor`):
//!
//! ```text
//! constant              1
//! inverse square root   f + (1 - f) sqrt(d / (d + n))                             after Vaswani et al., 2017
//! cosine, restarting    f + (1 - f) (1 + cos(pi (n mod d) / d)) / 2               after Loshchilov and Hutter, 2017
//! ```
//!
//! Where a trainer stands in its schedule is the number of its optimizer's steps, which is saved with the optimizer. An
//! optimizer that starts afresh begins the schedule again.

use std::f64::consts::PI;

/// What the step size does after its rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    /// It stays.
    #[default]
    Constant,
    /// It falls ever more slowly.
    InverseSquareRoot,
    /// It falls in waves.
    Cosine,
}

/// The course of the step size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Gradient steps of the rise; 0 begins at the top.
    pub warmup_steps: u64,
    /// What comes after.
    pub decay: Decay,
    /// Gradient steps of a cosine wave, or after which the inverse square root has fallen to 0.71; at least 1.
    pub decay_steps: u64,
    /// Share of the step size that a decay does not go below; in [0, 1].
    pub floor: f32,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { warmup_steps: 0, decay: Decay::Constant, decay_steps: 10_000, floor: 0.1 }
    }
}

impl Schedule {
    /// What the step size is multiplied by when `steps` gradient steps have been taken; in (0, 1] before the rise
    /// ends, in [floor, 1] after it.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // a factor of 32 bits
    pub fn factor(&self, steps: u64) -> f32 {
        if steps < self.warmup_steps {
            return ((steps + 1) as f64 / self.warmup_steps as f64) as f32;
        }
        let (after, period) = (steps - self.warmup_steps, self.decay_steps.max(1));
        let share = match self.decay {
            Decay::Constant => return 1.0,
            Decay::InverseSquareRoot => (period as f64 / (period as f64 + after as f64)).sqrt(),
            Decay::Cosine => (1.0 + (PI * (after % period) as f64 / period as f64).cos()) / 2.0,
        };
        self.floor + (1.0 - self.floor) * share as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_warms_up_and_then_follows_its_schedule() {
        let schedule = |decay| Schedule { warmup_steps: 4, decay, decay_steps: 100, floor: 0.2 };
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
        for decay in [Decay::Constant, Decay::InverseSquareRoot, Decay::Cosine] {
            let rise: Vec<f32> = (0..5).map(|step| schedule(decay).factor(step)).collect();
            assert_eq!(rise, [0.25, 0.5, 0.75, 1.0, 1.0], "{decay:?}");
        }
        assert_eq!(schedule(Decay::Constant).factor(u64::MAX), 1.0);
        let root = schedule(Decay::InverseSquareRoot);
        near(root.factor(4 + 300), 0.2 + 0.8 * 0.5);
        near(root.factor(u64::MAX), 0.2);
        let waves = schedule(Decay::Cosine);
        near(waves.factor(4 + 50), 0.6);
        assert!(waves.factor(4 + 99) < 0.201 && waves.factor(4 + 100) == 1.0, "it begins again at the top");
    }

    #[test]
    fn by_default_the_rate_stays_constant() {
        assert!((0..100).all(|step| Schedule::default().factor(step) == 1.0));
    }
}
