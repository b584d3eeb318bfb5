//! The chosen points: for each operation the sizes in use, with one axis at a time varied around them. Not a product of
//! all axes, which would take a day and add nothing.
//!
//! One line is one point: the operation, its parameters in order, and the state of the caches. A parameter with several
//! values, `a|b`, makes a point of each; `; word` at the end makes another of the first, with that word too. A leading
//! `!` marks the dozen of the quick run, and only the first of its line. `threads=1` runs that point on one thread.

use anyhow::Context;
use serde_json::{Map, Value, json};

/// The state of the caches before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// As the run before left them.
    Warm,
    /// Filled with other data.
    Cold,
}

impl Cache {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
        }
    }
}

/// One operation at one size.
#[derive(Clone, Debug)]
pub struct Point {
    pub op: &'static str,
    pub params: Vec<(&'static str, &'static str)>,
    pub cache: Cache,
    pub quick: bool,
}

impl Point {
    /// The points of a line.
    fn parse(line: &'static str) -> anyhow::Result<Vec<Self>> {
        let (quick, line) = line.strip_prefix('!').map_or((false, line), |line| (true, line));
        let mut parts = line.split(';');
        let mut words = parts.next().unwrap_or_default().split_whitespace();
        let op = words.next().context("a point without an operation")?;
        let pair =
            |word: &'static str| word.split_once('=').with_context(|| format!("{line}: {word} has no value"));
        let all: Vec<_> = words.map(pair).collect::<anyhow::Result<_>>()?;
        let point = |nth: usize, more: Option<(&'static str, &'static str)>| {
            let pick = |&(name, values): &(&'static str, &'static str)| {
                (name, values.split('|').nth(nth).unwrap_or(values))
            };
            let mut params: Vec<_> = all.iter().map(pick).chain(more).collect();
            let cache = if params.contains(&("cache", "cold")) { Cache::Cold } else { Cache::Warm };
            params.retain(|(name, _)| *name != "cache");
            Self { op, params, cache, quick: quick && nth == 0 && more.is_none() }
        };
        let most = all.iter().map(|(_, values)| values.split('|').count()).max().unwrap_or(1);
        let mut points: Vec<_> = (0..most).map(|nth| point(nth, None)).collect();
        for word in parts {
            points.push(point(0, Some(pair(word.trim())?)));
        }
        Ok(points)
    }

    /// The parameters as JSON, numbers as numbers.
    pub fn params_json(&self) -> Map<String, Value> {
        let value = |text: &str| text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number));
        self.params.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect()
    }

    /// The point's id, the same in every run.
    pub fn id(&self) -> String {
        let mut id = format!("{}/", self.op);
        for (name, value) in &self.params {
            id.push_str(name);
            id.push('=');
            id.push_str(value);
            id.push(',');
        }
        id + "cache=" + self.cache.name()
    }

    /// A parameter.
    pub fn text(&self, name: &str) -> anyhow::Result<&'static str> {
        let found = self.params.iter().find(|(other, _)| *other == name);
        Ok(found.with_context(|| format!("{}: no parameter {name}", self.id()))?.1)
    }

    /// A parameter that is a number.
    pub fn number(&self, name: &str) -> anyhow::Result<usize> {
        let text = self.text(name)?;
        text.parse().with_context(|| format!("{}: {name}={text} is no number", self.id()))
    }

    /// Columns of a row of `row_bytes`.
    pub fn cols(&self) -> anyhow::Result<usize> {
        Ok(self.number("row_bytes")? / size_of::<f32>())
    }
}

