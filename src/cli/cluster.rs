//! `evergraph cluster`: what a leader and its replicas report, side by side, and what does not fit together; and
//! whether a replica can lead.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};
use ureq::http::Method;

use super::client::{Client, DaemonArgs, PATIENCE};
use super::{ConfigArgs, output};
use crate::daemon::takeover::{Reading, Takeover};
use crate::ingest::kafka::PartitionRange;

/// `evergraph cluster`
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show a leader and its replicas side by side: role, positions, staleness, version of the weights. Exits with 1 if
    /// one does not respond or its replication fails, or if there is not exactly one leader
    Status {
        /// Addresses of their HTTP interfaces; that of --url if none is given
        #[arg(value_name = "URL")]
        urls: Vec<String>,
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Before a replica starts as the leader: whether its log is all that was shipped, what it will read, and what it
    /// does not have. It must be stopped. With --yes it takes over the topics, so that an earlier leader that still
    /// runs ends; without, it changes nothing and fails
    Promote {
        /// Take over the topics
        #[arg(long)]
        yes: bool,
        /// The settings that it will lead with
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// What one of them reports.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Member {
    url: String,
    /// `leader`, `replica` or `single`; null if it does not respond.
    role: Option<String>,
    /// Log position below which frames are shipped, or received.
    frames_position: Option<u64>,
    /// Log position of the learned state that was shipped, or applied, last.
    states_position: Option<u64>,
    /// Log position below which its own log is durable.
    durable_position: Option<u64>,
    model_version: Option<u64>,
    staleness_seconds: Option<f64>,
    /// What is wrong with it.
    problem: Option<String>,
}

/// All of them.
#[derive(Debug, Serialize)]
struct Cluster {
    members: Vec<Member>,
    /// What is wrong with them together.
    problems: Vec<String>,
}

/// Runs the command.
pub(super) fn run(args: &ClusterArgs) -> Result<()> {
    match &args.command {
        ClusterCommand::Status { urls, daemon, json } => status(urls, daemon, *json),
        ClusterCommand::Promote { yes, config, json } => promote(*yes, config, *json),
    }
}

fn status(urls: &[String], daemon: &DaemonArgs, json: bool) -> Result<()> {
    let client = daemon.client(PATIENCE)?;
    let urls = if urls.is_empty() { std::slice::from_ref(&daemon.url) } else { urls };
    let mut members: Vec<Member> = std::thread::scope(|scope| {
        let client = &client;
        let ask = |url: &'_ String| {
            let url = url.clone();
            scope.spawn(move || member(&client.elsewhere(&url), &url))
        };
        let asked: Vec<_> = urls.iter().map(ask).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
    });
    // Records may come while they are asked, so the leader is asked once more, last.
    for leader in members.iter_mut().filter(|member| member.is("leader")) {
        let again = member(&client.elsewhere(&leader.url), &leader.url);
        if again.is("leader") {
            *leader = again;
        }
    }
    let cluster = Cluster::of(members);
    match json {
        true => output::print(&serde_json::to_string_pretty(&cluster)?)?,
        false => output::print(cluster.table().trim_end())?,
    }
    let wrong = cluster.members.iter().filter(|member| member.problem.is_some()).count();
    ensure!(wrong == 0 && cluster.problems.is_empty(), "{}", cluster.summary(wrong));
    Ok(())
}

/// Takes over the topics for the replica in the data directory, or says what that would do.
fn promote(yes: bool, config: &ConfigArgs, json: bool) -> Result<()> {
    let config = config.load()?;
    let planned = Takeover::plan(&config).context("the replica cannot be promoted")?;
    let words = if json { format!("{:#}", plan(&planned, yes)) } else { in_words(&planned) };
    if yes {
        planned.carry_out().context("the replica was not promoted")?;
    }
    output::print(&words)?;
    if yes && !json {
        output::print(
            "the topics are taken over: start this daemon with these settings; it learns its log anew. Keep the \
             earlier leader from starting again",
        )?;
    }
    ensure!(yes, "nothing was changed; pass --yes to take over the topics");
    Ok(())
}

