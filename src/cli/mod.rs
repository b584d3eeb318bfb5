//! The command line: arguments in, one library call, an exit code out. Decides nothing.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong arguments, 78 settings that cannot be used. Data goes
//! to standard output, messages to standard error.

mod backup;
pub mod bench;
mod check;
mod checkpoint;
mod client;
mod cluster;
mod dead_letters;
mod demo;
pub mod device;
pub mod eval;
pub mod events;
mod export;
mod feed;
mod ingest;
mod inspect;
mod log;
mod log_level;
pub mod machine;
mod model;
pub mod output;
mod sample;
mod scrape;
mod serve;
mod settings;
mod snapshot;
mod source;
mod top;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::{Config, ConfigError, Setting};

/// Learns temporal graph networks from event streams and serves fresh embeddings.
#[derive(Debug, Parser)]
#[command(name = "evergraph", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon: ingest events, learn from them, serve requests over HTTP
    Serve(ConfigArgs),
    /// Run the daemon on a generated stream; no broker, no settings needed
    Demo(demo::DemoArgs),
    /// Train and test a model on a file of events under a published protocol
    Eval(eval::EvalArgs),
    /// Time the parts on an event file, as a table for people and as JSON
    Bench(bench::BenchArgs),
    /// Push a file of events to Kafka or to a daemon, as a producer would
    Ingest(ingest::IngestArgs),
    /// Validate the settings and probe Kafka, disk and devices
    Check(check::CheckArgs),
    /// The settings: values in effect with their origin, all faults, a schema
    Config(settings::SettingsArgs),
    /// Show the status of a running daemon
    Status(inspect::StatusArgs),
    /// Watch a running daemon on one screen: rates, lag, quality, freshness, memory, sources
    Top(top::TopArgs),
    /// Sources of events: show, pause and resume them, move Kafka to another position
    Source(source::SourceArgs),
    /// Write all embeddings, or all edges, of a running daemon to a file
    Export(export::ExportArgs),
    /// The change feed: deliver all embeddings again
    Feed(feed::FeedArgs),
    /// A leader and its read replicas side by side
    Cluster(cluster::ClusterArgs),
    /// Events that were refused: list and show them, and send them again after a mapping was mended
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Show the log level of a running daemon, or change it until the next start
    LogLevel(log_level::LogLevelArgs),
    /// The event log: counts, positions and digest of the graph; cut it; what of deleted nodes is still there
    Log(log::LogArgs),
    /// Snapshots of graph, names and rows: list, verify and create them
    Snapshot(snapshot::SnapshotArgs),
    /// Checkpoints: list, verify, create and restore them
    Checkpoint(checkpoint::CheckpointArgs),
    /// Backups of a data directory in a folder or an S3 bucket: make, list, verify, restore and remove them
    Backup(backup::BackupArgs),
    /// Versions of the weights: list decisions, promote one, roll back; pause and resume training
    Model(model::ModelArgs),
    /// Print the OpenAPI document of the HTTP interface
    Openapi,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// An invalid argument that only its command can detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongArgument(String);

/// Where settings come from.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigArgs {
    /// Settings file; what it does not name keeps its default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the HTTP interface (api.listen)
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Folder for everything the daemon keeps (data.dir)
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Any other setting, for example --set learner.batch_events=100
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl ConfigArgs {
    fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(self.config.as_deref(), &self.flags()?)?)
    }

    /// Every setting in effect, with its origin.
    fn explain(&self) -> anyhow::Result<Vec<Setting>> {
        Ok(Config::explain(self.config.as_deref(), &self.flags()?)?)
    }

    /// What the flags set, as keys and values.
    fn flags(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut flags = Vec::new();
        for pair in &self.set {
            let Some((key, value)) = pair.split_once('=') else {
                anyhow::bail!("--set {pair}: write it as SECTION.KEY=VALUE");
            };
            flags.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        flags.extend(self.listen.clone().map(|listen| ("api.listen".to_owned(), listen)));
        flags.extend(self.data.clone().map(|data| ("data.dir".to_owned(), data)));
        Ok(flags)
    }
}

/// Runs the program on the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Ingest(args) => ingest::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Config(args) => settings::run(&args),
        Command::Status(args) => inspect::status(&args),
        Command::Top(args) => top::run(&args),
        Command::Source(args) => source::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Feed(args) => feed::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::DeadLetters(args) => dead_letters::run(&args),
        Command::LogLevel(args) => log_level::run(&args),
        Command::Log(args) => log::run(&args),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Model(args) => model::run(&args),
        Command::Openapi => {
            crate::api::openapi_json().map_err(Into::into).and_then(|text| output::print(&text))
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "evergraph", &mut script);
            output::print(String::from_utf8_lossy(&script).trim_end())
        }
    };
    exit_code(outcome)
}

/// The exit code of an error, which is printed.
#[must_use]
pub fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            let code = if error.is::<ConfigError>() {
                78
            } else if error.is::<WrongArgument>() {
                2
            } else {
                1
            };
            ExitCode::from(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn settings_from_flags_win_and_are_named_when_wrong() {
        let args = |set: &str| ConfigArgs { set: vec![set.to_owned()], ..ConfigArgs::default() };
        assert_eq!(args("learner.batch_events=9").load().unwrap().learner.batch_events, 9);
        let error = args("learner.batch_event=9").load().unwrap_err().to_string();
        assert!(error.contains("did you mean `batch_events`"), "{error}");
        assert!(args("nonsense").load().unwrap_err().to_string().contains("SECTION.KEY=VALUE"));
    }
}
