//! Layers of `evergraph bench ops --device cuda:0`, forward and backward, at the sizes of training: linear layers, GRU
//! cells, attention over slots between its matrix products, layer normalization, and a step of Adam.
//!
//! Times are the GPU's, of calls in a row: a short one's is that of its launch. Numbers are random; those that a
//! backward changes in place drift from call to call, which does not change the time.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::timed::timed;
use crate::cli::output;
use crate::device::Device;
use crate::device::cuda::layers::{
    Attention, AttentionSizes, Put, adam, attention_backward, attention_forward, gru_backward, gru_forward,
    layer_norm_backward, layer_norm_forward, layer_norm_parameters, pieces_of,
};
use crate::device::cuda::twins::{AdamStep, Mask};
use crate::device::cuda::{Cuda, CudaWork};
use crate::device::rng;
use crate::nn::cuda::linear;
use crate::nn::cuda::sums::{RowsRead::Lasting, Sums};
use crate::nn::{Tensor, TimeEncoder};

/// Sizes of the layers that are measured.
#[derive(Clone, Copy)]
pub struct LayerSizes {
    /// Rows, inputs, outputs: a predictor's layer, those after attention, and its keys and values in one product.
    pub linear: &'static [[usize; 3]],
    /// Rows, inputs, width: messages with and without an event's 172 features.
    pub gru: &'static [[usize; 3]],
    /// Seeds, slots, heads, columns of nodes, edges and times.
    pub attention: &'static [[usize; 6]],
    /// Rows, columns.
    pub layer_norm: &'static [[usize; 2]],
    /// Weights.
    pub adam: &'static [usize],
    /// Figures of which the median counts, and calls of each.
    pub how: (u32, u32),
}

/// Those of training in batches of 600.
pub const TRAINING: LayerSizes = LayerSizes {
    linear: &[[600, 200, 100], [1_800, 300, 100], [6_600, 444, 172], [18_000, 372, 200]],
    gru: &[[1_800, 472, 100], [6_000, 300, 100]],
    attention: &[[1_800, 10, 2, 100, 0, 100], [1_800, 10, 2, 100, 172, 100]],
    layer_norm: &[[1_800, 200], [18_000, 200]],
    adam: &[200_000, 1_000_000],
    how: (7, 20),
};

/// One of each, small: a quick run is a smoke test.
pub const QUICK: LayerSizes = LayerSizes {
    linear: &[[60, 20, 10]],
    gru: &[[60, 40, 10]],
    attention: &[[30, 10, 2, 10, 0, 10]],
    layer_norm: &[[60, 20]],
    adam: &[1_000],
    how: (1, 2),
};

/// Rows of the table that slots read.
const NODE_ROWS: usize = 10_000;

type Call<'a> = &'a mut dyn FnMut();

struct Bench {
    work: Arc<CudaWork>,
    device: Device,
    how: (u32, u32),
    drawn: u64,
    rows: Vec<Value>,
}

/// All rows.
///
/// # Errors
/// The GPU's.
pub fn measure(cuda: &Arc<Cuda>, sizes: &LayerSizes) -> anyhow::Result<Vec<Value>> {
    let work = CudaWork::new(cuda.clone());
    let device = Device::Cuda(work.clone());
    let mut bench = Bench { work, device, how: sizes.how, drawn: 0, rows: Vec::new() };
    sizes.linear.iter().try_for_each(|&shape| bench.linear(shape))?;
    sizes.gru.iter().try_for_each(|&shape| bench.gru(shape))?;
    sizes.attention.iter().try_for_each(|&shape| bench.attention(shape))?;
    sizes.layer_norm.iter().try_for_each(|&shape| bench.layer_norm(shape))?;
    sizes.adam.iter().try_for_each(|&count| bench.adam(count))?;
    Ok(bench.rows)
}

impl Bench {
    fn zeros(&self, rows: usize, cols: usize) -> Tensor {
        Tensor::zeros(&self.device, rows, cols)
    }

    /// Numbers of the normal distribution, small enough that sums of some hundred products are about 1.
    fn floats(&mut self, rows: usize, cols: usize) -> Tensor {
        self.drawn += 1;
        let one = |i| 0.1 * rng::normal_f32([3, self.drawn, i, 0]);
        Tensor::from_vec(&self.device, rows, cols, (0..(rows * cols) as u64).map(one).collect())
    }

