//! `evergraph log`: what a log holds, where it may be cut, and what of deleted nodes is still in the data directory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use ureq::http::Method;

use super::client::DaemonArgs;
use super::{output, snapshot};
use crate::appender::Index;
use crate::appender::snapshot as files;
use crate::event::{ClockRules, EdgeId};
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore};
use crate::learner::checkpoint;
use crate::log;

/// `evergraph log`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct LogArgs {
    #[command(subcommand)]
    command: Option<LogCommand>,
    /// Data directory of the daemon (data.dir); it may be running
    #[arg(long, value_name = "DIR", required = true)]
    data: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Have a running daemon cut off the log what no kept snapshot and no kept checkpoint needs. What is cut off cannot
    /// be replayed or inspected any more. Needs a key whose role is admin; without keys, run it on the daemon's machine
    Cut {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show up to which position deletions are complete: no file has anything of a node that was deleted before it. And
    /// which files later deletions wait for
    EraseStatus {
        /// Data directory of the daemon (data.dir); it may be running
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(super) fn run(args: &LogArgs) -> Result<()> {
    match (&args.command, &args.data) {
        (Some(LogCommand::Cut { daemon, json }), _) => cut(daemon, *json),
        (Some(LogCommand::EraseStatus { data, json }), _) => erase_status(data, *json),
        (None, Some(data)) => inspect(data),
        (None, None) => anyhow::bail!("--data is missing"),
    }
}

/// Reads a log from its start and prints what it means, with a digest of the graph that is the same for
/// the same edges whatever the order they arrived in. Of a log that was cut, the beginning is in a snapshot.
fn inspect(data: &Path) -> Result<()> {
    let mut reader = log::read_only(&data.join("log"))?;
    let first = reader.position();
    let mut index = if first == EdgeId(0) { empty_index([0, 0]) } else { from_snapshot(data, first)? };
    if index.end() > first {
        reader.start_at(index.end());
    }
    let (mut frames, mut records) = (0_u64, 0_u64);
    while let Some(frame) = reader.next_frame()? {
        frames += 1;
        records += frame.batch.len() as u64;
        index.absorb(&frame)?;
    }
    let stats = index.stores.graph.stats();
    let positions: Vec<_> = index
        .positions
        .all()
        .iter()
        .map(|at| json!({"source": at.source.as_ref(), "partition": at.partition, "next_offset": at.next_offset}))
        .collect();
    let document = json!({
        "frames": frames,
        "records": records,
        "first_position": first.0,
        "end_position": index.end().0,
        "nodes": index.stores.keys.len(),
        "edges": stats.edges,
        "graph_digest": format!("{:032x}", index.stores.graph.digest(&index.stores.keys)?),
        "positions": positions,
    });
    output::print(&format!("{document:#}"))
}

/// An index with rows of nodes and of edges of these dimensions.
fn empty_index([nodes, edges]: [u64; 2]) -> Index {
    let rows = |dimension: u64| FeatureStore::new(usize::try_from(dimension).unwrap_or(usize::MAX));
    Index::new(GraphStore::new(GraphOptions::default()), rows(edges), rows(nodes), 0)
}

/// The index that the newest intact snapshot holds; the log begins at position `first`.
fn from_snapshot(data: &Path, first: EdgeId) -> Result<Index> {
    for position in snapshot::all(data)?.into_iter().rev().take_while(|position| *position >= first) {
        let path = data.join("snapshots").join(files::name(position));
        let loaded = files::open(&path, ClockRules::default()).and_then(|head| {
            let mut index = empty_index(head.row_dimensions());
            head.load(&mut index).map(|()| index)
        });
        match loaded {
            Ok(index) => return Ok(index),
            Err(error) => output::print_status(&error.to_string()),
        }
    }
    bail!("the log begins at position {first}, and there is no intact snapshot of what was before")
}

fn cut(daemon: &DaemonArgs, json: bool) -> Result<()> {
    let path = "/v1/admin/log/cut";
    let cut = daemon.client(snapshot::PATIENCE)?.document(Method::POST, path, Some(&json!({})))?;
    if json {
        return output::print(&format!("{cut:#}"));
    }
    output::print(&format!(
        "the log begins at position {} and has {} bytes",
        cut["first_position"], cut["bytes"]
    ))
}

/// The positions of the oldest log segment, snapshot and checkpoint, and the files that nothing removes by itself.
fn erase_status(data: &Path, as_json: bool) -> Result<()> {
    let reader = log::read_only(&data.join("log"))?;
    let (first, end) = (reader.position().0, reader.durable_end().0);
    let snapshots: Vec<u64> = snapshot::all(data)?.iter().map(|position| position.0).collect();
    let checkpoints = checkpoints(data)?;
    let oldest = |positions: &[u64]| positions.iter().min().copied();
    let parts = [Some(first), oldest(&snapshots), oldest(&checkpoints)];
    let complete = parts.into_iter().flatten().min().unwrap_or_default();
    let by_hand = others(data)?;
    let document = json!({
        "complete_below_position": complete,
        "log_first_position": first,
        "log_end_position": end,
        "oldest_snapshot_position": oldest(&snapshots),
        "oldest_checkpoint_position": oldest(&checkpoints),
        "files_to_remove_by_hand": by_hand,
    });
    if as_json {
        return output::print(&format!("{document:#}"));
    }
    let mut lines = vec![format!(
        "log, snapshots and checkpoints hold nothing of nodes that were deleted below position {complete}; the log \
         ends at {end}"
    )];
    let waits = |what: &str, position: Option<u64>| match position {
        Some(position) => format!("{what} {position}"),
        None => format!("{what} -, there is none"),
    };
    lines.push(waits("the log begins at        ", Some(first)));
    lines.push(waits("the oldest snapshot is of ", oldest(&snapshots)));
    lines.push(waits("the oldest checkpoint is of", oldest(&checkpoints)));
    for path in &by_hand {
        lines.push(format!("may hold deleted nodes until it is removed by hand: {}", path.display()));
    }
    output::print(&lines.join("\n"))
}

/// The positions of the checkpoints on the disk, and of the pages of earlier ones that they refer to; also of those
/// that the catalog does not list and of unfinished ones.
fn checkpoints(data: &Path) -> Result<Vec<u64>> {
    let folder = data.join("checkpoints");
    let unreadable =
        || format!("cannot read the folder {}; --data must be the daemon's data.dir", folder.display());
    let mut positions = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(unreadable)? {
        let name = entry.with_context(unreadable)?.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('.'));
        let Some((position, ending)) = parts.and_then(|(stem, ending)| Some((stem.parse().ok()?, ending)))
        else {
            continue;
        };
        let ending = format!(".{ending}");
        let ending = ending.strip_suffix(checkpoint::UNFINISHED_SUFFIX).unwrap_or(&ending);
        // Those that are set aside have another ending; their pages are as old as they are.
        if ending.ends_with(checkpoint::SUFFIX) || ending.ends_with(checkpoint::PAGES_SUFFIX) {
            positions.push(position);
        }
    }
    Ok(positions)
}

/// The length of a file; 0 of anything else.
fn entry_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map_or(0, |about| about.len())
}

