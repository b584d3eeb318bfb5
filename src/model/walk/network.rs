//! [`WalkNetwork`]: from the row of a pair to its logit.
//!
//! ```text
//! x [n, features] -> relu(x W1ᵀ + b1) -> relu(. W2ᵀ + b2) -> . W3ᵀ + b3 [n, 1]
//! ```

use super::WalkOptions;
use super::features::count;
use crate::device::Device;
use crate::nn::{ParamId, Parameters, Tape, Var, init};

/// Names of the layers' parameters, and keeps their first values apart.
const LAYERS: [&str; 3] = ["hidden1", "hidden2", "logit"];

/// Keeps first values apart from everything else that is drawn from one seed.
const WEIGHTS: u64 = 0x7761_6c6b_6e65_7477;

/// The network and its weights.
#[derive(Clone, Debug)]
pub struct WalkNetwork {
    /// The weights.
    pub parameters: Parameters,
    layers: [(ParamId, ParamId); 3],
}

impl WalkNetwork {
    /// A network with fresh weights.
    #[must_use]
    pub fn new(options: &WalkOptions, device: &Device) -> Self {
        let [first, second] = options.hidden;
        let widths = [count(options.steps), first, second, 1];
        let mut parameters = Parameters::new();
        let layers = std::array::from_fn(|layer| {
            let key = [WEIGHTS, options.seed, layer as u64];
            let (weight, bias) = init::torch_linear(device, widths[layer + 1], widths[layer], key);
            let name = LAYERS[layer];
            (parameters.add(format!("{name}.weight"), weight), parameters.add(format!("{name}.bias"), bias))
        });
        Self { parameters, layers }
    }

    /// Logits `[n, 1]` of the pairs whose rows are `features`.
    pub fn logits(&self, tape: &mut Tape<'_>, features: Var) -> Var {
        let [first, second, last] = self.layers;
        let mut x = features;
        for (weight, bias) in [first, second] {
            x = tape.linear(x, weight, Some(bias));
            x = tape.relu(x);
        }
        tape.linear(x, last.0, Some(last.1))
    }
}
