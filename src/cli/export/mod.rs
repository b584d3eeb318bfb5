//! `evergraph export`: writes all embeddings or all edges of a running daemon to a file.

mod file;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use arrow_ipc::reader::StreamReader;
use clap::{Args, Subcommand};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use self::file::{ExportFile, Form};
use super::client::DaemonArgs;
use super::output;

/// `evergraph export`
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The embeddings of all nodes that the model has learned of: node, embedding, time of the node's latest event
    Embeddings(Export),
    /// All edges that were not deleted or released by their age: source, destination, time, log position and features,
    /// by source node
    Edges(Export),
}

#[derive(Debug, Args)]
struct Export {
    /// File to write, in the form that its ending names: .arrow, .csv, .csv.gz or .ndjson. It appears once it is whole
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &ExportArgs) -> Result<()> {
    match &args.what {
        What::Embeddings(export) => run_one("embeddings", export),
        What::Edges(export) => run_one("edges", export),
    }
}

fn run_one(what: &str, args: &Export) -> Result<()> {
    let begun = Instant::now();
    let to = args.to.display();
    let form = Form::of(&args.to)?;
    check_absent(&args.to, args.force)?;
    let client = args.daemon.download_client()?;
    let body =
        Unbroken(client.download(&format!("/v1/export/{what}"), "application/vnd.apache.arrow.stream")?);
    let reader = StreamReader::try_new(body, None).context("the daemon's response is no Arrow stream")?;
    let about = reader.schema().metadata().get("evergraph").cloned().unwrap_or_default();
    let about: Value =
        serde_json::from_str(&about).context("the daemon's response does not say what it is")?;
    let mut file = ExportFile::create(&args.to, form, &reader.schema())?;
    let bar = bar(what, &about);
    let mut rows = 0;
    for batch in reader {
        let batch =
            batch.context("the export broke off, so nothing was written; the daemon's log says why")?;
        file.write(&batch).with_context(|| format!("--to {to}"))?;
        rows += batch.num_rows() as u64;
        bar.set_position(rows);
    }
    check_absent(&args.to, args.force)?;
    let bytes = file.finish().with_context(|| format!("--to {to}"))?;
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    let position = &about["position"];
    output::print_status(&format!(
        "{} {what} as of log position {position} are in {to} ({})",
        HumanCount(rows),
        HumanBytes(bytes)
    ));
    if args.json {
        let mut document = json!({
            "exported": what, "to": args.to, "rows": rows, "bytes": bytes, "seconds": seconds, "position": position,
        });
        for name in ["at", "source", "freshness"] {
            if let Some(value) = about.get(name) {
                document[name] = value.clone();
            }
        }
        output::print(&format!("{document:#}"))?;
    }
    Ok(())
}

fn check_absent(path: &Path, force: bool) -> Result<()> {
    if path.is_dir() {
        bail!("--to {}: that is a folder; name a file in it", path.display());
    }
    ensure!(force || !path.exists(), "--to {}: the file exists; pass --force to replace it", path.display());
    Ok(())
}

fn bar(what: &str, about: &Value) -> ProgressBar {
    let template = "{msg} {wide_bar} {human_pos}/{human_len}, {per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let expected = about["rows_expected"].as_u64().unwrap_or_default();
    ProgressBar::new(expected).with_style(style).with_message(what.to_owned())
}

/// A response that is never taken to end where its connection breaks: that error has a kind that readers of Arrow take
/// for an end.
struct Unbroken<R>(R);

impl<R: Read> Read for Unbroken<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(io::Error::other)
    }
}
