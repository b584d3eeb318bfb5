//! `evergraph-research bus`: how many bytes of edge rows go over the bus to a device for each event, by the size of the
//! device's cache of rows.
//!
//! Rounds are those of `cache`. What is counted are the decisions of the cache that training on a GPU uses
//! ([`GpuRows`]), at each size: with reuse alone (nothing is known of the next round), with restore alone (nothing is
//! kept; the rows of the next round are brought while this one computes) and with both. No device is needed: which rows
//! are brought follows from the ids.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::cache::access::Access;
use crate::cache::{SAMPLINGS, sample};
use evergraph::cli::bench::{BATCH_EVENTS, FANOUT, deliver};
use evergraph::cli::events::read_first;
use evergraph::cli::output;
use evergraph::feature::cache::GpuRows;
use evergraph::graph::{GraphOptions, GraphStore};

/// Sizes of the cache as shares of all rows.
const SHARES: [f64; 8] = [0.0, 0.01, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0];
/// What is listed for the device of a row that it reads in place: its address, and its place in the cache.
const LISTED_BYTES: u64 = 16;

/// What to count.
#[derive(Debug, Args)]
pub struct BusArgs {
    /// Event file: CSV or CSV.gz with columns src, dst, ts; may be given again
    #[arg(long, value_name = "FILE", required = true)]
    events: Vec<PathBuf>,
    /// Take this many events of each file, the earliest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    events_max: Option<u32>,
    /// Epochs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    epochs: u32,
    /// Values per row
    #[arg(long, value_name = "N", default_value_t = 172, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    row_dimension: u32,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Write a page about them to this file
    #[arg(long, value_name = "OUT.md")]
    page: Option<PathBuf>,
}

#[derive(Serialize)]
struct Figures {
    batch_events: usize,
    fanout: usize,
    epochs: u32,
    row_dimension: u32,
    row_bytes: u64,
    streams: Vec<StreamFigures>,
}

#[derive(Serialize)]
struct StreamFigures {
    stream: String,
    events: usize,
    sampling: String,
    rows_per_round: f64,
    sizes: Vec<SizeFigures>,
}

#[derive(Serialize)]
struct SizeFigures {
    share_of_rows: f64,
    places: u64,
    reuse: Counted,
    restore: Counted,
    both: Counted,
}

/// Bytes for each event, and which part of them a round waits for: what was not brought before it began.
#[derive(Clone, Copy, Serialize)]
struct Counted {
    bytes_per_event: f64,
    waited_bytes_per_event: f64,
    /// Rows that were there when their round began, over rows read.
    hit_ratio: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Reuse,
    Restore,
    Both,
}

/// Counts, and writes the outputs.
pub fn run(args: &BusArgs) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for path in &args.events {
        streams.extend(count(args, path)?);
    }
    let (epochs, row_dimension) = (args.epochs, args.row_dimension);
    let row_bytes = args.row_bytes();
    let figures =
        Figures { batch_events: BATCH_EVENTS, fanout: FANOUT, epochs, row_dimension, row_bytes, streams };
    if let Some(path) = &args.page {
        std::fs::write(path, page(&figures)).with_context(|| format!("--page {}", path.display()))?;
    }
    deliver(args.json.as_deref(), "bus", rayon::current_num_threads(), figures)
}

