//! What the appender's thread hands over for a snapshot: everything of the index that is small, as of one position, and
//! with it which edges are deleted while the rest is written.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::Arc;

use hashbrown::HashSet;
use parking_lot::Mutex;

use crate::event::{ClockRules, EdgeId, EventTime, SourceMark, StreamClock};
use crate::graph::{GraphSummary, RetentionBounds};
use crate::model::tables::{read_table, read_u64, write_table, write_u64};

/// How far a partition was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadPartition {
    /// Name of the source.
    pub source: Arc<str>,
    /// Number of the partition.
    pub partition: i32,
    /// The offset to read next.
    pub next: i64,
    /// The last message.
    pub mark: Option<SourceMark>,
    /// When its events were produced, milliseconds since the Unix epoch.
    pub origin_unix_ms: i64,
}

/// The index at a position, without graph, names and rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Capture {
    /// Counts of the graph; every record below its position is in the index.
    pub graph: GraphSummary,
    /// Number of node ids.
    pub nodes: usize,
    /// Names of edge types, in the order of their numbers.
    pub types: Vec<Arc<str>>,
    /// How far each partition was read.
    pub reached: Vec<ReadPartition>,
    /// The clock of each partition.
    pub clocks: Vec<(Arc<str>, i32, StreamClock)>,
    /// Idempotency keys, the oldest first.
    pub seen: Vec<u128>,
    /// Edges of types that the model has no row for.
    pub unknown_type_edges: u64,
    /// What was released because of its age, at most.
    pub released: RetentionBounds,
    /// The operator's correction that the clocks follow.
    pub not_after: Option<(EdgeId, EventTime)>,
}

impl Capture {
    /// Every record below this position is in.
    #[must_use]
    pub fn position(&self) -> EdgeId {
        self.graph.applied
    }

    /// Writes it.
    pub(super) fn write(&self, out: &mut impl Write) -> Result<()> {
        write_table(out, &self.graph.to_numbers())?;
        write_u64(out, self.nodes as u64)?;
        write_u64(out, self.types.len() as u64)?;
        self.types.iter().try_for_each(|name| write_table(out, name.as_bytes()))?;
        write_u64(out, self.reached.len() as u64)?;
        for one in &self.reached {
            let mark = one.mark.map_or([0; 3], |mark| [1, mark.offset, mark.hash.cast_signed()]);
            let [marked, offset, hash] = mark;
            let numbers = [one.partition.into(), one.next, one.origin_unix_ms, marked, offset, hash];
            write_table::<u8>(out, one.source.as_bytes())?;
            write_table::<i64>(out, &numbers)?;
        }
        write_u64(out, self.clocks.len() as u64)?;
        for (source, partition, clock) in &self.clocks {
            write_table(out, source.as_bytes())?;
            write_table(out, &[vec![i64::from(*partition)], clock.to_numbers()].concat())?;
        }
        write_table(out, &self.seen)?;
        write_u64(out, self.unknown_type_edges)?;
        let RetentionBounds { since, first, end } = self.released;
        write_table(out, &[since.0, first.0.cast_signed(), end.0.cast_signed()])?;
        let correction = self.not_after.map(|(below, time)| [below.0.cast_signed(), time.0]);
        write_table(out, correction.as_slice().as_flattened())
    }

    /// Reads what [`write`](Self::write) wrote. Clocks get the rules of today but for the correction, which is that of
    /// the snapshot.
    pub(super) fn read(input: &mut impl Read, rules: ClockRules) -> Result<Self> {
        let malformed = || Error::new(ErrorKind::InvalidData, "the description of a snapshot is malformed");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|_| malformed());
        let summary: Vec<i64> = read_table(input)?;
        let nodes = usize::try_from(read_u64(input)?).map_err(|_| malformed())?;
        let (mut types, mut reached, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..read_u64(input)? {
            types.push(text(read_table(input)?)?.into());
        }
        let partition_of = |number: i64| i32::try_from(number).map_err(|_| malformed());
        for _ in 0..read_u64(input)? {
            let source = text(read_table(input)?)?.into();
            let numbers: Vec<i64> = read_table(input)?;
            let [partition, next, origin_unix_ms, marked, offset, hash] = numbers[..] else {
                return Err(malformed());
            };
            let mark = (marked == 1).then_some(SourceMark { offset, hash: hash.cast_unsigned() });
            let partition = partition_of(partition)?;
            reached.push(ReadPartition { source, partition, next, mark, origin_unix_ms });
        }
        let mut clock_numbers = Vec::new();
        for _ in 0..read_u64(input)? {
            clock_numbers.push((text(read_table(input)?)?, read_table::<i64>(input)?));
        }
        let seen = read_table(input)?;
        let unknown_type_edges = read_u64(input)?;
        let released: Vec<i64> = read_table(input)?;
        let [since, first, end] = released[..] else { return Err(malformed()) };
        let id = |number: i64| EdgeId(number.cast_unsigned());
        let released = RetentionBounds { since: EventTime(since), first: id(first), end: id(end) };
        let not_after = match read_table::<i64>(input)?[..] {
            [] => None,
            [below, time] => Some((id(below), EventTime(time))),
            _ => return Err(malformed()),
        };
        let rules = ClockRules { not_after, ..rules };
        for (source, numbers) in clock_numbers {
            let (partition, numbers) = numbers.split_first().ok_or_else(malformed)?;
            let clock = StreamClock::from_numbers(numbers).ok_or_else(malformed)?.with_rules(rules);
            clocks.push((source.into(), partition_of(*partition)?, clock));
        }
        let graph = GraphSummary::from_numbers(&summary, rules).ok_or_else(malformed)?;
        Ok(Self { graph, nodes, types, reached, clocks, seen, unknown_type_edges, released, not_after })
    }
}

