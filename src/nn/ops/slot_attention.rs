//! Attention over fixed slots whose keys and values are projected already.
//!
//! ```text
//! a_ik = softmax over the occupied slots k of (q_i . k_ik) / sqrt(d)        out_i = sum_k a_ik v_ik
//! ds_k = a_k (dout . v_k - sum_j a_j dout . v_j) / sqrt(d)
//! dq = sum_k ds_k k_k        dk_k = ds_k q        dv_k = a_k dout           each head on its own d columns
//! ```
//! [`temporal_attention`](Tape::temporal_attention) is cheaper where keys and values are linear in rows that many
//! slots share; this is for keys and values of any origin.

use std::sync::Arc;

use crate::device::Device;
use crate::nn::cpu::slot_attention::{self as cpu, Shape};
use crate::nn::tape::{Backward, Walk};
use crate::nn::{Tape, TapePool, Tensor, Var};

/// Arguments of [`Tape::slot_attention`] for `n` seeds with `K` slots and `h` heads of `d` columns.
#[derive(Clone, Debug)]
pub struct SlotAttention {
    /// `[n, h * d]`.
    pub q: Var,
    /// `[n * K, h * d]`.
    pub k: Var,
    /// `[n * K, h * d]`.
    pub v: Var,
    /// Occupied slots of each seed, the first ones: `[n]`, each at most K.
    pub counts: Arc<Vec<u32>>,
    /// Number of heads, h.
    pub heads: usize,
}

struct Attention {
    args: SlotAttention,
    shape: Shape,
    /// `[n, heads * K]`.
    weights: Tensor,
}

impl Tape<'_> {
    /// Scaled dot-product attention of each seed over its occupied slots, heads side by side: `[n, h * d]`. A seed
    /// without an occupied slot gets zeros.
    ///
    /// # Panics
    /// If the shapes do not agree or there are more occupied slots than slots.
    pub fn slot_attention(&mut self, args: SlotAttention) -> Var {
        let (seeds, cols) = self.value(args.q).shape();
        let rows = self.value(args.k).rows();
        let slots = rows.checked_div(seeds).unwrap_or(0);
        assert_eq!(self.value(args.k).shape(), (seeds * slots, cols), "slot_attention: keys");
        assert_eq!(self.value(args.v).shape(), (rows, cols), "slot_attention: values");
        assert!(
            args.heads > 0 && cols % args.heads == 0,
            "slot_attention: {cols} columns in {} heads",
            args.heads
        );
        assert_eq!(args.counts.len(), seeds, "slot_attention: a count per seed");
        assert!(args.counts.iter().all(|n| *n as usize <= slots), "slot_attention: more than {slots} slots");
        let shape = Shape { slots, heads: args.heads, width: cols / args.heads };
        let (mut out, mut weights) = (self.room(seeds, cols), self.room(seeds, args.heads * slots));
        match self.device() {
            Device::Cpu => cpu::forward(shape, self.inputs(&args), out.data_mut(), weights.data_mut()),
            Device::Cuda(work) => work.refuse("attention over projected slots"),
        }
        let needs = [args.q, args.k, args.v].into_iter().any(|var| self.needs(var));
        if !needs {
            self.give(weights);
            return self.push(out, false, None);
        }
        self.push(out, true, Some(Box::new(Attention { args, shape, weights })))
    }

    fn inputs<'a>(&'a self, args: &'a SlotAttention) -> cpu::Inputs<'a> {
        let [q, k, v] = [args.q, args.k, args.v].map(|var| self.value(var).data());
        cpu::Inputs { q, k, v, counts: &args.counts }
    }
}

impl Backward for Attention {
    fn backward(self: Box<Self>, _result: Var, d: Tensor, walk: &mut Walk<'_>) {
        let Self { args, shape, weights } = *self;
        let vars = [args.q, args.k, args.v];
        let [mut dq, mut dk, mut dv] = vars.map(|var| walk.take_like(var));
        match walk.device {
            Device::Cpu => {
                let [q, k, v] = vars.map(|var| walk.value(var).data());
                let inputs = cpu::Inputs { q, k, v, counts: &args.counts };
                let out = cpu::Gradients { dq: dq.data_mut(), dk: dk.data_mut(), dv: dv.data_mut() };
                cpu::backward(shape, inputs, weights.data(), d.data(), out);
            }
            Device::Cuda(work) => work.refuse("attention over projected slots"),
        }
        for (var, gradient) in vars.into_iter().zip([dq, dk, dv]) {
            walk.flow(var, gradient);
        }
        walk.give(weights);
        walk.give(d);
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        pool.give(self.weights);
    }
}
