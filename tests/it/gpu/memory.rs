//! Memory and mailbox on a card follow a stream as the model's own state does, bit for bit.

use evergraph::device::cuda::CudaBuffer;
use evergraph::device::cuda::layers::{BatchEnds, CardMemory, Messages};
use evergraph::event::{EdgeId, EventTime, NodeId};
use evergraph::model::{Interactions, TgnOptions, TgnState, Touched};
use evergraph::nn::TimeEncoder;

use super::layers::On;
use super::{Draws, card};
use crate::kernels_host::nn::{Inputs, twin_fuses};

const NODES: usize = 40;
const WIDTH: usize = 37;
const FEATURES: usize = 5;
const TIME: usize = 6;

/// Some events, also of a node with itself, late ones and ones of equal time.
struct Batch {
    src: Vec<NodeId>,
    dst: Vec<NodeId>,
    times: Vec<EventTime>,
    edges: Vec<EdgeId>,
}

impl Batch {
    fn drawn(draws: &mut Draws, number: u64) -> Self {
        let count = 1 + draws.below(20);
        let mut nodes = || (0..count).map(|_| NodeId(draws.below(NODES) as u32)).collect();
        let (src, dst) = (nodes(), nodes());
        let time = |draws: &mut Draws| EventTime(number as i64 * 50 + draws.below(120) as i64 / 3);
        Self {
            src,
            dst,
            times: (0..count).map(|_| time(draws)).collect(),
            edges: (0..count as u64).map(|i| EdgeId(100 * number + i)).collect(),
        }
    }

    fn events(&self) -> Interactions<'_> {
        Interactions { src: &self.src, dst: &self.dst, times: &self.times, edges: &self.edges }
    }
}

/// The model's state, the card's, and what both are told.
struct Pair<'a> {
    on: On<'a>,
    state: TgnState,
    card: CardMemory,
    w: Vec<f32>,
    b: Vec<f32>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

