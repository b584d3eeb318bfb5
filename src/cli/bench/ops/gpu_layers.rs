//! Layers of `evergraph bench ops --device cuda:0`, forward and backward, at the sizes of training: linear layers, GRU
//! cells, attention over slots between its matrix products, layer normalization, and a step of Adam.
//!
//! Times are the GPU's, of calls in a row: a short one's is that of its launch. Numbers are random; those that a
//! backward changes in place drift from call to call, which does not change the time.

use serde_json::{Map, Value, json};

use super::super::timed::timed;
use crate::cli::output;
use crate::device::cuda::layers::{
    Attention, AttentionSizes, Layout, LinearSizes, Matrix, Put, StreamContext, adam, attention_backward,
    attention_forward, gru_backward, gru_forward, layer_norm_backward, layer_norm_forward,
    layer_norm_parameters, linear_bias, linear_forward, linear_input, linear_pieces, linear_weights,
    pieces_of, sum_pieces,
};
use crate::device::cuda::twins::{AdamStep, Mask};
use crate::device::cuda::{Cuda, CudaBuffer, CudaError};
use crate::device::rng;
use crate::nn::TimeEncoder;

const WHAT: &str = "a measurement of layers";

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

type Call<'a> = &'a mut dyn FnMut() -> Result<(), CudaError>;

struct Bench<'a> {
    cuda: &'a Cuda,
    how: (u32, u32),
    drawn: u64,
    rows: Vec<Value>,
}

/// All rows.
///
/// # Errors
/// The GPU's.
pub fn measure(cuda: &Cuda, sizes: &LayerSizes) -> anyhow::Result<Vec<Value>> {
    let mut bench = Bench { cuda, how: sizes.how, drawn: 0, rows: Vec::new() };
    sizes.linear.iter().try_for_each(|&shape| bench.linear(shape))?;
    sizes.gru.iter().try_for_each(|&shape| bench.gru(shape))?;
    sizes.attention.iter().try_for_each(|&shape| bench.attention(shape))?;
    sizes.layer_norm.iter().try_for_each(|&shape| bench.layer_norm(shape))?;
    sizes.adam.iter().try_for_each(|&count| bench.adam(count))?;
    Ok(bench.rows)
}

