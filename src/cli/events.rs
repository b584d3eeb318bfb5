//! Reads event files and the files of a protocol for the commands that need a whole stream in memory.

use std::path::Path;

use anyhow::{Context, bail};

use crate::event::{EdgeEvent, Event, Incoming, NodeId, NodeKey};
use crate::ingest::csv::read_columns;
use crate::ingest::mapping::Decoded;
use crate::ingest::rows::Rows;
use crate::train::stream::{Stream, StreamBuilder};

/// The edges of an event file, in its order. What a person should know about it goes to `note`.
///
/// # Errors
/// When the file cannot be opened; an item is an error where a row is no edge or the file cannot be read on.
pub fn edges(
    path: &Path,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<EdgeEvent>>> {
    let mut rows = Rows::open_plain(path)?;
    if let Some(warning) = rows.warning() {
        note(&warning);
    }
    let (place, mut number) = (path.display().to_string(), 0_u64);
    Ok(std::iter::from_fn(move || {
        let row = rows.next_row().transpose()?;
        number += 1;
        Some(match row {
            Ok(Ok(Decoded::One(Incoming { event: Event::Edge(edge), .. }))) => Ok(edge),
            Ok(Ok(_)) => Err(anyhow::anyhow!(
                "{place} row {}: the event is no edge; here a file of edges is needed",
                number - 1
            )),
            Ok(Err(rejection)) => Err(rejection.into()),
            Err(error) => Err(error.into()),
        })
    }))
}

/// Reads a whole event file. What a person should know about it goes to `note`.
///
/// # Errors
/// When the file cannot be read, a row is bad, or there is no event.
pub fn read_stream(path: &Path, note: &mut dyn FnMut(&str)) -> anyhow::Result<Stream> {
    read_first(path, usize::MAX, note)
}

/// As [`read_stream`], of the first `events_max` events.
///
/// # Errors
/// As [`read_stream`].
pub fn read_first(path: &Path, events_max: usize, note: &mut dyn FnMut(&str)) -> anyhow::Result<Stream> {
    let mut builder = StreamBuilder::new();
    for event in edges(path, note)?.take(events_max) {
        builder.push(&event?);
    }
    let stream = builder.finish();
    if stream.is_empty() {
        bail!("{} has no events", path.display());
    }
    if stream.late() > 0 {
        let (late, events) = (stream.late(), stream.len());
        note(&format!("{}: {late} of {events} events were out of order; sorted by time", path.display()));
    }
    Ok(stream)
}

/// Reads a file of nodes, one a row in column `node`.
///
/// # Errors
/// When the file cannot be read or names a node that the stream does not hold.
pub fn read_nodes(path: &Path, stream: &Stream) -> anyhow::Result<Vec<NodeId>> {
    let rows = read_columns(path, ["node"])?;
    rows.iter().map(|[node]| find(stream, node)).collect::<Result<_, _>>().with_context(|| in_file(path))
}

/// Reads a file of negatives, one pair a row in columns `neg_src` and `neg_dst`.
///
/// # Errors
/// When the file cannot be read or names a node that the stream does not hold.
pub fn read_pairs(path: &Path, stream: &Stream) -> anyhow::Result<Vec<(NodeId, NodeId)>> {
    let rows = read_columns(path, ["neg_src", "neg_dst"])?;
    let pair = |[src, dst]: &[String; 2]| Ok((find(stream, src)?, find(stream, dst)?));
    rows.iter().map(pair).collect::<anyhow::Result<_>>().with_context(|| in_file(path))
}

fn find(stream: &Stream, text: &str) -> anyhow::Result<NodeId> {
    let key = NodeKey::from_text(text);
    stream.node(&key).with_context(|| format!("node '{text}' occurs in no event; is it of this stream?"))
}

fn in_file(path: &Path) -> String {
    format!("{} does not fit the events", path.display())
}