fn plan(planned: &Takeover, done: bool) -> Value {
    let (topic, shipped) = planned.topic();
    let source = |reading: &Reading| {
        json!({
            "source": reading.source,
            "partition": reading.range.partition,
            "from": reading.from,
            "to_read": reading.to_read(),
            "gone": reading.gone(),
            "broker_earliest": reading.range.low,
            "broker_latest": reading.range.high,
        })
    };
    json!({
        "done": done,
        "topic": topic,
        "frames_position": shipped.0,
        "log_position": planned.end.0,
        "sources": planned.reading.iter().map(source).collect::<Vec<_>>(),
        "sources_without_settings": planned.unnamed,
    })
}

fn in_words(planned: &Takeover) -> String {
    let ((topic, shipped), end) = (planned.topic(), planned.end.0);
    let mut lines = vec![format!(
        "the log here ends at position {end}, and topic {topic} at {}: all that was shipped is here",
        shipped.0
    )];
    lines.extend(planned.reading.iter().map(sentence));
    lines.extend(planned.unnamed.iter().map(|source| {
        format!("{source} has events in the log, and the settings do not name it: it will not be read")
    }));
    lines.push(format!(
        "pushed events that the earlier leader acknowledged behind position {end} are not here: they are in its \
         data.dir only"
    ));
    lines.join("\n")
}

/// What is read of a partition, in words.
fn sentence(reading: &Reading) -> String {
    let Reading { source, range: PartitionRange { partition, low, high }, from } = reading;
    let gone = match reading.gone() {
        _ if reading.is_beyond() => {
            format!("; the topic ends at offset {high}: is it the one that was read?")
        }
        0 => String::new(),
        gone => format!("; {gone} offsets that the log does not have are gone from the topic"),
    };
    match (from, reading.to_read()) {
        (Some(from), Some(count)) => {
            format!("{source}, partition {partition}: goes on at offset {from}, {count} to read{gone}")
        }
        _ => format!(
            "{source}, partition {partition}: the log has nothing of it; offsets {low} to {high} are there"
        ),
    }
}

fn member(client: &Client<'_>, url: &str) -> Member {
    match client.document(Method::GET, "/v1/status", None) {
        Ok(status) => Member::of(url, &status),
        Err(error) => {
            Member { url: url.to_owned(), problem: Some(format!("{error:#}")), ..Member::default() }
        }
    }
}

impl Member {
    fn of(url: &str, status: &Value) -> Self {
        let (cluster, freshness) = (&status["cluster"], &status["freshness"]);
        let is_failing = cluster["state"] == "failing";
        Self {
            url: url.to_owned(),
            role: Some(cluster["role"].as_str().unwrap_or("single").to_owned()),
            frames_position: cluster["frames_position"].as_u64(),
            states_position: cluster["states_position"].as_u64(),
            durable_position: freshness["durable_position"].as_u64(),
            model_version: freshness["model_version"].as_u64(),
            staleness_seconds: cluster["staleness_seconds"].as_f64(),
            problem: is_failing.then(|| cluster["detail"].as_str().unwrap_or("replication fails").to_owned()),
        }
    }

    fn is(&self, role: &str) -> bool {
        self.role.as_deref() == Some(role)
    }
}

impl Cluster {
    fn of(members: Vec<Member>) -> Self {
        let leaders: Vec<&Member> = members.iter().filter(|member| member.is("leader")).collect();
        let mut problems = Vec::new();
        match leaders[..] {
            [] => problems.push("there is no leader among them".to_owned()),
            [leader] => problems.extend(members.iter().filter_map(|member| ahead(member, leader))),
            _ => problems.push(
                "there are several leaders; the one that started last ships, and others end".to_owned(),
            ),
        }
        let alone = members.iter().filter(|member| member.is("single"));
        problems.extend(
            alone.map(|member| format!("{} is neither leader nor replica (cluster.role)", member.url)),
        );
        Self { members, problems }
    }

