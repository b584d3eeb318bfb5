//! What a learner knows of the stream besides the model: the baseline's pairs, destinations for negatives, those of
//! each type, rows of nodes, and where retention stands. It follows from the log up to the cursor; a checkpoint keeps
//! it, so that a start need not read the log up to there, nor need there be one.

use std::io::{Error, ErrorKind, Read, Result, Write};

use super::FeedMark;
use crate::event::{ClockRules, EdgeId, EventTime};
use crate::feature::FeatureStore;
use crate::graph::{GraphStore, Retention, RetentionBounds, RetentionClock};
use crate::model::tables::{read_table, read_u64, write_table, write_u64};
use crate::serving::{ReceivedTypes, Stores};
use crate::train::StreamNegatives;
use crate::train::edgebank::{BankRule, EdgeBank};

/// First bytes of a saved state.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"EVGSTRM4");

/// What a learner knows of the stream up to a position.
pub struct StreamState {
    /// The baseline.
    pub bank: EdgeBank,
    /// Destinations that negatives are drawn from.
    pub pool: StreamNegatives,
    /// The destinations of each type.
    pub received: ReceivedTypes,
    /// Rows of nodes as of the position.
    pub node_rows: FeatureStore,
    /// Retention's clock, and how many nodes were seen.
    pub(super) mark: FeedMark,
    /// What it was made with.
    kind: Kind,
}

/// What a learner that is restored finds around it.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    /// The stores, which may be empty yet.
    pub stores: &'a Stores,
    /// Pairs that EdgeBank keeps at most; 0: any number.
    pub pairs_max: usize,
    /// Whether the log was never cut.
    pub log_is_whole: bool,
}

/// What decides whether a saved state can be continued.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    retention: Option<Retention>,
    /// The correction that the clock follows.
    not_after: Option<(EdgeId, EventTime)>,
    dimension: usize,
    is_bounded: bool,
}

impl Kind {
    fn of(graph: &GraphStore, dimension: usize, pairs_max: usize) -> Self {
        let retention = graph.retention();
        // The baseline keeps the pairs that the graph keeps, so that it is bounded too.
        let is_bounded = retention.is_some() || pairs_max > 0;
        Self { retention, not_after: graph.clock_rules().not_after, dimension, is_bounded }
    }

    /// Whether a state of this kind can go on as one of `now`: retention may become shorter, as what is older goes
    /// then; what was never kept cannot come back. A correction of the clock is exact where the log is whole and read
    /// again; where not, the clock corrects what it knows.
    fn becomes(self, now: Self, is_whole: bool) -> bool {
        let reach = |retention: Retention| retention.age.saturating_add(retention.lateness);
        let keeps_enough = match (self.retention, now.retention) {
            (None, None) => true,
            (Some(saved), Some(now)) => reach(saved) >= reach(now),
            _ => false,
        };
        let not_after = if is_whole { self.not_after } else { now.not_after };
        keeps_enough && Self { retention: now.retention, not_after, ..self } == now
    }

    fn numbers(self) -> [i64; 8] {
        let [age, lateness] = self.retention.map_or([-1; 2], |kept| [kept.age, kept.lateness]);
        let (below, time) = self.not_after.unwrap_or_default();
        let flags = [self.not_after.is_some(), self.is_bounded].map(i64::from);
        let (below, dimension) = (below.0.cast_signed(), i64::try_from(self.dimension).unwrap_or(-1));
        [age, lateness, flags[0], below, time.0, flags[1], dimension, 0]
    }

    fn from_numbers(numbers: [i64; 8]) -> Self {
        let [age, lateness, corrected, below, time, bounded, dimension, _] = numbers;
        Self {
            retention: (age >= 0).then_some(Retention { age, lateness }),
            not_after: (corrected == 1).then_some((EdgeId(below.cast_unsigned()), EventTime(time))),
            dimension: usize::try_from(dimension).unwrap_or(usize::MAX),
            is_bounded: bounded == 1,
        }
    }
}