impl<'a> Bench<'a> {
    fn context(&self) -> StreamContext<'a> {
        (self.cuda, self.cuda.compute())
    }

    fn copy<T: bytemuck::Pod>(&self, values: &[T]) -> Result<CudaBuffer<T>, CudaError> {
        CudaBuffer::from_slice(self.cuda, self.cuda.compute(), values, WHAT)
    }

    fn zeros(&self, len: usize) -> Result<CudaBuffer<f32>, CudaError> {
        CudaBuffer::zeros(self.cuda, self.cuda.compute(), len, WHAT)
    }

    /// Numbers of the normal distribution, small enough that sums of some hundred products are about 1.
    fn floats(&mut self, len: usize) -> Result<CudaBuffer<f32>, CudaError> {
        self.drawn += 1;
        let values: Vec<f32> =
            (0..len as u64).map(|i| 0.1 * rng::normal_f32([3, self.drawn, i, 0])).collect();
        self.copy(&values)
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
            let seconds = timed(self.cuda, self.how, &mut **call)?;
            output::print_status(&format!("{id:<64} {direction:<8} {:>9.1} us", seconds.median * 1e6));
            self.rows.push(json!({
                "id": id, "op": op, "shape": shape, "direction": *direction, "seconds": seconds,
            }));
        }
        Ok(())
    }

    fn linear(&mut self, [m, k, n]: [usize; 3]) -> anyhow::Result<()> {
        let context = self.context();
        let sizes = LinearSizes::new([m, k, n]);
        let (inputs, outputs) = (Layout::dense(k), Layout::dense(n));
        let (x, w, b, d) = (self.floats(m * k)?, self.floats(n * k)?, self.floats(n)?, self.floats(m * n)?);
        let (mut out, mut dx, mut sums) =
            (self.zeros(m * n)?, self.zeros(m * k)?, Sums::new(self, m, [n, k])?);
        let mut forward = || {
            linear_forward(
                context,
                sizes,
                (&x, inputs),
                (&w, inputs),
                Some(&b),
                Put::REPLACE,
                (&mut out, outputs),
            )
        };
        let mut backward = || {
            linear_input(context, sizes, (&d, outputs), (&w, inputs), Put::REPLACE, (&mut dx, inputs))?;
            sums.weights(context, sizes, ((&d, outputs), (&x, inputs)), 0)?;
            sums.finish(context, (&d, outputs))
        };
        self.time_layer(
            "linear",
            &[("m", m), ("k", k), ("n", n)],
            &mut [("forward", &mut forward), ("backward", &mut backward)],
        )
    }

    /// A whole cell: the products of its gates, and what is computed element by element.
    fn gru(&mut self, [rows, inputs, width]: [usize; 3]) -> anyhow::Result<()> {
        let context = self.context();
        let (of_x, of_h, of_gates) = (Layout::dense(inputs), Layout::dense(width), Layout::dense(3 * width));
        let (all, two, new) = (
            LinearSizes::new([rows, inputs, 3 * width]),
            LinearSizes::new([rows, width, 2 * width]),
            LinearSizes::new([rows, width, width]),
        );
        let (x, h) = (self.floats(rows * inputs)?, self.floats(rows * width)?);
        let (w_ih, w_hh) = (self.floats(3 * width * inputs)?, self.floats(3 * width * width)?);
        let (b_ih, b_hh, mut d) =
            (self.floats(3 * width)?, self.floats(3 * width)?, self.floats(rows * width)?);
        let (gates, hidden) = (self.zeros(rows * 3 * width)?, self.zeros(rows * width)?);
        let (gates, hidden) = (std::cell::RefCell::new(gates), std::cell::RefCell::new(hidden));
        let (mut out, mut dx) = (self.zeros(rows * width)?, self.zeros(rows * inputs)?);
        let mut of_inputs = Sums::new(self, rows, [3 * width, inputs])?;
        let mut of_states = Sums::new(self, rows, [3 * width, width])?;
        let behind = of_h.at(2 * width * width);
        let mut forward = || {
            let (gates, hidden) = (&mut *gates.borrow_mut(), &mut *hidden.borrow_mut());
            linear_forward(
                context,
                all,
                (&x, of_x),
                (&w_ih, of_x),
                Some(&b_ih),
                Put::REPLACE,
                (gates, of_gates),
            )?;
            linear_forward(context, two, (&h, of_h), (&w_hh, of_h), None, Put::ADD, (gates, of_gates))?;
            linear_forward(context, new, (&h, of_h), (&w_hh, behind), None, Put::REPLACE, (hidden, of_h))?;
            gru_forward(context, [rows, width], (gates, hidden), (&h, &b_hh), &mut out)
        };
        let mut backward = || {
            let (gates, hidden) = (&mut *gates.borrow_mut(), &mut *hidden.borrow_mut());
            gru_backward(context, [rows, width], &mut d, (&mut *gates, &mut *hidden), &h)?;
            let (gates, hidden) = ((&*gates, of_gates), (&*hidden, of_h));
            linear_input(context, all, gates, (&w_ih, of_x), Put::REPLACE, (&mut dx, of_x))?;
            linear_input(context, two, gates, (&w_hh, of_h), Put::ADD, (&mut d, of_h))?;
            linear_input(context, new, hidden, (&w_hh, behind), Put::ADD, (&mut d, of_h))?;
            of_inputs.weights(context, all, (gates, (&x, of_x)), 0)?;
            of_inputs.finish(context, gates)?;
            of_states.weights(context, two, (gates, (&h, of_h)), 0)?;
            of_states.weights(context, new, (hidden, (&h, of_h)), 2 * width * width)?;
            // The bias of this part is that of the gates, but for the block that the reset gate lets through.
            of_states.finish(context, gates)
        };
        self.time_layer(
            "gru_cell",
            &[("rows", rows), ("input", inputs), ("hidden", width)],
            &mut [("forward", &mut forward), ("backward", &mut backward)],
        )
    }

    fn attention(&mut self, [seeds, slots, heads, node, edge, time]: [usize; 6]) -> anyhow::Result<()> {
        let sizes = AttentionSizes { seeds, slots, heads, node, edge, time };
        let all = seeds * slots;
        // Every eighth slot is empty.
        let draw = |i: u64| match rng::below([4, i, 0, 0], 8) {
            0 => u32::MAX,
            _ => rng::below([5, i, 0, 0], NODE_ROWS as u32),
        };
        let rows = self.copy(&(0..all as u64).map(draw).collect::<Vec<u32>>())?;
        let deltas = self.copy(&(0..all as u64).map(|i| 1.5 * i as f32).collect::<Vec<f32>>())?;
        let (w, b) = (self.copy(&TimeEncoder::frequencies(time))?, self.floats(time)?);
        let (nodes, edges) = (self.floats(NODE_ROWS * node)?, self.floats(all * edge)?);
        let block = seeds * heads * sizes.padded();
        let (u, dy) = (self.floats(block)?, self.floats(block)?);
        let attention = Attention {
            sizes,
            queries: None,
            slots: &rows,
            edge_slots: None,
            nodes: (&nodes, NODE_ROWS),
            edges: (&edges, if edge == 0 { 0 } else { all }),
            deltas: &deltas,
            encoding: (&w, &b),
            mask: Mask { prefix: 0, drop: 0, keep: 1.0 },
            u: (&u, seeds),
        };
        let (mut y, mut weights) = (self.zeros(block)?, self.zeros(seeds * heads * slots)?);
        let context = self.context();
        attention_forward(context, &attention, (&mut y, &mut weights))?;
        let (mut other, mut shares) = (self.zeros(block)?, self.zeros(seeds * heads * slots)?);
        let (mut du, mut dx) = (self.zeros(block)?, self.zeros(all * (node + time))?);
        let mut forward = || attention_forward(context, &attention, (&mut other, &mut shares));
        let mut backward = || {
            let saved = (&y, &weights, &dy);
            attention_backward(context, &attention, saved, (true, true), (&mut du, &mut dx))
        };
        let shape = [("seeds", seeds), ("slots", slots), ("heads", heads), ("node", node), ("edge", edge)];
        self.time_layer(
            "slot_attention",
            &[&shape[..], &[("time", time)]].concat(),
            &mut [("forward", &mut forward), ("backward", &mut backward)],
        )
    }

    fn layer_norm(&mut self, [rows, cols]: [usize; 2]) -> anyhow::Result<()> {
        let (context, sizes) = (self.context(), [rows, cols]);
        let (x, mut d) = (self.floats(rows * cols)?, self.floats(rows * cols)?);
        let (gamma, beta) = (self.floats(cols)?, self.floats(cols)?);
        let (mut y, mut moments) = (self.zeros(rows * cols)?, self.zeros(2 * rows)?);
        layer_norm_forward(context, sizes, &x, (&gamma, &beta, 1e-5), (&mut y, &mut moments))?;
        let (mut sums, pieces) = (self.zeros(2 * cols)?, pieces_of(rows));
        let (mut partials, mut again) = (self.zeros(pieces * 2 * cols)?, self.zeros(2 * rows)?);
        let mut forward =
            || layer_norm_forward(context, sizes, &x, (&gamma, &beta, 1e-5), (&mut y, &mut again));
        let mut backward = || {
            layer_norm_parameters(context, sizes, (&d, &x), &moments, &mut partials)?;
            sum_pieces(context, [pieces, 2 * cols], &partials, &mut sums, true)?;
            layer_norm_backward(context, sizes, &mut d, (&x, &moments), &gamma)
        };
        self.time_layer(
            "layer_norm",
            &[("rows", rows), ("cols", cols)],
            &mut [("forward", &mut forward), ("backward", &mut backward)],
        )
    }

    fn adam(&mut self, count: usize) -> anyhow::Result<()> {
        let (mut weights, gradient) = (self.floats(count)?, self.floats(count)?);
        let (mut first, mut second) = (self.zeros(count)?, self.zeros(count)?);
        let context = self.context();
        let step = AdamStep { beta1: 0.9, beta2: 0.999, size: 1e-3, root: 1.0, eps: 1e-8, shrink: 1.0 };
        let mut step = || adam(context, step, &mut weights, (&mut first, &mut second), &gradient);
        self.time_layer("adam", &[("n", count)], &mut [("step", &mut step)])
    }
}

