//! Rows that the live index hands over to the change feed: each is the one that a request would have returned, none is
//! missing, and none that is older than another comes behind it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evergraph::device::rng;
use evergraph::event::{EdgeId, EventTime, NodeId};
use evergraph::model::Weights;
use evergraph::serving::{
    ChangeFeed, ChangedRows, FeedOptions, IndexLoop, IndexOptions, IndexPrecision, NodeEmbedding,
    QueryEngine, UnknownKeys,
};

use crate::live::{add_edge, engine_on_disk, small_engine};

const OPTIONS: FeedOptions = FeedOptions { slice_rows: 16, queue_bytes_max: 1 << 20 };

/// Bytes of a row that waits: id, time of the latest event, eight values.
const ROW_BYTES: usize = 4 + 16 + 32;

/// An index that keeps up when it is asked to, and a feed that leaves nodes to it.
struct Pair {
    engine: Arc<QueryEngine>,
    index: IndexLoop,
    feed: ChangeFeed,
}

impl Pair {
    fn of(engine: QueryEngine, options: FeedOptions) -> Self {
        let precision = IndexPrecision::F32;
        let index = IndexOptions { bytes_max: 1 << 30, precision, cpu_share: 1.0, coalesce: Duration::ZERO };
        let engine = Arc::new(engine.with_index(index));
        ["alice", "bob", "7"].iter().for_each(|key| _ = publish(&engine, key, 0.1));
        let index = IndexLoop::new(engine.clone()).unwrap();
        let feed = ChangeFeed::new(engine.clone(), options);
        let mut pair = Self { engine, index, feed };
        // The fill, and what was touched before it.
        pair.embed();
        pair.embed();
        assert!(pair.delivered().is_empty());
        pair
    }

    fn embed(&mut self) {
        self.index.turn(far(), &|| true).unwrap();
    }

    /// What a turn of the feed delivers: a node with `*` where the feed has computed its row.
    fn delivered(&mut self) -> Vec<String> {
        self.feed.take();
        let mut all = Vec::new();
        loop {
            let moments = self.feed.next_rows().unwrap();
            if moments.is_empty() {
                break;
            }
            let mark = if self.feed.computing().is_zero() { "" } else { "*" };
            let rows = moments.iter().flat_map(|rows| &rows.rows);
            all.extend(rows.map(|row| format!("{}{mark}", row.node)));
        }
        all.sort();
        all
    }