    /// Times a layer both ways and keeps the figures.
    fn time_layer(
        &mut self,
        op: &str,
        shape: &[(&str, usize)],
        calls: &mut [(&str, Call<'_>)],
    ) -> anyhow::Result<()> {
        let id = shape.iter().fold(op.to_owned(), |id, (name, size)| format!("{id} {name}={size}"));
        let shape: Map<String, Value> =
            shape.iter().map(|(name, size)| ((*name).into(), json!(size))).collect();
        for (direction, call) in calls {
            let seconds = timed(self.work.cuda(), self.how, || {
                call();
                Ok(())
            })?;
            self.work.check()?;
            output::print_status(&format!("{id:<64} {direction:<8} {:>9.1} us", seconds.median * 1e6));
            self.rows.push(json!({
                "id": id, "op": op, "shape": shape, "direction": *direction, "seconds": seconds,
            }));
        }
        Ok(())
    }

    fn linear(&mut self, [m, k, n]: [usize; 3]) -> anyhow::Result<()> {
        let work = self.work.clone();
        let (x, w, b, d) = (self.floats(m, k), self.floats(n, k), self.floats(1, n), self.floats(m, n));
        let (mut out, mut dx) = (self.zeros(m, n), self.zeros(m, k));
        let (mut dw, mut db) = (self.zeros(n, k), self.zeros(1, n));
        let whole = (&w, linear::columns(&w, 0));
        let mut forward = || linear::forward(&work, &mut out, Put::REPLACE, (&x, 0), whole, Some(&b));
        let mut backward = || {
            linear::backward_input(&work, (&mut dx, 0), true, &d, whole);
            linear::backward_parameters(&work, Lasting(&d), Lasting(&x), true)
                .add_up(&mut [&mut dw, &mut db]);
        };
        self.time_layer(
            "linear",
            &[("m", m), ("k", k), ("n", n)],
            &mut [("forward", &mut forward), ("backward", &mut backward)],
        )
    }

    /// A whole cell: the products of its gates, and what is computed element by element.
    fn gru(&mut self, [rows, inputs, width]: [usize; 3]) -> anyhow::Result<()> {
        let work = self.work.clone();
        let (x, h) = (self.floats(rows, inputs), self.floats(rows, width));
        let (w_ih, w_hh) = (self.floats(3 * width, inputs), self.floats(3 * width, width));
        let (b_ih, b_hh) = (self.floats(1, 3 * width), self.floats(1, 3 * width));
        let (mut out, mut d, mut dx) =
            (self.zeros(rows, width), self.floats(rows, width), self.zeros(rows, inputs));
        let (mut dw_ih, mut dw_hh) = (self.zeros(3 * width, inputs), self.zeros(3 * width, width));
        let (mut db_ih, mut db_hh) = (self.zeros(1, 3 * width), self.zeros(1, 3 * width));
        let of_x = (&w_ih, linear::columns(&w_ih, 0));
        let of_h = (&w_hh, linear::columns(&w_hh, 0));
        let saved = RefCell::new((self.zeros(rows, 3 * width), self.zeros(rows, 3 * width)));
        let mut forward = || {
            let (gates, hidden) = &mut *saved.borrow_mut();
            linear::forward(&work, gates, Put::REPLACE, (&x, 0), of_x, Some(&b_ih));
            linear::forward(&work, hidden, Put::REPLACE, (&h, 0), of_h, None);
            work.run(|context| {
                let saved = (gates.on_gpu_mut()?, hidden.on_gpu_mut()?);
                gru_forward(context, [rows, width], saved, (h.on_gpu()?, b_hh.on_gpu()?), out.on_gpu_mut()?)
            });
        };
        let mut backward = || {
            let (gates, hidden) = &mut *saved.borrow_mut();
            work.run(|context| {
                let saved = (gates.on_gpu_mut()?, hidden.on_gpu_mut()?);
                gru_backward(context, [rows, width], d.on_gpu_mut()?, saved, h.on_gpu()?)
            });
            linear::backward_parameters(&work, Lasting(gates), Lasting(&x), true)
                .add_up(&mut [&mut dw_ih, &mut db_ih]);
            linear::backward_parameters(&work, Lasting(hidden), Lasting(&h), true)
                .add_up(&mut [&mut dw_hh, &mut db_hh]);
            linear::backward_input(&work, (&mut dx, 0), true, gates, of_x);
            linear::backward_input(&work, (&mut d, 0), false, hidden, of_h);
        };
        self.time_layer(
            "gru_cell",
            &[("rows", rows), ("input", inputs), ("hidden", width)],
            &mut [("forward", &mut forward), ("backward", &mut backward)],
        )
    }

    fn attention(&mut self, [seeds, slots, heads, node, edge, time]: [usize; 6]) -> anyhow::Result<()> {
        let (work, all) = (self.work.clone(), seeds * slots);
        let sizes = AttentionSizes { seeds, slots, heads, node, edge, time };
        // Every eighth slot is empty.
        let draw = |i: u64| match rng::below([4, i, 0, 0], 8) {
            0 => u32::MAX,
            _ => rng::below([5, i, 0, 0], NODE_ROWS as u32),
        };
        let rows = work.upload(&(0..all as u64).map(draw).collect::<Vec<u32>>());
        let deltas = work.upload(&(0..all as u64).map(|i| 1.5 * i as f32).collect::<Vec<f32>>());
        let (w, b) = (work.upload(&TimeEncoder::frequencies(time)), self.floats(1, time));
        let (nodes, edges) = (self.floats(NODE_ROWS, node), self.floats(all, edge));
        let blocks = heads * sizes.padded();
        let (u, dy) = (self.floats(seeds, blocks), self.floats(seeds, blocks));
        let attention = Attention {
            sizes,
            queries: None,
            slots: rows.get()?,
            edge_slots: None,
            nodes: (nodes.on_gpu()?, NODE_ROWS),
            edges: (edges.on_gpu()?, if edge == 0 { 0 } else { all }),
            deltas: deltas.get()?,
            encoding: (w.get()?, b.on_gpu()?),
            mask: Mask { prefix: 0, drop: 0, keep: 1.0 },
            u: (u.on_gpu()?, seeds),
        };
        let (mut du, mut dx) = (self.zeros(seeds, blocks), self.zeros(all, node + time));
        let saved = RefCell::new((self.zeros(seeds, blocks), self.zeros(seeds, heads * slots)));
        let mut forward = || {
            let (y, weights) = &mut *saved.borrow_mut();
            work.run(|context| {
                attention_forward(context, &attention, (y.on_gpu_mut()?, weights.on_gpu_mut()?))
            });
        };
        forward();
        let mut backward = || {
            let (y, weights) = &*saved.borrow();
            work.run(|context| {
                let saved = (y.on_gpu()?, weights.on_gpu()?, dy.on_gpu()?);
                let results = (du.on_gpu_mut()?, dx.on_gpu_mut()?);
                attention_backward(context, &attention, saved, (true, true), results)
            });
        };
        let shape = [("seeds", seeds), ("slots", slots), ("heads", heads), ("node", node), ("edge", edge)];
        self.time_layer(
            "slot_attention",
            &[&shape[..], &[("time", time)]].concat(),
            &mut [("forward", &mut forward), ("backward", &mut backward)],
        )
    }

    fn layer_norm(&mut self, [rows, cols]: [usize; 2]) -> anyhow::Result<()> {
        let (work, sizes) = (self.work.clone(), [rows, cols]);
        let (x, mut d) = (self.floats(rows, cols), self.floats(rows, cols));
        let (gamma, beta, mut y) = (self.floats(1, cols), self.floats(1, cols), self.zeros(rows, cols));
        let (mut dgamma, mut dbeta) = (self.zeros(1, cols), self.zeros(1, cols));
        let moments = RefCell::new(self.zeros(rows, 2));
        let mut forward = || {
            work.run(|context| {
                let mut moments = moments.borrow_mut();
                let (learned, results) =
                    ((gamma.on_gpu()?, beta.on_gpu()?, 1e-5), (y.on_gpu_mut()?, moments.on_gpu_mut()?));
                layer_norm_forward(context, sizes, x.on_gpu()?, learned, results)
            });
        };
        forward();
        let mut backward = || {
            let moments = moments.borrow();
            let sums = Sums::of(&work, [pieces_of(rows), 2 * cols], |context, partials| {
                let given = (d.on_gpu()?, x.on_gpu()?);
                layer_norm_parameters(context, sizes, given, moments.on_gpu()?, partials)
            });
            sums.add_up(&mut [&mut dgamma, &mut dbeta]);
            work.run(|context| {
                let saved = (x.on_gpu()?, moments.on_gpu()?);
                layer_norm_backward(context, sizes, d.on_gpu_mut()?, saved, gamma.on_gpu()?)
            });
        };
        self.time_layer(
            "layer_norm",
            &[("rows", rows), ("cols", cols)],
            &mut [("forward", &mut forward), ("backward", &mut backward)],
        )
    }

    fn adam(&mut self, count: usize) -> anyhow::Result<()> {
        let (work, mut weights, gradient) = (self.work.clone(), self.floats(1, count), self.floats(1, count));
        let (mut first, mut second) = (self.zeros(1, count), self.zeros(1, count));
        let step = AdamStep { beta1: 0.9, beta2: 0.999, size: 1e-3, root: 1.0, eps: 1e-8, shrink: 1.0 };
        let mut step = || {
            work.run(|context| {
                let moments = (first.on_gpu_mut()?, second.on_gpu_mut()?);
                adam(context, step, weights.on_gpu_mut()?, moments, gradient.on_gpu()?)
            });
        };
        self.time_layer("adam", &[("n", count)], &mut [("step", &mut step)])
    }
}