/// The edges that are deleted while a snapshot is written and that are among its own. Shared by the appender, which
/// notes them, and whoever writes.
#[derive(Clone, Debug, Default)]
pub struct DeletedMeanwhile(Arc<Mutex<Option<Noted>>>);

/// Below which position edges are noted, and those that were.
type Noted = (EdgeId, HashSet<EdgeId>);

impl DeletedMeanwhile {
    /// Notes, from now on, deleted edges below `position`.
    pub(in crate::appender) fn begin(&self, position: EdgeId) {
        *self.0.lock() = Some((position, HashSet::new()));
    }

    /// Notes deleted edges, while a snapshot is written.
    pub(in crate::appender) fn note(&self, edges: &[EdgeId]) {
        if let Some((position, noted)) = &mut *self.0.lock() {
            noted.extend(edges.iter().filter(|edge| **edge < *position));
        }
    }

    /// What was noted; no more is.
    pub fn end(&self) -> HashSet<EdgeId> {
        self.0.lock().take().map(|(_, noted)| noted).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_comes_back_and_a_cut_one_is_an_error() {
        let rules = ClockRules { future_limit: Some(50), not_after: Some((EdgeId(9), EventTime(-1))) };
        let clock = |times: i64| {
            let mut clock = StreamClock::new(rules);
            (0..times).for_each(|i| clock.observe(EdgeId(20), EventTime(100 + i)));
            clock
        };
        let graph = GraphSummary {
            applied: EdgeId(7),
            nodes: 3,
            edges: 5,
            deleted_edges: 2,
            late_edges: 1,
            expired_entries: 9,
            released_before: EventTime(-4),
            clock: clock(40),
        };
        let read_partition = |partition, mark| ReadPartition {
            source: "kafka:t".into(),
            partition,
            next: 12,
            mark,
            origin_unix_ms: -5,
        };
        let mark = Some(SourceMark { offset: 11, hash: u64::MAX });
        let capture = Capture {
            graph,
            nodes: 4,
            types: vec!["paid".into(), "".into()],
            reached: vec![read_partition(0, mark), read_partition(7, None)],
            clocks: vec![("kafka:t".into(), 0, clock(3)), ("".into(), 2, clock(15))],
            seen: vec![1, u128::MAX],
            unknown_type_edges: 6,
            released: RetentionBounds { since: EventTime(-9), first: EdgeId(4), end: EdgeId(6) },
            not_after: rules.not_after,
        };
        let mut bytes = Vec::new();
        capture.write(&mut bytes).unwrap();
        let today = ClockRules { not_after: None, ..rules };
        assert_eq!(Capture::read(&mut &bytes[..], today).unwrap(), capture);
        for end in 0..bytes.len() {
            assert!(Capture::read(&mut &bytes[..end], today).is_err(), "{end}");
        }
    }

    #[test]
    fn only_edges_of_the_snapshot_are_noted_and_only_while_it_is_written() {
        let deleted = DeletedMeanwhile::default();
        deleted.note(&[EdgeId(1)]);
        deleted.begin(EdgeId(10));
        deleted.note(&[EdgeId(9), EdgeId(10), EdgeId(2)]);
        assert_eq!(deleted.end(), HashSet::from_iter([EdgeId(9), EdgeId(2)]));
        deleted.note(&[EdgeId(3)]);
        assert!(deleted.end().is_empty());
    }
}
