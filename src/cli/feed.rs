//! `evergraph feed`: has the change feed of a stopped daemon begin again.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use super::{ConfigArgs, output};
use crate::daemon::resend_feed;

/// `evergraph feed`
#[derive(Debug, Args)]
pub(crate) struct FeedArgs {
    #[command(subcommand)]
    command: FeedCommand,
}

#[derive(Debug, Subcommand)]
enum FeedCommand {
    /// Deliver the embeddings of all nodes at the next start, as when the topic was lost; the daemon must be stopped
    Resend {
        /// The daemon's settings
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(super) fn run(args: &FeedArgs) -> Result<()> {
    let FeedCommand::Resend { config, json } = &args.command;
    let was_known = resend_feed(&config.load()?)?;
    if *json {
        return output::print(&json!({ "resends": true, "had_delivered": was_known }).to_string());
    }
    output::print_status("the next start delivers the embeddings of all nodes");
    Ok(())
}
