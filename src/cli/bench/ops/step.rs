//! The reference step: a whole training step of a TGN with all its parts, of the size that published runs use.
//!
//! ```text
//! m = memory rows        phi(dt) = cos(dt * time_w + time_b)
//! query_i = [m[target_i] ; phi(0)]         slot_ik = [m[neighbor_ik] ; edge_features_ik ; phi(dt_ik)]
//! a_i = attention(query_i w_qᵀ, slots w_kᵀ, slots w_vᵀ), 2 heads of 100        o_i = a_i w_oᵀ + b_o
//! z_i = relu([o_i ; m[target_i]] w_aᵀ + b_a) w_bᵀ + b_b
//! logit(u, v) = relu([z_u ; z_v] w_cᵀ + b_c) w_dᵀ + b_d
//! ```
//! A third of the targets are sources, a third destinations, a third negative ones; the loss is the mean of binary
//! cross entropy over the pairs with destinations (target 1), then those with negatives (target 0). AdamW goes over
//! everything, the memory and the time encoding too.

use std::time::Instant;

use super::indices::draw;
use super::inputs::{Inputs, Named};
use super::points::Point;
use super::work::{About, Before, Cost, Output, Work, gradients};
use crate::device::Device;
use crate::nn::{
    Adam, AdamOptions, Gradients, Mode, ParamId, Tape, TapePool, TemporalAttention, TimeEncoder, Var,
};

const MEMORY: usize = 100;
const TIME: usize = 100;
const EDGE: usize = 172;
const MODEL: usize = 200;
const HIDDEN: usize = 100;

struct ReferenceStep {
    about: About,
    named: Named,
    gradients: Gradients,
    adam: Adam,
    pool: TapePool,
    targets: usize,
}

/// The step at its one size.
pub fn reference_step(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (targets, slots) = (point.number("targets")?, point.number("slots")?);
    let rows = point.number("memory_rows")?;
    let (query, slot) = (MEMORY + TIME, MEMORY + EDGE + TIME);
    let inputs = Inputs::default()
        .learned("memory", [rows, MEMORY])
        .learned("time_w", [1, TIME])
        .learned("time_b", [1, TIME])
        .small("w_q", [MODEL, query], 0.1)
        .small("w_k", [MODEL, slot], 0.1)
        .small("w_v", [MODEL, slot], 0.1)
        .small("w_o", [MODEL, MODEL], 0.1)
        .small("b_o", [1, MODEL], 0.1)
        .small("w_a", [HIDDEN, MODEL + MEMORY], 0.1)
        .small("b_a", [1, HIDDEN], 0.1)
        .small("w_b", [HIDDEN, HIDDEN], 0.1)
        .small("b_b", [1, HIDDEN], 0.1)
        .small("w_c", [HIDDEN, 2 * HIDDEN], 0.1)
        .small("b_c", [1, HIDDEN], 0.1)
        .small("w_d", [1, HIDDEN], 0.1)
        .small("b_d", [1, 1], 0.1)
        .given("edge_features", [targets * slots, EDGE])
        .numbers("target", draw("uniform", targets, rows, 1)?)
        .numbers("neighbor", draw("uniform", targets * slots, rows, 2)?)
        .deltas("dt", targets * slots);
    let named = Named::new(&inputs);
    let gradients = Gradients::new(&Device::Cpu, &named.parameters);
    let adam = optimizer(&named);
    let pool = TapePool::new();
    let about = About { inputs, shape: vec![targets, slots], costs: (cost([targets, slots, rows]), None) };
    Ok(Box::new(ReferenceStep { about, named, gradients, adam, pool, targets }))
}

fn cost([t, slots, memory_rows]: [usize; 3]) -> Cost {
    let (k, slot) = (t * slots, MEMORY + EDGE + TIME);
    // Layers three times (forward, two gradients), as if keys and values were projected for every slot.
    let layers = MODEL * (MEMORY + TIME) + MODEL * MODEL + HIDDEN * (MODEL + MEMORY) + HIDDEN * HIDDEN;
    let pairs = 2 * t / 3 * (2 * HIDDEN * HIDDEN + HIDDEN);
    let flops = 6 * (t * layers + 2 * k * slot * MODEL + pairs) + 12 * k * MODEL;
    Cost::computing(2 * k * (slot + 2) + 8 * memory_rows * MEMORY, flops)
}