/// All points, in the order in which they are measured.
///
/// # Errors
/// A line that is no point.
pub fn all() -> anyhow::Result<Vec<Point>> {
    let lines = POINTS.lines().map(str::trim).filter(|line| !line.is_empty()).map(Point::parse);
    Ok(lines.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

const POINTS: &str = "
gather_rows rows=100 row_bytes=256 table_rows=1000 indices=uniform
gather_rows rows=1000|10000 row_bytes=400 table_rows=10000 indices=uniform
gather_rows rows=18000 row_bytes=688 table_rows=157474 indices=recency ; cache=cold
!gather_rows rows=100000 row_bytes=256 table_rows=1000000 indices=uniform|sequential|zipf|recency ; \
    cache=cold ; threads=1
gather_rows rows=1000000 row_bytes=16|64|256 table_rows=1000000 indices=uniform
gather_rows rows=250000 row_bytes=1024 table_rows=250000 indices=uniform
gather_rows rows=60000 row_bytes=4096 table_rows=60000 indices=uniform
gather_concat_time rows=1800 node_table_rows=10000 edge_table_rows=18000 node_cols=100 edge_cols=172 \
    time_cols=100 indices=uniform
!gather_concat_time rows=18000 node_table_rows=10000 edge_table_rows=157474 node_cols=100 edge_cols=172 \
    time_cols=100 indices=recency
gather_concat_time rows=18000 node_table_rows=10000 edge_table_rows=157474 node_cols=100 edge_cols=172 \
    time_cols=100 indices=uniform ; cache=cold ; threads=1
gather_concat_time rows=180000 node_table_rows=100000 edge_table_rows=157474 node_cols=32 edge_cols=16 \
    time_cols=32 indices=zipf
slot_sum rows=100|1800|50000 slots=10 row_bytes=400
!slot_sum rows=100000 slots=10 row_bytes=256 ; cache=cold ; threads=1
slot_sum rows=500000 slots=10 row_bytes=16
slot_sum rows=20000 slots=10 row_bytes=1024
slot_sum rows=5000 slots=10 row_bytes=4096
slot_sum rows=50000 slots=20 row_bytes=256
slot_mean rows=1800 slots=10 row_bytes=400
slot_mean rows=100000 slots=10 row_bytes=256
slot_mean rows=20000 slots=10 row_bytes=1024
segment_sum rows=100 mean_length=10 row_bytes=256
segment_sum rows=1800 mean_length=10 row_bytes=400
!segment_sum rows=100000 mean_length=10 row_bytes=256 ; cache=cold ; threads=1
segment_sum rows=500000 mean_length=10 row_bytes=16
segment_sum rows=20000 mean_length=10 row_bytes=1024
segment_sum rows=5000 mean_length=10 row_bytes=4096
segment_sum rows=1000 mean_length=500 row_bytes=256
segment_mean rows=1800 mean_length=10 row_bytes=400
segment_mean rows=100000 mean_length=10 row_bytes=256
slot_attention rows=100 slots=10 heads=2 head_cols=100
!slot_attention rows=1800 slots=10 heads=2 head_cols=100 ; cache=cold ; threads=1
slot_attention rows=1800 slots=20 heads=2 head_cols=50
slot_attention rows=1800 slots=10 heads=8 head_cols=16
slot_attention rows=20000 slots=10 heads=4 head_cols=32
!gru_cell rows=1800|100|600|6000 input=472 hidden=100 ; cache=cold ; threads=1
gru_cell rows=1800 input=100 hidden=100
!time_encoding rows=18000|1|600 cols=100 ; cache=cold ; threads=1
time_encoding rows=180000 cols=32
layer_norm rows=100 cols=100
!layer_norm rows=18000|1800 cols=200 ; cache=cold ; threads=1
layer_norm rows=200000 cols=64
layer_norm rows=20000 cols=1024
linear m=1 k=372 n=200
linear m=64|100000 k=100 n=100
linear m=600 k=200|272 n=100
linear m=1800 k=300 n=100
linear m=1200 k=200 n=1
linear m=1800 k=572 n=300
linear m=6600 k=272 n=100
linear m=6600 k=444 n=172
!linear m=18000 k=372 n=200 ; cache=cold ; threads=1
sample_recent rows=1800 nodes=10000 edges=1000000 fanout=10 indices=zipf
sample_recent rows=1800 nodes=100000 edges=2000000 fanout=10 indices=uniform ; cache=cold
sample_recent rows=20000 nodes=100000 edges=2000000 fanout=20 indices=uniform ; threads=1
unique e=1000 rows=10000 indices=uniform
!unique e=19800 rows=10000 indices=recency|uniform
unique e=500000 rows=1000000 indices=uniform
unique e=500000 rows=100000 indices=zipf
scatter_last e=600 rows=10000 row_bytes=400 indices=uniform
scatter_last e=1200 rows=10000 row_bytes=400 indices=recency
scatter_last e=20000 rows=10000 row_bytes=400 indices=zipf
scatter_last e=200000 rows=100000 row_bytes=256 indices=uniform
!adam n=1000000|10000|20000000 steps=3 ; cache=cold ; threads=1
!reference_step targets=1800 slots=10 memory_rows=10000 ; threads=1
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::ops::OPERATIONS;

    #[test]
    fn every_line_is_a_point_of_a_known_operation_and_none_comes_twice() {
        let points = all().unwrap();
        let mut ids: Vec<String> = points.iter().map(Point::id).collect();
        ids.sort();
        assert!(ids.windows(2).all(|two| two[0] != two[1]));
        assert!((100..=140).contains(&points.len()), "{} points", points.len());
        for (name, ..) in OPERATIONS {
            assert!(points.iter().any(|point| point.op == *name), "{name} has no point");
        }
        assert!(points.iter().all(|point| OPERATIONS.iter().any(|(name, ..)| *name == point.op)));
        let one = |point: &Point| point.text("threads").is_ok_and(|threads| threads == "1");
        assert!(points.iter().all(|point| point.text("threads").is_err() || one(point)));
        assert!((12..=16).contains(&points.iter().filter(|point| point.quick).count()));
    }
}