impl Pair<'_> {
    fn ids(&self, nodes: &[NodeId]) -> CudaBuffer<u32> {
        self.on.copy(&nodes.iter().map(|node| node.0).collect::<Vec<_>>())
    }

    /// Builds the messages of `pending` on the card and compares them with what the state says; returns the rows that
    /// they begin with.
    fn messages(&self, draws: &mut Draws, pending: &[NodeId]) -> Vec<f32> {
        if pending.is_empty() {
            return Vec::new();
        }
        let table = draws.floats(9 * FEATURES, 1.0);
        let rows: Vec<u32> = pending.iter().map(|_| draws.below(11) as u32).collect();
        let columns = 2 * WIDTH + FEATURES + TIME;
        let (mut out, mut own) = (self.on.room(pending.len() * columns), self.on.room(pending.len() * WIDTH));
        let (on_table, on_rows) = (self.on.copy(&table), self.on.copy(&rows));
        let from = Messages {
            nodes: &self.ids(pending),
            features: (&on_table, FEATURES, &on_rows),
            encoding: (&self.on.copy(&self.w), &self.on.copy(&self.b)),
            origin: self.state.origin.map_or(0, |origin| origin.0),
        };
        self.card.messages(self.on.place(), from, &mut out, &mut own).unwrap();
        let waiting = |node: &NodeId| self.state.mailbox.pending(*node).unwrap();
        let deltas: Vec<f32> =
            pending.iter().map(|node| self.state.since_update(*node, waiting(node).time)).collect();
        let inputs = Inputs::new(&[("w", TIME, &self.w), ("b", TIME, &self.b)]);
        let (encoded, _) = inputs.run(&vec![0.0; deltas.len() * TIME], &[], |tape, parameters| {
            let (w, b) = (parameters.find("w").unwrap(), parameters.find("b").unwrap());
            tape.time_encoding(&deltas, &TimeEncoder::Trained { w, b })
        });
        let (mut expected, mut expected_own) = (Vec::new(), Vec::new());
        for (i, node) in pending.iter().enumerate() {
            let mut row = vec![0.0; WIDTH];
            self.state.memory.row_into(*node, &mut row);
            expected_own.extend_from_slice(&row);
            expected.append(&mut row);
            expected.extend_from_slice(waiting(node).mail);
            let features = table.chunks(FEATURES).nth(rows[i] as usize).unwrap_or(&[0.0; FEATURES]);
            expected.extend_from_slice(features);
            expected.extend_from_slice(&encoded[i * TIME..][..TIME]);
        }
        let (out, own) = (out.copy_to_host().unwrap(), own.copy_to_host().unwrap());
        assert!(bits(&out) == bits(&expected) || !twin_fuses(), "messages of {pending:?}");
        assert_eq!(bits(&own), bits(&expected_own), "rows of {pending:?}");
        own
    }

    /// Memory of `nodes` on the card where `updated` has new rows of some.
    fn fresh(&self, nodes: &[NodeId], pending: &[NodeId], updated: &[f32]) -> CudaBuffer<f32> {
        let place =
            |node: &NodeId| pending.iter().position(|other| other == node).map_or(u32::MAX, |i| i as u32);
        let from: Vec<u32> = nodes.iter().map(place).collect();
        let mut fresh = self.on.room(nodes.len() * WIDTH);
        let (ids, from) = (self.ids(nodes), self.on.copy(&from));
        self.card.fresh(self.on.place(), (&ids, &from), &self.on.copy(updated), &mut fresh).unwrap();
        fresh
    }

    /// Takes in a batch on both sides; says how many rows were refused.
    fn step(&mut self, draws: &mut Draws, batch: &Batch) -> usize {
        let mut touched = Touched::default();
        touched.build(&batch.events());
        // All nodes of the batch, and some that it only looks at.
        let mut nodes = touched.nodes().to_vec();
        nodes.extend(
            (0..NODES as u32 + 3).map(NodeId).filter(|node| touched.last(*node).is_none()).step_by(3),
        );
        let is_pending = |node: &&NodeId| self.state.mailbox.is_pending(**node);
        let pending: Vec<NodeId> = nodes.iter().filter(is_pending).copied().collect();
        let own = self.messages(draws, &pending);
        let mut updated: Vec<f32> = own.iter().map(|value| 0.5 * value + 0.25).collect();
        updated.iter_mut().for_each(|value| *value += draws.floats(1, 0.1)[0]);
        if !updated.is_empty() && draws.below(3) == 0 {
            let at = draws.below(updated.len());
            updated[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][draws.below(3)];
        }
        let on_card = self.fresh(&nodes, &pending, &updated);
        let fresh = on_card.copy_to_host().unwrap();
        for (node, row) in nodes.iter().zip(fresh.chunks(WIDTH)) {
            let mut expected = vec![0.0; WIDTH];
            self.state.memory.row_into(*node, &mut expected);
            if let Some(i) = pending.iter().position(|other| other == node) {
                expected.copy_from_slice(&updated[i * WIDTH..][..WIDTH]);
            }
            assert_eq!(bits(row), bits(&expected), "{node:?}");
        }
        // Touched nodes are the first of all.
        let waits = |(i, node): (u32, &NodeId)| if pending.contains(node) { i } else { u32::MAX };
        let rows: Vec<u32> = (0..).zip(touched.nodes()).map(waits).collect();
        let (ids, rows) = (self.ids(touched.nodes()), self.on.copy(&rows));
        let mut refused = self.on.copy(&[0_u32]);
        let place = self.on.place();
        self.card.remember(place, (&ids, &rows), &on_card, &mut refused).unwrap();
        let times: Vec<i64> = batch.times.iter().map(|time| time.0).collect();
        let ends = BatchEnds {
            src: &self.ids(&batch.src),
            dst: &self.ids(&batch.dst),
            times: &self.on.copy(&times),
        };
        self.card.post(place, (&ids, &self.on.copy(touched.last_events())), ends).unwrap();
        let expected = self.state.remember(&batch.events(), &touched, |i| &fresh[i * WIDTH..][..WIDTH]);
        assert_eq!(refused.copy_to_host().unwrap(), [expected as u32], "rows that are refused");
        expected
    }

    /// Whether both know the same.
    fn compare(&self) {
        let ((memory, updated), (mails, times)) = (self.card.memory().unwrap(), self.card.mails().unwrap());
        for (i, node) in (0..NODES as u32).map(NodeId).enumerate() {
            let of = |rows: &[f32]| bits(&rows[i * WIDTH..][..WIDTH]);
            let mut row = vec![0.0; WIDTH];
            self.state.memory.row_into(node, &mut row);
            assert_eq!(of(&memory), bits(&row), "memory of {node:?}");
            assert_eq!(EventTime(updated[i]), self.state.memory.updated(node), "{node:?}");
            if let Some(message) = self.state.mailbox.pending(node) {
                assert_eq!(of(&mails), bits(message.mail), "mail of {node:?}");
                assert_eq!(EventTime(times[i]), message.time, "{node:?}");
            }
        }
    }
}

