//! Operations over groups of rows: fixed slots and segments.

use super::indices::{counts, offsets};
use super::inputs::Inputs;
use super::points::Point;
use super::work::{Cost, OnTape, Work};
use crate::nn::{Groups, Reduce, SlotAttention};

/// `slot_sum`, `slot_mean`.
pub fn slot_reduce(point: &Point, reduce: Reduce) -> anyhow::Result<Box<dyn Work>> {
    let (n, k, cols) = (point.number("rows")?, point.number("slots")?, point.cols()?);
    let counts = counts(n, k);
    let occupied: usize = counts.iter().map(|n| *n as usize).sum();
    let inputs = Inputs::default().learned("x", [n * k, cols]).numbers("counts", counts);
    let costs = (
        Cost::moving(occupied * cols + n + n * cols, occupied * cols),
        Cost::moving(n * k * cols + n + n * cols, 0),
    );
    Ok(OnTape::boxed(inputs, [n, cols], costs, move |tape, named| {
        let x = tape.param(named.param("x")?);
        let groups = Groups::Slots { slots: k, counts: named.numbers("counts")? };
        Ok(tape.reduce(x, &groups, reduce))
    }))
}

/// `segment_sum`, `segment_mean`.
pub fn segment_reduce(point: &Point, reduce: Reduce) -> anyhow::Result<Box<dyn Work>> {
    let (n, mean, cols) = (point.number("rows")?, point.number("mean_length")?, point.cols()?);
    let e = n * mean;
    let inputs = Inputs::default().learned("x", [e, cols]).numbers("offsets", offsets(n, mean));
    let costs =
        (Cost::moving(e * cols + n + 1 + n * cols, e * cols), Cost::moving(e * cols + n + 1 + n * cols, 0));
    Ok(OnTape::boxed(inputs, [n, cols], costs, move |tape, named| {
        let x = tape.param(named.param("x")?);
        Ok(tape.reduce(x, &Groups::Offsets(named.numbers("offsets")?), reduce))
    }))
}

/// Attention over occupied slots.
pub fn slot_attention(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (n, k) = (point.number("rows")?, point.number("slots")?);
    let (heads, width) = (point.number("heads")?, point.number("head_cols")?);
    let cols = heads * width;
    let counts = counts(n, k);
    let occupied: usize = counts.iter().map(|n| *n as usize).sum();
    let inputs = Inputs::default()
        .learned("q", [n, cols])
        .learned("k", [n * k, cols])
        .learned("v", [n * k, cols])
        .numbers("counts", counts);
    let costs = (
        Cost::moving(2 * n * cols + 2 * occupied * cols + n, 4 * occupied * cols),
        Cost::moving(3 * n * cols + 2 * occupied * cols + 2 * n * k * cols + n, 8 * occupied * cols),
    );
    Ok(OnTape::boxed(inputs, [n, cols], costs, move |tape, named| {
        let [q, k, v] = [named.param("q")?, named.param("k")?, named.param("v")?].map(|id| tape.param(id));
        Ok(tape.slot_attention(SlotAttention { q, k, v, counts: named.numbers("counts")?, heads }))
    }))
}
