//! Read replicas under requests: none is refused while the leader restarts, and (`make replicas`) requests per second grow
//! with replicas while the leader computes no more. That is measured with each replica in a control group that has a fifth
//! of a core, so that one machine stands in for several; it becomes `docs/benchmarks/replicas.json` and its page.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evergraph::cli::machine;
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::cluster::{daemon, events, is_shipped, push, reflects};
use crate::console::cpu_seconds;
use crate::process::{Process, evergraph};
use crate::skip::skipped;

/// Nodes of a request.
const NODES: u64 = 10;

/// Asks one daemon until `over`, on one connection; returns how many requests it has served and what it has refused.
fn read(process: &Process, over: &AtomicBool, position: &AtomicU64) -> (u64, Vec<String>) {
    let agent = crate::process::agent();
    let (url, mut served, mut refused) = (process.url("/v1/embeddings"), 0, Vec::new());
    for number in 0_u64.. {
        if over.load(Relaxed) {
            break;
        }
        let nodes: Vec<String> = (0..NODES).map(|i| format!("u{}", (number + i) % 31)).collect();
        let body = json!({ "nodes": nodes, "min_position": position.load(Relaxed), "wait_ms": 10_000 });
        match agent.post(&url).header("content-type", "application/json").send(body.to_string()) {
            Ok(mut response) if response.status() == 200 => {
                // All of it, so that the connection can be used again.
                response.body_mut().read_to_vec().unwrap();
                served += 1;
            }
            Ok(mut response) => refused.push(response.body_mut().read_to_string().unwrap_or_default()),
            Err(error) => refused.push(error.to_string()),
        }
    }
    (served, refused)
}

#[test]
fn no_read_is_refused_while_the_leader_restarts() {
    let Some(broker) = Broker::shared().filter(|broker| broker.is_kafka()) else { return };
    let data = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let leaders = daemon(broker, "rolling", "leader", data[0].path());
    let leader = leaders.ready();
    push(&leader, &events(0, 200));
    let replicas = [1, 2].map(|i: usize| daemon(broker, "rolling", "replica", data[i].path()).ready());
    replicas.iter().for_each(|replica| is_shipped(&leader, replica, 200));
    let (over, position) = (AtomicBool::new(false), AtomicU64::new(200));
    let leader = std::thread::scope(|scope| {
        let mut leader = leader;
        let readers: Vec<_> =
            replicas.iter().map(|replica| scope.spawn(|| read(replica, &over, &position))).collect();
        for round in 1..=3 {
            assert!(leader.terminate().success());
            let ready = replicas.iter().map(|replica| replica.get("/readyz").unwrap().0);
            assert_eq!(ready.collect::<Vec<_>>(), [200, 200], "replicas stay in their service");
            leader = leaders.ready();
            let written = push(&leader, &events(200 * round, 200 * (round + 1)));
            // What was acknowledged is read everywhere from now on.
            position.store(written["end_position"].as_u64().unwrap(), Relaxed);
            std::thread::sleep(Duration::from_millis(300));
        }
        over.store(true, Relaxed);
        for reader in readers {
            let (served, refused) = reader.join().unwrap();
            assert!(
                served > 50 && refused.is_empty(),
                "{served} served, {} refused: {refused:?}",
                refused.len()
            );
        }
        leader
    });
    replicas.iter().for_each(|replica| is_shipped(&leader, replica, 800));

    // The same from outside.
    let urls = [&leader, &replicas[0], &replicas[1]].map(|process| process.url(""));
    let words = ["cluster", "status"].into_iter().chain(urls.iter().map(String::as_str));
    let (fits, table, error) = evergraph(&words.clone().collect::<Vec<_>>());
    assert!(fits, "{error}");
    assert_eq!(
        table.lines().filter(|line| line.contains(" replica ") && line.contains(" 800 ")).count(),
        2,
        "{table}"
    );
    assert!(leader.terminate().success());
    let (fits, json, error) = evergraph(&words.chain(["--json"]).collect::<Vec<_>>());
    assert!(!fits && error.contains("no leader") && error.contains("most of the log"), "{error}");
    let members: Value = serde_json::from_str(&json).unwrap();
    assert!(members["members"][0]["problem"].as_str().unwrap().contains("no daemon responds"), "{members}");
    assert_eq!(members["members"][2]["durable_position"], 800);
}

/// A control group with a share of a core.
struct Group(PathBuf);

impl Group {
    /// Version 1 or 2, whichever the system has; `None` where groups may not be made.
    fn new(name: &str, percent: u32) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let (folder, file, text) = match root.join("cpu").exists() {
            true => (root.join("cpu").join(name), "cpu.cfs_quota_us", format!("{}", percent * 1_000)),
            false => (root.join(name), "cpu.max", format!("{} 100000", percent * 1_000)),
        };
        std::fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        std::fs::write(group.0.join(file), text).ok()?;
        Some(group)
    }

    fn take(&self, process: &Process) {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended.
        _ = std::fs::remove_dir(&self.0);
    }
}