    fn publish(&self, keys: &[&str]) {
        keys.iter().for_each(|key| _ = publish(&self.engine, key, 0.2));
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn publish(engine: &QueryEngine, key: &str, value: f32) -> NodeId {
    let node = engine.stores.keys.lookup(&key.into()).unwrap();
    engine.states.publish(node, &[value, -value, 0.5, 1.0], EventTime(30));
    node
}

/// Serves the same parameters as another version.
fn serve_version(engine: &QueryEngine, version: u64) {
    let weights = engine.model().unwrap();
    let other = Weights::new(*weights.model().options(), weights.parameters(), version).unwrap();
    engine.publish(other).unwrap();
}

fn assert_as_requested(engine: &QueryEngine, rows: &ChangedRows) {
    for row in &rows.rows {
        let response =
            engine.embeddings(std::slice::from_ref(&row.node), Some(rows.at), UnknownKeys::Error).unwrap();
        let NodeEmbedding::Found { vector, last_event, cold } = &response.embeddings[0] else {
            panic!("{response:?}")
        };
        // Products of batches of other sizes are added in another order.
        let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
        assert!(!row.vector.iter().zip(vector).any(differs), "{row:?} {vector:?}");
        assert_eq!((row.vector.len(), row.last_event, row.cold), (vector.len(), *last_event, *cold));
        assert_eq!((rows.source, rows.freshness), (response.source, response.freshness));
    }
}

#[test]
fn a_row_of_the_index_is_what_a_request_returns_and_is_delivered_once() {
    let mut pair = Pair::of(small_engine(), OPTIONS);
    pair.publish(&["bob", "7"]);
    assert_eq!((pair.delivered(), pair.feed.pending()), (vec![], 2), "they are left to the index");
    pair.embed();
    pair.feed.take();
    let rows = pair.feed.next_rows().unwrap().remove(0);
    assert_eq!((rows.rows.len(), pair.feed.computing()), (2, Duration::ZERO));
    assert!(rows.is_indexed);
    assert_as_requested(&pair.engine, &rows);
    assert_eq!((pair.feed.next_rows().unwrap(), pair.feed.delivered()), (vec![], Some(EdgeId(3))));
    pair.embed();
    assert_eq!((pair.delivered(), pair.feed.pending()), (vec![], 0));
    // Those that the index embeds before the feed has looked are its as well.
    pair.publish(&["alice"]);
    pair.embed();
    assert_eq!(pair.delivered(), ["alice"]);
}

#[test]
fn what_the_index_has_not_come_to_in_a_turn_is_computed_and_the_position_waits_for_it() {
    let mut pair = Pair::of(small_engine(), OPTIONS);
    let next = add_edge(&pair.engine, "alice", "bob", 40);
    pair.publish(&["alice", "bob"]);
    pair.engine.progress.set_learned(EdgeId(next.0 + 1));
    assert_eq!((pair.delivered(), pair.feed.delivered()), (vec![], Some(EdgeId(3))));
    assert_eq!(
        (pair.delivered(), pair.feed.delivered()),
        (vec!["alice*".into(), "bob*".into()], Some(EdgeId(4)))
    );
    // It comes to them now, and the feed has them already.
    pair.embed();
    assert!(pair.delivered().is_empty());
    let mut alone = Pair::of(small_engine(), FeedOptions { queue_bytes_max: 0, ..OPTIONS });
    alone.publish(&["bob"]);
    alone.embed();
    assert_eq!(alone.delivered(), ["bob*"]);
}

#[test]
fn a_queue_without_room_loses_nothing() {
    let mut pair = Pair::of(small_engine(), FeedOptions { queue_bytes_max: ROW_BYTES, ..OPTIONS });
    for key in ["bob", "7"] {
        pair.publish(&[key]);
        pair.embed();
    }
    assert_eq!((pair.delivered(), pair.feed.delivered()), (vec!["bob".into()], Some(EdgeId(3))));
    assert_eq!(pair.delivered(), ["7*"]);
    let mut tiny = Pair::of(small_engine(), FeedOptions { queue_bytes_max: ROW_BYTES - 1, ..OPTIONS });
    tiny.publish(&["bob", "7"]);
    tiny.embed();
    assert_eq!((tiny.delivered(), tiny.delivered()), (vec![], vec!["7*".into(), "bob*".into()]));
}

#[test]
fn neither_a_row_of_other_weights_nor_one_of_a_deleted_node_nor_an_older_one_comes_last() {
    let mut pair = Pair::of(small_engine(), OPTIONS);
    pair.publish(&["bob", "7"]);
    pair.embed();
    serve_version(&pair.engine, 2);
    pair.feed.take();
    assert!(pair.feed.next_rows().unwrap()[0].rows.is_empty());
    let rows = pair.feed.next_rows().unwrap().remove(0);
    assert_eq!((rows.rows.len(), rows.freshness.model_version), (2, 2));
    assert!(pair.delivered().is_empty());

    // A generation of the new weights.
    pair.embed();
    pair.delivered();
    pair.publish(&["bob", "7"]);
    pair.embed();
    let bob = pair.engine.stores.keys.lookup(&"bob".into()).unwrap();
    pair.engine.stores.keys.forget(bob);
    pair.engine.states.forget(bob);
    assert_eq!(pair.delivered(), ["7"]);
    pair.embed();
    assert_eq!((pair.delivered(), pair.delivered()), (vec![], vec![]));

    // One that was computed here while another waits: which of them is older is not known.
    pair.publish(&["7"]);
    pair.embed();
    let seven = pair.engine.stores.keys.lookup(&"7".into()).unwrap();
    assert_eq!(pair.feed.rows_of(vec![seven]).unwrap().rows.len(), 1);
    assert_eq!(pair.delivered(), ["7*"]);
}

#[test]
fn a_node_that_changes_often_is_one_row_and_stays_with_the_index() {
    let mut pair = Pair::of(small_engine(), OPTIONS);
    for value in [0.2, 0.3, 0.4] {
        publish(&pair.engine, "7", value);
        pair.embed();
    }
    pair.feed.take();
    let moments = pair.feed.next_rows().unwrap();
    let rows: Vec<_> = moments.iter().flat_map(|moment| &moment.rows).collect();
    assert_eq!(rows.len(), 1, "{moments:?}");
    assert_as_requested(&pair.engine, moments.last().unwrap());

    // Computed by the feed in one turn, and changed again in the same: what the index computes then is newer.
    let seven = pair.engine.stores.keys.lookup(&"7".into()).unwrap();
    for value in [0.5, 0.6] {
        assert_eq!(pair.feed.rows_of(vec![seven]).unwrap().rows.len(), 1);
        publish(&pair.engine, "7", value);
        pair.embed();
        assert_eq!(pair.delivered(), ["7"]);
    }
}

#[test]
fn rows_of_a_moment_are_delivered_in_slices() {
    let mut pair = Pair::of(small_engine(), FeedOptions { slice_rows: 2, ..OPTIONS });
    pair.publish(&["alice", "bob", "7"]);
    pair.embed();
    pair.feed.take();
    let counts: Vec<usize> =
        (0..3).map(|_| pair.feed.next_rows().unwrap().iter().map(|moment| moment.rows.len()).sum()).collect();
    assert_eq!((counts, pair.feed.pending()), (vec![2, 1, 0], 0));
}

#[test]
fn rows_that_cannot_be_delivered_or_computed_are_due_and_meanwhile_none_wait() {
    let mut pair = Pair::of(small_engine(), OPTIONS);
    for key in ["bob", "7"] {
        pair.publish(&[key]);
        pair.embed();
    }
    pair.feed.take();
    let moments = pair.feed.next_rows().unwrap();
    assert_eq!(moments.len(), 2, "of two moments, at once");
    pair.feed.give_back(moments);
    assert_eq!((pair.feed.delivered(), pair.feed.pending()), (None, 2));
    pair.publish(&["alice"]);
    pair.embed();
    assert_eq!(pair.delivered(), ["7*", "bob*"], "as they are now");
    assert_eq!((pair.delivered(), pair.delivered()), (vec![], vec!["alice*".into()]));

    let fault = Arc::new(AtomicBool::new(false));
    let mut pair = Pair::of(engine_on_disk(fault.clone()), OPTIONS);
    pair.publish(&["bob"]);
    fault.store(true, Ordering::Release);
    assert!(pair.index.turn(far(), &|| true).is_err());
    assert_eq!(pair.feed.pending(), 1);
    fault.store(false, Ordering::Release);
    assert_eq!(pair.delivered(), ["bob*"]);
}

/// What a reader has.
#[derive(Default)]
struct Reader {
    /// Version of the weights, position and time of the last row of each node.
    last: HashMap<String, (u64, u64, EventTime)>,
    rows: [usize; 2],
}

impl Reader {
    fn read(&mut self, rows: &ChangedRows, is_computed: bool) {
        self.rows[usize::from(is_computed)] += rows.rows.len();
        for row in &rows.rows {
            let now = (rows.freshness.model_version, rows.freshness.applied_position, rows.at);
            let before = self.last.insert(row.node.to_string(), now).unwrap_or((0, 0, EventTime::MIN));
            let older = before.0 > now.0 || before.1 > now.1 || before.2 > now.2;
            assert!(!older, "{}: {now:?} behind {before:?}", row.node);
        }
    }

    /// The row of `node` is no older than its change below `position`. That is learned once the change is published: a
    /// row from in between has the change and is as of the position before.
    fn assert_has(&self, node: &str, position: u64, seed: u64) {
        let last = self.last.get(node);
        assert!(
            last.is_some_and(|last| last.1 + 1 >= position),
            "seed {seed}: {node} at {position} and {last:?}"
        );
    }

    /// A turn of the feed, of whose deliveries some fail; the position behind which nothing is owed.
    fn turn(&mut self, feed: &mut ChangeFeed, draw: &mut impl FnMut(u32) -> u32) -> Option<EdgeId> {
        feed.take();
        loop {
            let moments = feed.next_rows().unwrap();
            if moments.is_empty() {
                return feed.delivered();
            }
            if draw(9) == 0 {
                feed.give_back(moments);
                return None;
            }
            moments.iter().for_each(|rows| self.read(rows, !feed.computing().is_zero()));
        }
    }
}

/// An index on a thread of its own beside a feed of which deliveries fail, while nodes change, versions of the weights
/// and passes come, and rows are asked for besides.
fn one_case(seed: u64) {
    let mut drawn = 0;
    let mut draw = |below| {
        drawn += 1;
        rng::below([seed, drawn, 0, 0], below)
    };
    let options = FeedOptions { slice_rows: 7, queue_bytes_max: 40 * ROW_BYTES };
    let Pair { engine, index, mut feed } = Pair::of(small_engine(), options);
    let (stop, mut reader) = (AtomicBool::new(false), Reader::default());
    let mut changed: HashMap<String, u64> = HashMap::new();
    std::thread::scope(|scope| {
        let _end = scopeguard::guard((), |()| stop.store(true, Ordering::Release));
        let mut index = index;
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Acquire) {
                index.turn(Instant::now(), &|| true).unwrap();
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let (mut end, mut version) = (3, 1);
        for step in 0..600 {
            let [src, dst] = [format!("u{}", draw(60)), format!("i{}", draw(9))];
            end = add_edge(&engine, &src, &dst, 100 + step).0 + 1;
            for key in [src, dst] {
                publish(&engine, &key, 0.01 * draw(100) as f32);
                changed.insert(key, end);
            }
            engine.progress.set_learned(EdgeId(end));
            match draw(60) {
                0 => {
                    version += 1;
                    serve_version(&engine, version);
                }
                1 => _ = feed.begin_pass(),
                2 => {
                    let known = engine.states.next_known(NodeId(draw(60)));
                    let rows = feed.rows_of(known.into_iter().collect()).unwrap();
                    reader.read(&rows, true);
                }
                3..12 => std::thread::sleep(Duration::from_millis(1)),
                _ => {}
            }
            if draw(8) == 0
                && let Some(complete) = reader.turn(&mut feed, &mut draw)
            {
                let below = changed.iter().filter(|(_, position)| **position <= complete.0);
                below.for_each(|(node, position)| reader.assert_has(node, *position, seed));
            }
        }
        let deadline = far();
        while reader.turn(&mut feed, &mut draw) != Some(EdgeId(end)) {
            assert!(Instant::now() < deadline, "seed {seed}: {} are pending", feed.pending());
        }
    });
    changed.iter().for_each(|(node, position)| reader.assert_has(node, *position, seed));
    let [handed, computed] = reader.rows;
    eprintln!("seed {seed}: {handed} rows of the index, {computed} computed for the feed");
    assert!(handed > 0, "seed {seed}: the index has handed nothing over");
}

#[test]
fn in_any_order_of_changes_and_turns_the_last_row_of_each_node_is_the_latest() {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => one_case(seed),
        None => (0..6).for_each(one_case),
    }
}
