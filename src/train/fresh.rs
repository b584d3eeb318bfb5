//! Fresh memory: the rows of the nodes that a batch touches, with the messages applied that waited for them. A step
//! leaves them in the scratch buffer, from where the state takes them over, and on a GPU also there, from where its
//! copy of the state does.

use super::prepare::PreparedBatch;
use super::trainer::{Scratch, TrainError, Trainer};
use crate::device::{Device, matmul};
use crate::event::NodeId;
use crate::nn::{Fetched, Mode, Tape, TapePool, Tensor};

impl Trainer {
    /// Has the GPU's copy of memory and messages follow the step of `batch`, whose fresh rows are in the scratch
    /// buffer. Returns whether rows are refused. Comes before the state is updated. The CPU has no copy.
    pub(super) fn mirror_follows(&mut self, batch: &PreparedBatch) -> bool {
        let on_gpu = self.fresh_on_gpu.take();
        let (state, width) = (&self.state, self.state.memory.dimension());
        if self.device == Device::Cpu || width == 0 {
            return false;
        }
        let fresh = &self.scratch.get_mut().fresh;
        let (touched, events) = (&batch.touched, batch.positives());
        let (mut written, mut refuses) = (Vec::with_capacity(touched.nodes().len()), false);
        for (place, &node) in touched.nodes().iter().enumerate() {
            if state.mailbox.is_pending(node) {
                match fresh[place * width..][..width].iter().all(|value| value.is_finite()) {
                    // Places are counted in 32 bits.
                    true => written.push(place as u32),
                    false => refuses = true,
                }
            }
        }
        let other = |(&node, &last): (&NodeId, &u32)| events.of(node, last as usize).0;
        let others: Vec<NodeId> = touched.nodes().iter().zip(touched.last_events()).map(other).collect();
        state.mirror.follow(touched, &written, on_gpu.as_ref(), &others);
        refuses
    }

    /// Applies the touched nodes' pending messages into the scratch buffer.
    pub(super) fn refresh_touched(&mut self, batch: &PreparedBatch) -> Result<(), TrainError> {
        if self.state.memory.dimension() == 0 {
            return Ok(());
        }
        self.state.mirror.bring_up_to_date(&self.device, &self.state.memory, &self.state.mailbox);
        let Scratch { pool, edges, fresh, .. } = self.scratch.get_mut();
        let places = edges.place(&self.device, &batch.rows);
        let mut tape = Tape::pooled(&self.device, &self.model.parameters, Mode::Inference, pool);
        let messages = batch.rows.messages().at(places.as_ref());
        let rows = matmul::in_precision(self.options.precision, || {
            self.model.fresh_memory(&mut tape, (&self.state).into(), batch.touched(), messages)
        });
        let rows = tape.take_value(rows).fetch();
        drop(tape);
        fresh.clear();
        self.fresh_on_gpu = take_fresh(rows, fresh, pool);
        Ok(self.device.check()?)
    }
}

/// Appends rows to `kept`; returns those on a GPU, if they were computed there.
pub(super) fn take_fresh(rows: Fetched, kept: &mut Vec<f32>, pool: &mut TapePool) -> Option<Tensor> {
    let rows = rows.append_to(kept);
    if *rows.device() != Device::Cpu {
        return Some(rows);
    }
    pool.give(rows);
    None
}