#[test]
fn memory_on_a_card_follows_a_stream_as_the_models_state() {
    let cuda = card();
    let on = On(&cuda);
    let mut draws = Draws::new(1);
    let options =
        TgnOptions { memory_dim: WIDTH, edge_feature_dim: FEATURES, time_dim: TIME, ..TgnOptions::default() };
    let mut pair = Pair {
        on,
        state: TgnState::new(&options.needs()),
        card: CardMemory::new(on.place(), 7, WIDTH).unwrap(),
        w: TimeEncoder::frequencies(TIME),
        b: draws.floats(TIME, 1.0),
    };
    // Grows with what is there, and is not made smaller.
    pair.card.grow(on.place(), NODES).unwrap();
    pair.card.grow(on.place(), 3).unwrap();
    assert_eq!((pair.card.nodes(), pair.card.width()), (NODES, WIDTH));
    let mut refused = 0;
    for number in 1..25 {
        if number == 5 {
            let (before, times) = pair.card.memory().unwrap();
            pair.card.grow(on.place(), NODES + 2).unwrap();
            let (after, later) = pair.card.memory().unwrap();
            assert_eq!((&after[..before.len()], &later[..NODES]), (&before[..], &times[..]));
            assert_eq!(later[NODES..], [i64::MIN; 2]);
        }
        let batch = Batch::drawn(&mut draws, number);
        refused += pair.step(&mut draws, &batch);
        pair.compare();
    }
    assert!(refused > 0, "rows that are not finite came up");
}

#[test]
fn memory_of_sizes_that_do_not_fit_is_refused() {
    let cuda = card();
    let on = On(&cuda);
    let mut memory = CardMemory::new(on.place(), 4, 2).unwrap();
    let (ids, short) = (on.copy(&[0_u32, 1]), on.copy(&[0_u32]));
    let (rows, mut out) = (on.copy(&[1.0_f32; 4]), on.room(3));
    let error = memory.fresh(on.place(), (&ids, &short), &rows, &mut out).unwrap_err().to_string();
    assert!(error.contains("rows that are new: 1 values, and 2 are needed"), "{error}");
    let error = memory.fresh(on.place(), (&ids, &ids), &rows, &mut out).unwrap_err().to_string();
    assert!(error.contains("rows: 3 values, and 4 are needed"), "{error}");
    let mut none = on.copy::<u32>(&[]);
    let error = memory.remember(on.place(), (&ids, &ids), &rows, &mut none).unwrap_err().to_string();
    assert!(error.contains("the count of refusals: 0 values"), "{error}");
    let times = on.copy(&[5_i64, 6, 7]);
    let ends = BatchEnds { src: &ids, dst: &ids, times: &times };
    let error = memory.post(on.place(), (&ids, &ids), ends).unwrap_err().to_string();
    assert!(error.contains("sources: 2 values, and 3 are needed"), "{error}");
    let (w, mut own) = (on.copy(&[1.0_f32; 3]), on.room(4));
    let from = Messages { nodes: &ids, features: (&rows, 1, &short), encoding: (&w, &w), origin: 0 };
    let error = memory.messages(on.place(), from, &mut out, &mut own).unwrap_err().to_string();
    assert!(error.contains("rows of features: 1 values, and 2 are needed"), "{error}");
    let from = Messages { features: (&rows, 0, &short), ..from };
    let error = memory.messages(on.place(), from, &mut out, &mut own).unwrap_err().to_string();
    assert!(error.contains("messages: 3 values, and 14 are needed"), "{error}");
}
