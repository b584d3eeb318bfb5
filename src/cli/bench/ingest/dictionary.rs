//! Keys per second through the node dictionary: new ones and known ones, dense integers, scattered integers and
//! texts.

use serde::Serialize;

use crate::cli::bench::{Spread, per_second, seconds};
use crate::cli::output;
use crate::device::rng;
use crate::event::NodeKey;
use crate::graph::NodeDictionary;

const KEYS: u32 = 1_000_000;

/// One kind of keys.
#[derive(Serialize)]
pub(super) struct Measured {
    keys: &'static str,
    count: u32,
    new_per_second: Spread,
    known_per_second: Spread,
    bytes_per_key: f64,
}

fn dense(i: u32) -> NodeKey {
    NodeKey::Int(i64::from(i))
}

fn scattered(i: u32) -> NodeKey {
    NodeKey::Int(rng::random_u64([u64::from(i), 0, 0, 0]).cast_signed())
}

fn text(i: u32) -> NodeKey {
    NodeKey::from_text(&format!("user-{i}"))
}

/// Measures every kind.
#[allow(clippy::cast_precision_loss)]
pub(super) fn measure(runs: u32) -> Vec<Measured> {
    let sorts =
        [("dense integers", dense as fn(u32) -> NodeKey), ("scattered integers", scattered), ("texts", text)];
    let measure = |(keys, key): (&'static str, fn(u32) -> NodeKey)| {
        let new: Vec<NodeKey> = (0..KEYS).map(key).collect();
        // In random order: a stream reads nodes all over the graph.
        let known: Vec<NodeKey> = (0..KEYS).map(|i| key(rng::below([u64::from(i), 1, 0, 0], KEYS))).collect();
        let mut bytes = 0;
        let (interned, looked_up): (Vec<f64>, Vec<f64>) = (0..runs)
            .map(|_| {
                let dictionary = NodeDictionary::new();
                let (adding, _) = seconds(|| new.iter().map(|key| dictionary.intern(key)).max());
                let (finding, found) =
                    seconds(|| known.iter().filter_map(|key| dictionary.lookup(key)).count());
                bytes = dictionary.bytes();
                (per_second(new.len(), adding), per_second(found, finding))
            })
            .unzip();
        Measured {
            keys,
            count: KEYS,
            new_per_second: Spread::of(interned),
            known_per_second: Spread::of(looked_up),
            bytes_per_key: bytes as f64 / f64::from(KEYS),
        }
    };
    let all: Vec<Measured> = sorts.into_iter().map(measure).collect();
    for row in &all {
        output::print_status(&format!(
            "dictionary, {}: {:.1} M new keys/s, {:.1} M known keys/s, {:.1} bytes per key",
            row.keys,
            row.new_per_second.median / 1e6,
            row.known_per_second.median / 1e6,
            row.bytes_per_key,
        ));
    }
    all
}
