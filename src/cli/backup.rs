//! `evergraph backup`: makes, lists, verifies and removes backups of a data directory, and restores one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::output;
use crate::daemon::backup::{self, Image, Manifest, Pace, Progress, Repository};

/// `evergraph backup`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    command: Option<BackupCommand>,
    /// Data directory of the daemon (data.dir); it may be running
    #[arg(long, value_name = "DIR", required = true)]
    data: Option<PathBuf>,
    /// Repository of backups: a folder, made if it is not there, or s3://bucket/prefix with AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL in the environment
    #[arg(long, value_name = "URL", required = true)]
    to: Option<String>,
    /// All of the log, also what lies before the snapshot and the checkpoint
    #[arg(long)]
    whole_log: bool,
    /// Read at most this many bytes a second; 0: as many as there are
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    bytes_per_second_max: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum BackupCommand {
    /// List the backups, newest first, as JSON
    List {
        #[command(flatten)]
        from: FromArgs,
    },
    /// Read every chunk of a backup and compare its digest
    Verify {
        #[command(flatten)]
        from: FromArgs,
        /// The backup, as listed by `backup list`; the newest if not given
        #[arg(long, value_name = "ID", conflicts_with = "all")]
        backup: Option<String>,
        /// All backups
        #[arg(long)]
        all: bool,
    },
    /// Write a backup into an empty data directory, from which a daemon can be started
    Restore {
        #[command(flatten)]
        from: FromArgs,
        /// The backup, as listed by `backup list`; the newest if not given
        #[arg(long, value_name = "ID")]
        backup: Option<String>,
        /// The data directory, which must be empty or not there
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove all but the newest backups, and the chunks that only the others had
    Prune {
        #[command(flatten)]
        from: FromArgs,
        /// Number of backups that stay
        #[arg(long, value_name = "N")]
        keep: usize,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct FromArgs {
    /// Repository of backups: a folder or s3://bucket/prefix
    #[arg(long, value_name = "URL")]
    from: String,
}

impl FromArgs {
    fn open(&self) -> Result<Repository> {
        Repository::open(&self.from, false)
    }
}

/// Runs the command.
pub(super) fn run(args: &BackupArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async {
        match (&args.command, &args.data, &args.to) {
            (Some(BackupCommand::List { from }), ..) => list(&from.open()?).await,
            (Some(BackupCommand::Verify { from, backup, all }), ..) => {
                verify(&from.open()?, backup.as_deref(), *all).await
            }
            (Some(BackupCommand::Restore { from, backup, data, json }), ..) => {
                restore(&from.open()?, backup.as_deref(), data, *json).await
            }
            (Some(BackupCommand::Prune { from, keep, json }), ..) => prune(&from.open()?, *keep, *json).await,
            (None, Some(data), Some(to)) => create(args, data, &Repository::open(to, true)?).await,
            (None, ..) => anyhow::bail!("--data or --to is missing"),
        }
    })
}

async fn create(args: &BackupArgs, data: &Path, repository: &Repository) -> Result<()> {
    let begun = Instant::now();
    let image = Image::take(data, args.whole_log)?;
    let bar = bar("backup");
    let pace = Pace { bytes_per_second_max: args.bytes_per_second_max };
    let created = backup::create(&image, repository, pace, &|progress| show(&bar, progress)).await?;
    bar.finish_and_clear();
    if let Err(error) = backup::record(data, &created.manifest, repository) {
        output::print_status(&format!(
            "evergraph_backup_last_success_timestamp_seconds does not show it: {error:#}"
        ));
    }
    let (manifest, sent) = (&created.manifest, created.progress.bytes_sent);
    let seconds = begun.elapsed().as_secs_f64();
    if args.json {
        let mut document = row(manifest);
        document["sent_bytes"] = json!(sent);
        document["seconds"] = json!(seconds);
        return output::print(&format!("{document:#}"));
    }
    output::print_status(&format!(
        "{}, {} of them new, in {seconds:.1} s: {}",
        HumanBytes(manifest.bytes),
        HumanBytes(sent),
        describe(manifest)
    ));
    output::print(&manifest.id)
}

async fn list(repository: &Repository) -> Result<()> {
    let mut rows = Vec::new();
    for id in repository.list().await?.iter().rev() {
        match repository.manifest(Some(id)).await {
            Ok(manifest) => rows.push(row(&manifest)),
            Err(error) => rows.push(json!({ "id": id, "error": format!("{error:#}") })),
        }
    }
    output::print(&format!("{:#}", json!(rows)))
}

async fn verify(repository: &Repository, id: Option<&str>, all: bool) -> Result<()> {
    let ids = match id {
        Some(id) => vec![id.to_owned()],
        None => repository.list().await?,
    };
    ensure!(!ids.is_empty(), "{repository}: there is no backup");
    let first = if all { 0 } else { ids.len() - 1 };
    let (mut damaged, mut verified_chunks) = (0, HashSet::new());
    for id in &ids[first..] {
        let bar = bar("verify");
        let verified = async {
            let manifest = repository.manifest(Some(id)).await?;
            backup::verify(repository, &manifest, &mut verified_chunks, &|progress| show(&bar, progress))
                .await?;
            anyhow::Ok(manifest)
        };
        let verified = verified.await;
        bar.finish_and_clear();
        match verified {
            Ok(manifest) => output::print(&format!("{id}: whole, {}", describe(&manifest)))?,
            Err(error) => {
                damaged += 1;
                output::print_status(&format!("{id}: {error:#}"));
            }
        }
    }
    ensure!(damaged == 0, "{damaged} of {} backups cannot be used", ids.len() - first);
    Ok(())
}

async fn restore(repository: &Repository, id: Option<&str>, data: &Path, json: bool) -> Result<()> {
    let begun = Instant::now();
    let manifest = repository.manifest(id).await?;
    let bar = bar("restore");
    backup::restore(repository, &manifest, data, &|progress| show(&bar, progress)).await?;
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    if json {
        let mut document = row(&manifest);
        document["seconds"] = json!(seconds);
        return output::print(&format!("{document:#}"));
    }
    output::print_status(&format!(
        "{} in {seconds:.1} s: {}",
        HumanBytes(manifest.bytes),
        describe(&manifest)
    ));
    output::print(&format!(
        "{} is restored; give it to the daemon's user and start the daemon with its settings",
        data.display()
    ))
}

async fn prune(repository: &Repository, keep: usize, json: bool) -> Result<()> {
    let pruned = backup::prune(repository, keep).await?;
    if json {
        let document = json!({
            "removed": pruned.removed,
            "kept": pruned.kept,
            "removed_chunks": pruned.chunks,
            "removed_bytes": pruned.bytes,
        });
        return output::print(&format!("{document:#}"));
    }
    output::print(&format!(
        "{} backups removed, {} kept; {} freed",
        pruned.removed.len(),
        pruned.kept,
        HumanBytes(pruned.bytes)
    ))
}

fn describe(manifest: &Manifest) -> String {
    let at =
        |position: Option<u64>| position.map_or_else(|| "none".to_owned(), |position| position.to_string());
    format!(
        "the log from position {} to {}, snapshot at {}, checkpoint at {}",
        manifest.log_first_position,
        manifest.log_end_position,
        at(manifest.snapshot_position),
        at(manifest.checkpoint_position)
    )
}

fn row(manifest: &Manifest) -> Value {
    json!({
        "id": manifest.id,
        "created_unix_ms": manifest.created_unix_ms,
        "version": manifest.version,
        "bytes": manifest.bytes,
        "files": manifest.files.len(),
        "log_first_position": manifest.log_first_position,
        "log_end_position": manifest.log_end_position,
        "snapshot_position": manifest.snapshot_position,
        "checkpoint_position": manifest.checkpoint_position,
    })
}

/// A bar on standard error; none where that is no terminal.
fn bar(name: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(name);
    let style = "{msg} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn show(bar: &ProgressBar, progress: &Progress) {
    bar.set_length(progress.bytes_total);
    bar.set_position(progress.bytes_done);
}