/// AdamW with torch's defaults.
fn optimizer(named: &Named) -> Adam {
    let options = AdamOptions { weight_decay: 0.01, ..AdamOptions::default() };
    Adam::new(&Device::Cpu, &named.parameters, options)
}

fn layers(tape: &mut Tape<'_>, x: Var, weights: [ParamId; 4]) -> Var {
    let [w_a, b_a, w_b, b_b] = weights;
    let hidden = tape.linear(x, w_a, Some(b_a));
    let hidden = tape.relu(hidden);
    tape.linear(hidden, w_b, Some(b_b))
}

impl ReferenceStep {
    fn weights(&self, names: [&str; 4]) -> anyhow::Result<[ParamId; 4]> {
        let [a, b, c, d] = names;
        Ok([self.named.param(a)?, self.named.param(b)?, self.named.param(c)?, self.named.param(d)?])
    }

    fn loss(&self, tape: &mut Tape<'_>) -> anyhow::Result<Var> {
        let named = &self.named;
        let memory = tape.param(named.param("memory")?);
        let time = TimeEncoder::Trained { w: named.param("time_w")?, b: named.param("time_b")? };
        let own = tape.gather(memory, named.numbers("target")?);
        let now = tape.time_encoding(&vec![0.0; self.targets], &time);
        let query = tape.concat(&[own, now]);
        let attended = tape.temporal_attention(TemporalAttention {
            tail: Vec::new(),
            query,
            queries: None,
            nodes: memory,
            slots: named.numbers("neighbor")?.into(),
            readers: None,
            deltas: named.floats("dt")?.into(),
            edge_rows: Some(named.tensor("edge_features")?),
            edge_slots: None,
            w_q: named.param("w_q")?,
            w_k: named.param("w_k")?,
            w_v: named.param("w_v")?,
            heads: 2,
            time: &time,
            dropout: 0.0,
            key: [0; 3],
        });
        let out = tape.linear(attended, named.param("w_o")?, Some(named.param("b_o")?));
        let joined = tape.concat(&[out, own]);
        let z = layers(tape, joined, self.weights(["w_a", "b_a", "w_b", "b_b"])?);
        let third = self.targets / 3;
        let source: Vec<u32> = (0_u32..).take(third).collect();
        let sources = tape.gather(z, source.repeat(2));
        let others = tape.rows(z, third..3 * third);
        let pairs = tape.concat(&[sources, others]);
        let logits = layers(tape, pairs, self.weights(["w_c", "b_c", "w_d", "b_d"])?);
        let targets: Vec<f32> = (0..2 * third).map(|i| if i < third { 1.0 } else { 0.0 }).collect();
        Ok(tape.bce_with_logits(logits, &targets))
    }

    /// Forward and backward; the loss.
    fn learn(&mut self) -> anyhow::Result<f32> {
        self.gradients.start_over();
        let mut pool = std::mem::take(&mut self.pool);
        let mut tape = Tape::pooled(&Device::Cpu, &self.named.parameters, Mode::Train, &mut pool);
        let loss = self.loss(&mut tape)?;
        let value = tape.scalar(loss);
        tape.backward(loss, &mut self.gradients);
        drop(tape);
        self.pool = pool;
        Ok(value)
    }
}

impl Work for ReferenceStep {
    fn forward(&mut self, before: Before<'_>) -> anyhow::Result<f64> {
        before();
        let started = Instant::now();
        self.learn()?;
        self.adam.step(&mut self.named.parameters, &self.gradients);
        Ok(started.elapsed().as_secs_f64())
    }

    fn outputs(&mut self) -> anyhow::Result<Vec<Output>> {
        self.named = Named::new(&self.about.inputs);
        let loss = self.learn()?;
        let mut outputs = vec![Output { name: "out".to_owned(), shape: vec![1, 1], values: vec![loss] }];
        outputs.extend(gradients(&self.about.inputs, &self.named, &self.gradients));
        Ok(outputs)
    }

    fn about(&self) -> &About {
        &self.about
    }
}