/// Sums over rows: the gradients of a matrix and of the bias after it.
struct Sums {
    rows: usize,
    /// Rows and columns of the matrix.
    shape: [usize; 2],
    partials: CudaBuffer<f32>,
    out: CudaBuffer<f32>,
}

impl Sums {
    fn new(bench: &Bench<'_>, rows: usize, shape: [usize; 2]) -> Result<Self, CudaError> {
        let values = shape[0] * shape[1] + shape[0];
        let partials = bench.zeros(linear_pieces(rows) * values)?;
        Ok(Self { rows, shape, partials, out: bench.zeros(values)? })
    }

    fn step(&self) -> usize {
        self.shape[0] * self.shape[1] + self.shape[0]
    }

    /// Those of the rows of the matrix that begin `first` values after its beginning.
    fn weights(
        &mut self,
        context: StreamContext<'_>,
        sizes: LinearSizes,
        (d, a): (Matrix<'_>, Matrix<'_>),
        first: usize,
    ) -> Result<(), CudaError> {
        let (step, into) = (self.step(), Layout::dense(self.shape[1]).at(first));
        linear_weights(context, sizes, d, a, step, (&mut self.partials, into))
    }

    /// Those of the bias, and the sums of all.
    fn finish(&mut self, context: StreamContext<'_>, d: Matrix<'_>) -> Result<(), CudaError> {
        let (step, [outputs, inputs]) = (self.step(), self.shape);
        linear_bias(context, [self.rows, outputs], d, step, (&mut self.partials, outputs * inputs))?;
        sum_pieces(context, [linear_pieces(self.rows), step], &self.partials, &mut self.out, true)
    }
}