impl StreamState {
    /// The state at the log's beginning.
    #[must_use]
    pub fn new(stores: &Stores, pairs_max: usize) -> Self {
        let dimension = stores.node_features.dimension();
        let kind = Kind::of(&stores.graph, dimension, pairs_max);
        let rule = if kind.is_bounded { BankRule::Retained } else { BankRule::Unlimited };
        let rules = stores.graph.clock_rules();
        let clock = RetentionClock::new(kind.retention).with_rules(rules);
        Self {
            bank: EdgeBank::new(rule).limited(pairs_max),
            pool: if kind.retention.is_some() { StreamNegatives::aging() } else { StreamNegatives::new() },
            received: ReceivedTypes::default(),
            node_rows: FeatureStore::new(dimension),
            mark: FeedMark { clock, known: 0 },
            kind,
        }
    }

    /// What retention keeps for the batch at the position.
    #[must_use]
    pub fn kept(&mut self) -> RetentionBounds {
        self.mark.clock.bounds()
    }

    /// A copy of the parts of a learner over this graph that stands at `mark`.
    ///
    /// # Errors
    /// Rows of nodes are on disk, where no learner keeps them.
    pub(super) fn copy(
        (bank, pool, received, node_rows): (&EdgeBank, &StreamNegatives, &ReceivedTypes, &FeatureStore),
        mark: &FeedMark,
        (graph, pairs_max): (&GraphStore, usize),
    ) -> Result<Self> {
        let kind = Kind::of(graph, node_rows.dimension(), pairs_max);
        let node_rows = node_rows.copy().ok_or_else(|| Error::other("rows of nodes are on disk"))?;
        let (bank, pool, received) = (bank.clone(), pool.clone(), received.clone());
        Ok(Self { bank, pool, received, node_rows, mark: mark.clone(), kind })
    }

    /// All of it, to be written.
    pub(super) fn view(&self) -> StreamView<'_> {
        let Self { bank, pool, received, node_rows, mark, kind } = self;
        StreamView { bank, pool, received, node_rows, mark, kind: *kind }
    }

    /// Reads what [`StreamView::write`] wrote behind [`MAGIC`]; `None` if it cannot go on with these settings: it
    /// is the last section then.
    ///
    /// # Errors
    /// The bytes are damaged or something else.
    pub(super) fn read(input: &mut impl Read, around: Around<'_>) -> Result<Option<Self>> {
        let malformed =
            |what: &str| Error::new(ErrorKind::InvalidData, format!("a saved stream state: {what}"));
        let kind: [i64; 8] = read_table::<i64>(input)?.try_into().map_err(|_| malformed("its kind"))?;
        let mut state = Self::new(around.stores, around.pairs_max);
        let saved = Kind::from_numbers(kind);
        if !saved.becomes(state.kind, around.log_is_whole) {
            std::io::copy(input, &mut std::io::sink())?;
            return Ok(None);
        }
        state.bank.read(input)?;
        state.pool.read(input)?;
        state.received = ReceivedTypes::read(input)?;
        let rules = around.stores.graph.clock_rules();
        let then = ClockRules { not_after: saved.not_after, ..rules };
        let clock = RetentionClock::from_numbers(&read_table::<i64>(input)?, state.kind.retention, then);
        state.mark.clock = clock.ok_or_else(|| malformed("its clock"))?.corrected(rules);
        state.mark.known = u32::try_from(read_u64(input)?).map_err(|_| malformed("its number of nodes"))?;
        loop {
            let rows: Vec<u8> = read_table(input)?;
            if rows.is_empty() {
                return Ok(Some(state));
            }
            state.node_rows.restore_rows(&rows, state.mark.known.into())?;
        }
    }
}

/// The parts of a state, wherever they are.
pub(super) struct StreamView<'a> {
    bank: &'a EdgeBank,
    pool: &'a StreamNegatives,
    received: &'a ReceivedTypes,
    node_rows: &'a FeatureStore,
    mark: &'a FeedMark,
    kind: Kind,
}

impl StreamView<'_> {
    /// Writes them, behind [`MAGIC`].
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        write_u64(out, MAGIC)?;
        write_table(out, &self.kind.numbers())?;
        self.bank.write(out)?;
        self.pool.write(out)?;
        self.received.write(out)?;
        write_table(out, &self.mark.clock.to_numbers())?;
        let known = self.mark.known.into();
        write_u64(out, known)?;
        self.node_rows.write_rows(known, &mut |rows| write_table(out, rows))?;
        write_table::<u8>(out, &[])
    }
}