/// Requests per second of so many replicas, and CPU seconds of the leader per 1,000 events that come meanwhile.
fn measure(broker: &Broker, replicas: usize, seconds: u64, share: u32) -> Option<Value> {
    let topics = format!("adding-{replicas}-{}", std::process::id());
    let data: Vec<_> = (0..=replicas).map(|_| tempfile::tempdir().unwrap()).collect();
    let leader = daemon(broker, &topics, "leader", data[0].path()).ready();
    push(&leader, &events(0, 2_000));
    let groups = (0..replicas).map(|i| Group::new(&format!("evergraph-{}-{i}", std::process::id()), share));
    let groups: Vec<Group> = groups.collect::<Option<_>>()?;
    let start = |i: usize| daemon(broker, &topics, "replica", data[i + 1].path()).ready();
    let running: Vec<Process> = (0..replicas).map(start).collect();
    running.iter().for_each(|replica| is_shipped(&leader, replica, 2_000));
    running.iter().zip(&groups).for_each(|(replica, group)| group.take(replica));
    let (over, position) = (AtomicBool::new(false), AtomicU64::new(2_000));
    let (before, begun) = (cpu_seconds(leader.pid()), Instant::now());
    let mut sent = 0_u64;
    let served: u64 = std::thread::scope(|scope| {
        let clients = running.iter().flat_map(|replica| [replica; 2]);
        let readers: Vec<_> =
            clients.map(|replica| scope.spawn(|| read(replica, &over, &position))).collect();
        while begun.elapsed() < Duration::from_secs(seconds) {
            push(&leader, &events(2_000 + sent, 2_000 + sent + 100));
            sent += 100;
            std::thread::sleep(Duration::from_secs(1));
        }
        over.store(true, Relaxed);
        let each = |(served, refused): (u64, Vec<String>)| {
            assert!(refused.is_empty(), "{refused:?}");
            served
        };
        readers.into_iter().map(|reader| each(reader.join().unwrap())).sum()
    });
    let taken = begun.elapsed().as_secs_f64();
    let leader_cpu = cpu_seconds(leader.pid()) - before;
    reflects(&leader, 2_000 + sent);
    Some(json!({
        "replicas": replicas,
        "requests_per_second": served as f64 / taken,
        "leader_cpu_seconds_per_1000_events": leader_cpu * 1e3 / sent as f64,
    }))
}

#[test]
#[ignore = "takes minutes and the machine to itself; `make replicas` runs it"]
fn requests_grow_with_replicas_and_the_leader_computes_no_more() {
    let Some(folder) = std::env::var_os("REPLICAS_OUT").map(PathBuf::from) else { return };
    let Some(broker) = Broker::own().filter(Broker::is_kafka) else { return };
    let (seconds, share) = (20, 20);
    let mut rows = Vec::new();
    for replicas in 1..=4 {
        let Some(row) = measure(&broker, replicas, seconds, share) else {
            return skipped("control groups (run as root)");
        };
        eprintln!("{row}");
        rows.push(row);
    }
    let figures = json!({
        "nodes_per_request": NODES,
        "replica_core_percent": share,
        "seconds": seconds,
        "rows": rows,
        "machine": machine::facts(0),
    });
    let text = serde_json::to_string_pretty(&figures).unwrap() + "\n";
    // The page is of the figures as they are read again, which may differ in the last digit.
    let page = page(&serde_json::from_str(&text).unwrap());
    std::fs::write(folder.join("replicas.json"), text).unwrap();
    std::fs::write(folder.join("replicas.md"), page).unwrap();
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap();
    let one = of(&figures["rows"][0], "requests_per_second");
    for row in figures["rows"].as_array().unwrap() {
        let (replicas, rate) = (of(row, "replicas"), of(row, "requests_per_second"));
        assert!(
            rate >= 0.9 * replicas * one,
            "{replicas} replicas serve {rate} requests/s, one serves {one}"
        );
    }
}

fn page(figures: &Value) -> String {
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let rows = figures["rows"].as_array().cloned().unwrap_or_default();
    let one = rows.first().map_or(f64::NAN, |row| number(row, "requests_per_second"));
    let row = |row: &Value| {
        let (replicas, rate) = (number(row, "replicas"), number(row, "requests_per_second"));
        let (share, cpu) = (rate / (replicas * one), number(row, "leader_cpu_seconds_per_1000_events"));
        format!("| {replicas} | {rate:.0} | {share:.2} | {cpu:.2} s |\n")
    };
    let rows: String = rows.iter().map(row).collect();
    let machine = &figures["machine"];
    format!(
        "# Requests per second by read replicas\n\n\
         <!-- Made by `make replicas`: change tests/it/replicas.rs, not this. -->\n\n\
         A leader and one to four replicas with a real Apache Kafka, all on one machine ({}, {} cores). Each replica\n\
         is in a control group that has {} % of a core, and responds to two clients that ask for {} embeddings at a time,\n\
         one request after another, for {} s. Meanwhile 100 events per second are pushed to the leader.\n\n\
         | replicas | requests/s | beside as many times one | CPU of the leader per 1,000 events |\n\
         |--:|--:|--:|--:|\n{rows}\n\
         The leader's CPU includes learning and shipping; Kafka has what replicas read. Figures are in\n\
         [replicas.json](replicas.json).\n",
        machine["cpu"].as_str().unwrap_or("an unknown CPU"),
        machine["cores"],
        figures["replica_core_percent"],
        figures["nodes_per_request"],
        figures["seconds"],
    )
}

#[test]
fn the_page_of_replicas_is_made_of_its_figures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let made = page(&serde_json::from_str(&read("replicas.json")).unwrap());
    assert_eq!(made, read("replicas.md"), "make replicas writes both");
}