impl BusArgs {
    /// Bytes over the bus for a row that is brought.
    fn row_bytes(&self) -> u64 {
        4 * u64::from(self.row_dimension) + LISTED_BYTES
    }
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counts fit
fn count(args: &BusArgs, path: &Path) -> anyhow::Result<Vec<StreamFigures>> {
    let most = args.events_max.map_or(u32::MAX - 1, |most| most.min(u32::MAX - 1));
    let stream = read_first(path, most as usize, &mut |note| output::print_status(note))?;
    let graph = GraphStore::new(GraphOptions::default());
    graph.apply(&stream.edge_batch(0..stream.len(), |_| true))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let mut found = Vec::new();
    for sampling in SAMPLINGS {
        let [edges, _] = sample(&stream, &graph, sampling, 0..u64::from(args.epochs))?;
        let events = stream.len() * args.epochs as usize;
        let size = |share: f64| {
            let places = (edges.of as f64 * share) as u64;
            let counted = |way| rehearse(&edges, way, places, (args.row_bytes(), events));
            let [reuse, restore, both] = [Way::Reuse, Way::Restore, Way::Both].map(counted);
            SizeFigures { share_of_rows: share, places, reuse, restore, both }
        };
        found.push(StreamFigures {
            stream: name.clone(),
            events: stream.len(),
            sampling: sampling.name(),
            rows_per_round: edges.len() as f64 / edges.rounds() as f64,
            sizes: SHARES.map(size).into(),
        });
    }
    Ok(found)
}

/// What a cache with room for so many rows brings over all rounds. Of its room a part is for the rows of one round that
/// do not stay.
#[allow(clippy::cast_precision_loss)] // counts fit
fn rehearse(access: &Access, way: Way, places: u64, (row_bytes, events): (u64, usize)) -> Counted {
    let mut rows = GpuRows::new(places, 1);
    let round = |number: usize| -> Vec<u64> {
        if number == access.rounds() {
            return Vec::new();
        }
        access.round(number).iter().map(|&row| u64::from(row)).collect()
    };
    let mut ids = round(0);
    for number in 0..access.rounds() {
        let next = round(number + 1);
        rows.plan(&ids, if way == Way::Reuse { &[] } else { &next });
        if way == Way::Restore {
            rows.forget();
        }
        if way != Way::Reuse && places > 0 {
            rows.plan_restore(&next);
        }
        ids = next;
    }
    let (counts, events) = (rows.counts(), events.max(1) as f64);
    let per_event = |rows: u64| (rows * row_bytes) as f64 / events;
    Counted {
        bytes_per_event: per_event(counts.misses + counts.restored),
        waited_bytes_per_event: per_event(counts.misses),
        hit_ratio: counts.hits as f64 / (counts.hits + counts.misses).max(1) as f64,
    }
}

/// The page.
fn page(figures: &Figures) -> String {
    let Figures { batch_events, fanout, epochs, row_dimension, row_bytes, streams } = figures;
    let streams: String = streams.iter().map(section).collect();
    format!(
        "# Edge rows over the bus\n\n\
         <!-- Made by `make bus-bench`: change benches/research/bus.rs, not this. -->\n\n\
         Bytes of edge rows that go to the GPU for each event that is trained on, counted from the decisions of the\n\
         cache that training uses (`src/feature/cache`). Batches of {batch_events} events in their order, each with a\n\
         random destination, {epochs} epochs, {fanout} neighbors per seed, rows of {row_dimension} values: {row_bytes} \
         bytes, with\n\
         the {LISTED_BYTES} that list for the GPU where a row is and where it goes. Nothing was timed, and no GPU is\n\
         needed.\n\n\
         - **size**: room for rows on the GPU, in percent of all rows of the stream. A part of it, up to half, is for\n\
         \x20 rows of the round at hand. Where a round does not fit, the cache is not used.\n\
         - **reuse**: rows stay from round to round, those used last.\n\
         - **restore**: nothing stays; rows of the next round are brought while the host does what comes between two\n\
         \x20 rounds.\n\
         - **both**: what training does. Rows stay that the next round needs, then those used last; what the next\n\
         \x20 round misses is brought before it, as far as there is room beside the round at hand.\n\
         - **waits**: the part of the bytes that is brought when the round has begun. Restore moves bytes out of it;\n\
         \x20 it saves none.\n\
         - **hits**: rows that were there when their round began, of both.\n\
         {streams}\n\
         ## Beside GNNFlow\n\n\
         GNNFlow's repository has hit rates of its edge cache for TGN on the NETFLIX ratings, which we do not have, at\n\
         0.1, 0.2, 0.3, 0.4 and 0.5 % of the rows: 13.7, 20.9, 25.0, 28.4 and 31.4 % with reuse and restore, and 9.2,\n\
         16.4, 23.6, 27.2 and 30.3 % without; and 53 % for REDDIT at 20 % (LFU). Those are means over blocks of rows\n\
         that count each time they occur in a batch of 200; ours count once a round of {batch_events}, so the figures are\n\
         not of the same kind. At such sizes a round of ours does not fit into the table; which rows a cache of as\n\
         many slots beside a round would keep is on the page about [policies](cache.md).\n\n\
         All figures are in [bus.json](bus.json).\n"
    )
}

fn section(figures: &StreamFigures) -> String {
    let StreamFigures { stream, events, sampling, rows_per_round, sizes } = figures;
    let line = |size: &SizeFigures| {
        let cell = |counted: Counted| {
            format!("{:.0} | {:.0}", counted.bytes_per_event, counted.waited_bytes_per_event)
        };
        let SizeFigures { share_of_rows, reuse, restore, both, .. } = size;
        let cells = [*reuse, *restore, *both].map(cell).join(" | ");
        format!("| {} % | {cells} | {:.1} % |\n", 100.0 * share_of_rows, 100.0 * both.hit_ratio)
    };
    let lines: String = sizes.iter().map(line).collect();
    format!(
        "\n## {stream}, {}\n\n{events} events, {rows_per_round:.0} rows in a round; bytes per event.\n\n\
         | size | reuse | waits | restore | waits | both | waits | hits |\n|--:|--:|--:|--:|--:|--:|--:|--:|\n{lines}",
        sampling.replace('_', " ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restore_moves_bytes_and_reuse_saves_them() {
        let rounds: Vec<Vec<usize>> = (0..40).map(|number| (number..number + 10).collect()).collect();
        let access = Access::of_rounds(50, 40, &rounds);
        let counted = |way, places| rehearse(&access, way, places, (10, 40));
        let none = counted(Way::Both, 0);
        assert_eq!((none.bytes_per_event, none.waited_bytes_per_event), (100.0, 100.0));
        let [reuse, restore, both] = [Way::Reuse, Way::Restore, Way::Both].map(|way| counted(way, 50));
        // A round has one new row.
        assert_eq!((reuse.bytes_per_event, both.bytes_per_event), (12.25, 12.25));
        assert_eq!(restore.bytes_per_event, 100.0);
        assert!(both.waited_bytes_per_event < 3.0 && restore.waited_bytes_per_event < 3.0);
    }
}
