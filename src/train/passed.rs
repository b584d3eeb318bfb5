//! A prepared batch as bytes, for a rank that computes a share of it and has neither graph nor feature rows: whole what
//! every rank computes on, in its own part what the rank alone reads.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::ops::Range;

use super::prepare::PreparedBatch;
use super::ranks::Share;
use super::shards::parts;
use super::trainer::StepMode;
use crate::event::{EdgeId, EventTime, NodeId};
use crate::model::tables::{read_table, read_u64, write_table, write_u64};
use crate::model::{Interactions, KeptRows, Needs, Part, RowsOfRank, SentRows};

/// Modes by number.
const MODES: [StepMode; 3] = [StepMode::Train, StepMode::Score, StepMode::StateOnly];

impl PreparedBatch {
    /// Writes what [`read_for`](Self::read_for) reads, for a rank that got `sent` before. This batch is prepared whole.
    ///
    /// # Errors
    /// What `out` reports.
    pub(super) fn write_for(
        &self,
        (needs, share): (&Needs, Share),
        sent: &mut SentRows,
        out: &mut impl Write,
    ) -> Result<()> {
        let mode = MODES.iter().position(|mode| *mode == self.mode).unwrap_or_default();
        write_u64(out, mode as u64)?;
        write_u64(out, self.since.0.cast_unsigned())?;
        write_u64(out, self.rows.first().0)?;
        write_u64(out, u64::from(self.pairs.own_sources))?;
        write_table(out, &self.src)?;
        write_table(out, &self.dst)?;
        write_table(out, &self.times)?;
        write_table(out, &self.edges)?;
        if self.src.is_empty() {
            return Ok(());
        }
        write_table(out, &self.scored)?;
        let own = self.own_seeds(needs, share);
        let mut fanout = 0;
        if self.has_sample() {
            self.neighborhood.write_part(&own, out)?;
            fanout = self.fanout();
        }
        self.rows.write_part((needs, &self.rows_of(needs, share, (&own, fanout))), sent, out)
    }

    /// Becomes the batch that was written for a rank with this share, which has `kept` what came before.
    ///
    /// # Errors
    /// The bytes are damaged or for another rank.
    pub(super) fn read_for(
        &mut self,
        (needs, share): (&Needs, Share),
        kept: &mut KeptRows,
        input: &mut impl Read,
    ) -> Result<()> {
        let damaged = |what: &str| Error::new(ErrorKind::InvalidData, format!("a shared batch: {what}"));
        let mode = usize::try_from(read_u64(input)?).ok().and_then(|mode| MODES.get(mode).copied());
        let mode = mode.ok_or_else(|| damaged("its mode"))?;
        let since = EventTime(read_u64(input)?.cast_signed());
        let first = EdgeId(read_u64(input)?);
        let own_sources = read_u64(input)? == 1;
        let (src, dst) = (read_table::<NodeId>(input)?, read_table::<NodeId>(input)?);
        let (times, edges) = (read_table::<EventTime>(input)?, read_table::<EdgeId>(input)?);
        let events = src.len();
        if [dst.len(), times.len(), edges.len()] != [events; 3] {
            return Err(damaged("its columns"));
        }
        self.load(&Interactions { src: &src, dst: &dst, times: &times, edges: &edges }, since, mode);
        self.rows.keep_from(first);
        (self.pairs.own_sources, self.share) = (own_sources, Some(share));
        if src.is_empty() {
            return Ok(());
        }
        self.scored = read_table(input)?;
        if self.scored.iter().any(|place| *place as usize >= events) {
            return Err(damaged("the events that are scored"));
        }
        let own = self.own_seeds(needs, share);
        let mut fanout = 0;
        if self.has_sample() {
            fanout = needs.fanout;
            let parts = parts(needs, self.scored.len());
            self.neighborhood.read_part((&own, fanout), (share.parts(parts), parts), input)?;
            let seeds = self.neighborhood.pairs().len();
            if self.scored.is_empty() || seeds != self.pairs.blocks() * self.scored.len() {
                return Err(damaged("its seeds"));
            }
        }
        let nodes = self.nodes().len();
        let read = self.rows_of(needs, share, (&own, fanout));
        let neighbors = if self.has_sample() { self.neighborhood.neighbors() } else { &[] };
        self.rows.read_part((needs, &read), (nodes, neighbors), kept, input)?;
        self.has_all_rows();
        Ok(())
    }

    /// Whether it was sampled for, if it has events.
    fn has_sample(&self) -> bool {
        self.mode != StepMode::StateOnly
    }

    fn fanout(&self) -> usize {
        self.neighborhood.layers().first().map_or(0, |layer| layer.graph.fanout)
    }

    /// The seeds of the events that a rank scores.
    pub(super) fn own_seeds(&self, needs: &Needs, share: Share) -> Part {
        let events = self.scored.len();
        Part::of_events(&share.of(parts(needs, events), events), events, self.pairs.blocks())
    }

    /// Runs of the slots of these seeds.
    pub(super) fn slots_of(own: &Part, fanout: usize) -> impl Iterator<Item = Range<usize>> {
        own.runs().map(move |run| run.start * fanout..run.end * fanout)
    }

    fn rows_of(&self, needs: &Needs, share: Share, (own, fanout): (&Part, usize)) -> RowsOfRank {
        let count = self.nodes().len();
        let read = self.nodes_read(Some(share), count);
        RowsOfRank {
            slots: Self::slots_of(own, fanout).collect(),
            messages: read.clone(),
            nodes: if self.has_sample() { read } else { 0..0 },
            next_messages: if needs.averages() && needs.edge_row_dim > 0 { self.src.len() } else { 0 },
        }
    }
}