    /// The replica that has received most of the log.
    fn most_complete(&self) -> Option<&Member> {
        let replicas = self.members.iter().filter(|member| member.is("replica"));
        replicas.max_by_key(|member| member.frames_position)
    }

    fn summary(&self, wrong: usize) -> String {
        let mut all = self.problems.clone();
        if wrong > 0 {
            all.push(format!("{wrong} of {} have a problem", self.members.len()));
        }
        if let (true, Some(best)) =
            (!self.members.iter().any(|member| member.is("leader")), self.most_complete())
        {
            all.push(format!("{} has received most of the log", best.url));
        }
        all.join("; ")
    }

    fn table(&self) -> String {
        let width = self.members.iter().map(|member| member.url.len()).max().unwrap_or(0).max(3);
        let mut out = format!(
            "{:<width$} {:<8} {:>14} {:>14} {:>14} {:>9} {:>10}  {}\n",
            "url", "role", "log", "frames", "states", "version", "stale (s)", "problem"
        );
        for member in &self.members {
            let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
            let stale = member.staleness_seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.1}"));
            let _ = writeln!(
                out,
                "{:<width$} {:<8} {:>14} {:>14} {:>14} {:>9} {:>10}  {}",
                member.url,
                member.role.as_deref().unwrap_or("-"),
                number(member.durable_position),
                number(member.frames_position),
                number(member.states_position),
                number(member.model_version),
                stale,
                member.problem.as_deref().unwrap_or(""),
            );
        }
        out
    }
}

/// What is wrong with a replica whose log is longer than that of the leader, which was asked after it.
fn ahead(member: &Member, leader: &Member) -> Option<String> {
    let (own, led) = (member.durable_position?, leader.frames_position?.max(leader.durable_position?));
    (member.is("replica") && own > led).then(|| {
        format!(
            "{} has records up to {own}, and the leader up to {led}: it is not a copy of this leader",
            member.url
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(role: &str, position: u64, state: &str) -> Member {
        let status = json!({
            "cluster": {
                "role": role,
                "state": state,
                "detail": "no broker",
                "frames_position": position,
                "states_position": null,
                "staleness_seconds": 0.25,
            },
            "freshness": { "durable_position": position, "model_version": 7 },
        });
        Member::of(&format!("http://{role}:{position}"), &status)
    }

    #[test]
    fn a_leader_and_its_replicas_fit_together() {
        let cluster = Cluster::of(vec![daemon("leader", 20, "running"), daemon("replica", 20, "running")]);
        assert_eq!(cluster.problems, Vec::<String>::new());
        let table = cluster.table();
        let words: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(words, ["http://replica:20", "replica", "20", "20", "-", "7", "0.2"]);
        assert_eq!(table.lines().count(), 3);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let failing = daemon("replica", 5, "failing");
        assert_eq!(failing.problem.as_deref(), Some("no broker"));
        let lost = Cluster::of(vec![failing, daemon("replica", 9, "running")]);
        let summary = lost.summary(1);
        assert!(summary.contains("no leader") && summary.contains("1 of 2"), "{summary}");
        assert!(summary.contains("http://replica:9 has received most"), "{summary}");
        let two = Cluster::of(vec![daemon("leader", 3, "running"), daemon("leader", 4, "running")]);
        assert!(two.problems[0].contains("several leaders"));
        let ahead = Cluster::of(vec![daemon("leader", 3, "running"), daemon("replica", 4, "running")]);
        assert!(ahead.problems[0].contains("records up to 4"), "{:?}", ahead.problems);
        let alone = Member::of("http://a", &json!({ "cluster": null, "freshness": {} }));
        let with = Cluster::of(vec![daemon("leader", 3, "running"), alone]);
        assert!(with.problems[0].contains("http://a is neither"), "{:?}", with.problems);
    }
}