/// Files that may hold names or rows of deleted nodes and that the daemon never removes: checkpoints that were set
/// aside, cut-off tails of the log, dead letters.
fn others(data: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let folders = [data.to_path_buf(), data.join("checkpoints"), data.join("log"), data.join("dead-letters")];
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let unreadable = || format!("cannot read {}", folder.display());
        for entry in std::fs::read_dir(folder).with_context(unreadable)? {
            let path = entry.with_context(unreadable)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_set_aside = [".superseded", ".orphan", ".torn"].iter().any(|mark| name.contains(mark));
            let is_letter = name.starts_with("dead-letters") || folder.ends_with("dead-letters");
            let has_bytes = entry_bytes(&path) > 0;
            if has_bytes && (is_set_aside || is_letter) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EdgeId;

    #[test]
    fn files_that_are_set_aside_are_found_and_others_are_not() {
        let data = tempfile::tempdir().unwrap();
        let at = |name: &str| data.path().join(name);
        std::fs::create_dir_all(at("checkpoints")).unwrap();
        std::fs::create_dir_all(at("log")).unwrap();
        let kept = ["checkpoints/1.superseded", "checkpoints/2.orphan", "log/3.torn", "dead-letters.jsonl"];
        for name in kept.into_iter().chain(["checkpoints/4.checkpoint", "log/5.log", "catalog.sqlite"]) {
            std::fs::write(at(name), "x").unwrap();
        }
        let mut expected: Vec<PathBuf> = kept.map(at).to_vec();
        expected.sort();
        assert_eq!(others(data.path()).unwrap(), expected);
    }

    #[test]
    fn what_counts_of_checkpoints_are_files_whatever_the_catalog_lists() {
        let data = tempfile::tempdir().unwrap();
        assert!(checkpoints(data.path()).unwrap_err().to_string().contains("data.dir"));
        let folder = data.path().join("checkpoints");
        std::fs::create_dir(&folder).unwrap();
        let names =
            [checkpoint::name(EdgeId(7)), checkpoint::name(EdgeId(9)) + ".tmp", "4.superseded".to_owned()];
        let others = ["6.orphan", "notes.checkpoint", "5.0.pages", "3.0.pages.tmp"];
        for name in names.iter().map(String::as_str).chain(others) {
            std::fs::write(folder.join(name), "x").unwrap();
        }
        let mut found = checkpoints(data.path()).unwrap();
        found.sort_unstable();
        assert_eq!(found, [3, 5, 7, 9]);
    }
}
