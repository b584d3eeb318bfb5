//! `make soak`: the daemon for an hour at 20,000 events a second from Kafka in transactions, learning and serving
//! requests, beside slow clients that hold on to connections. The broker is restarted every five minutes, the daemon
//! killed twice, one event has a time far in the future, and the topic is deleted and created again. The log is cut behind
//! snapshots, and read before that: every event that Kafka committed is in it once, and learned. What was measured becomes
//! `docs/benchmarks/soak.json` and its page.
//!
//! `SOAK_MINUTES` is the duration; without it nothing runs. `SOAK_RATE` is another number of events per second,
//! `SOAK_OUT` another folder for the results.

mod audit;
mod page;
mod slow;
mod traffic;

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use evergraph::cli::machine;
use evergraph::event::EdgeId;
use serde_json::{Value, json};

use self::audit::Audit;
use self::slow::Slow;
use crate::broker::Broker;
use crate::kafka_daemon::{daemon, kafka};
use crate::process::{Process, Start, evergraph};

const TOPIC: &str = "soak";
const PARTITIONS: u64 = 4;
/// Nodes that begin edges; a tenth as many end them.
const NODES: u32 = 100_000;
/// Seconds of the stream that the graph keeps.
const RETENTION_SECONDS: u64 = 300;
/// Requests per second of each client thread.
const REQUEST_RATES: [u64; 2] = [100, 100];
/// Bytes of log that are kept, between two snapshots, and in a segment.
const LOG_KEPT: u64 = 256 << 20;
const LOG_OF_SNAPSHOT: u64 = 32 << 20;
const SEGMENT: u64 = 32 << 20;
/// The bound of the log, as the file of settings states it, and what comes within a check.
const LOG_MAX: u64 = LOG_KEPT + 2 * LOG_OF_SNAPSHOT + SEGMENT + (4 << 20);
/// The time of the event whose producer had a wrong clock.
const WILD_TIME: i64 = 4_000_000_000_000_000_000;
/// Slow clients of each kind.
const SLOW_CLIENTS: usize = 300;
/// How long everything may take to be learned when no more comes.
const CATCH_UP: Duration = Duration::from_secs(1_800);

/// A number from the environment.
fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// What the threads of a run share.
struct Run {
    /// Events of the stream that Kafka has committed, without the wild one.
    committed: AtomicU64,
    transactions: AtomicU64,
    aborted: AtomicU64,
    /// Whether an event with a wild time is wanted, and how many were committed.
    wild_wanted: AtomicBool,
    wild: AtomicU64,
    /// Whether producing is to stop for a while, and whether it has.
    hold: AtomicBool,
    held: AtomicBool,
    /// The position below which all is learned, as last seen.
    applied: AtomicU64,
    /// Events a second.
    rate: u64,
    started: Instant,
    /// Address of the daemon; empty while it is down.
    url: Mutex<String>,
    pid: AtomicU32,
    /// How often the daemon was started.
    life: AtomicU32,
    /// When something was broken last, seconds after the start.
    broken: AtomicU64,
    over: AtomicBool,
}

/// One observation.
struct Sample {
    /// Seconds after the start.
    at: f64,
    /// Seconds since something was broken.
    calm: f64,
    life: u32,
    resident: u64,
    /// Events committed in Kafka that responses do not reflect.
    behind: u64,
}

impl Run {
    fn new(rate: u64) -> Self {
        Self {
            committed: AtomicU64::default(),
            transactions: AtomicU64::default(),
            aborted: AtomicU64::default(),
            wild_wanted: AtomicBool::default(),
            wild: AtomicU64::default(),
            hold: AtomicBool::default(),
            held: AtomicBool::default(),
            applied: AtomicU64::default(),
            rate,
            started: Instant::now(),
            url: Mutex::default(),
            pid: AtomicU32::default(),
            life: AtomicU32::default(),
            broken: AtomicU64::default(),
            over: AtomicBool::default(),
        }
    }

    /// Events that Kafka has committed.
    fn events(&self) -> u64 {
        self.committed.load(SeqCst) + self.wild.load(SeqCst)
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn breaks(&self, what: &str) {
        eprintln!("{:6.0} s: {what}", self.seconds());
        self.broken.store(self.seconds() as u64, SeqCst);
    }

    fn lives(&self, process: &Process) {
        self.pid.store(process.pid(), SeqCst);
        self.life.fetch_add(1, SeqCst);
        *self.url.lock().unwrap() = process.url("");
    }

    /// Samples once a second until the run is over.
    fn watch(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        while !self.over.load(SeqCst) {
            std::thread::sleep(Duration::from_secs(1));
            let url = self.url.lock().unwrap().clone();
            let (at, life) = (self.seconds(), self.life.load(SeqCst));
            let committed = self.events();
            let Some(applied) = applied(&url) else { continue };
            self.applied.fetch_max(applied, SeqCst);
            samples.push(Sample {
                at,
                calm: at - self.broken.load(SeqCst) as f64,
                life,
                resident: resident_bytes(self.pid.load(SeqCst)),
                behind: committed.saturating_sub(applied),
            });
        }
        samples
    }
}

/// The position up to which the daemon has learned; `None` if it does not respond.
fn applied(url: &str) -> Option<u64> {
    let text = crate::process::client()
        .get(format!("{url}/v1/status"))
        .call()
        .ok()?
        .body_mut()
        .read_to_string()
        .ok()?;
    serde_json::from_str::<Value>(&text).ok()?["learner"]["applied_position"].as_u64()
}

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// The value that a share of all is not above; of none of them nothing.
fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1))).copied()
}

fn percentiles(mut values: Vec<f64>) -> Value {
    values.sort_unstable_by(f64::total_cmp);
    json!({
        "count": values.len(),
        "p50_seconds": percentile(&values, 0.5),
        "p99_seconds": percentile(&values, 0.99),
        "p999_seconds": percentile(&values, 0.999),
        "max_seconds": values.last(),
    })
}

/// Growth of memory in the longest life of the daemon, without its first half, in which the graph fills: a line through
/// the samples by least squares, bytes an hour.
fn slope(samples: &[Sample]) -> Option<f64> {
    let lives: BTreeMap<u32, usize> = samples.iter().fold(BTreeMap::new(), |mut lives, sample| {
        *lives.entry(sample.life).or_default() += 1;
        lives
    });
    let (longest, count) = lives.into_iter().max_by_key(|(_, count)| *count)?;
    let points: Vec<(f64, f64)> = samples
        .iter()
        .filter(|sample| sample.life == longest)
        .skip(count / 2)
        .map(|sample| (sample.at, sample.resident as f64))
        .collect();
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let (over, under) = points.iter().fold((0.0, 0.0), |(over, under), point| {
        (over + (point.0 - x) * (point.1 - y), under + (point.0 - x) * (point.0 - x))
    });
    (under > 0.0).then(|| over / under * 3_600.0)
}

/// What is broken when.
struct Plan {
    seconds: f64,
    /// Between two restarts of the broker.
    restarts: f64,
}

/// What was broken.
#[derive(Default)]
struct Broken {
    broker_restarts: u32,
    /// Seconds from each kill of the daemon until it was ready again, and from then to the first response.
    kills: Vec<f64>,
    first_reads: Vec<f64>,
    /// What the daemon reported of the topic that was created again.
    new_topic: Option<String>,
}

/// The daemon of a run, and what it runs beside.
struct Scene<'a> {
    run: &'a Run,
    broker: &'a Broker,
    start: &'a Start,
    data: &'a Path,
}

impl Scene<'_> {
    /// Seconds until it was ready, and from then to the first response.
    fn kill(&self, process: &mut Process) -> (f64, f64) {
        self.run.breaks("the daemon is killed");
        self.run.url.lock().unwrap().clear();
        let killed = Instant::now();
        process.signal("-KILL");
        process.ended();
        *process = self.start.ready();
        let ready = Instant::now();
        let body = json!({"nodes": ["u1"]}).to_string();
        let (status, response) = process.post("/v1/embeddings", "application/json", &body).unwrap();
        assert_eq!(status, 200, "{response}");
        let first_read = ready.elapsed();
        self.run.lives(process);
        self.run.breaks("the daemon is back");
        ((ready - killed).as_secs_f64(), first_read.as_secs_f64())
    }

    fn restart_broker(&self, in_order: bool) {
        self.run.breaks("the broker is restarted");
        if in_order {
            self.broker.stop()
        } else {
            self.broker.kill()
        }
        self.broker.start();
        self.run.breaks("the broker is back");
    }

    /// Deletes the topic when all of it is learned and creates it again. The source has to end instead of reading on;
    /// then an operator takes it to the beginning. Returns what the source reported.
    fn replace_topic(&self, process: &mut Process) -> String {
        let Self { run, broker, start, data } = *self;
        run.hold.store(true, SeqCst);
        while !run.held.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let all = run.events();
        run.breaks(&format!("nothing is produced; {all} events are to be learned"));
        process.wait_until_within(CATCH_UP, "all learned", |status| {
            status["learner"]["applied_position"] == all
        });
        run.breaks("the topic is deleted and created again");
        broker.delete_topic(TOPIC);
        broker.create_topic(TOPIC, PARTITIONS as i32);
        let status = process
            .wait_until_within(CATCH_UP, "the source has ended", |status| kafka(status)["state"] == "failed");
        let reported = kafka(&status)["reason"].to_string();
        run.url.lock().unwrap().clear();
        process.signal("-TERM");
        assert!(process.ended().success());
        let settings =
            [format!("ingest.kafka.brokers={}", broker.bootstrap()), format!("ingest.kafka.topic={TOPIC}")];
        let data = data.to_str().unwrap();
        let (done, _, error) = evergraph(&[
            "source",
            "seek",
            "--to",
            "earliest",
            "--yes",
            "--data",
            data,
            "--set",
            &settings[0],
            "--set",
            &settings[1],
        ]);
        assert!(done, "{error}");
        *process = start.ready();
        run.lives(process);
        run.hold.store(false, SeqCst);
        run.breaks("the new topic is read");
        reported
    }
}

impl Plan {
    fn of(minutes: f64) -> Self {
        // A broker takes a while to come back, however short the run.
        Self { seconds: minutes * 60.0, restarts: (minutes * 5.0).max(40.0) }
    }

    /// Breaks things until the time is over. The daemon's last life is the longest by far: whether its memory grows shows
    /// in the second half of that.
    fn carry_out(&self, scene: &Scene<'_>, process: &mut Process) -> Broken {
        let (run, mut broken) = (scene.run, Broken::default());
        while run.seconds() < self.seconds {
            std::thread::sleep(Duration::from_millis(200));
            let share = run.seconds() / self.seconds;
            if share > 0.05 && !run.wild_wanted.swap(true, SeqCst) {
                run.breaks("an event comes with a time far in the future");
            } else if share > f64::from(broken.kills.len() as u32 + 1) * 0.1 && broken.kills.len() < 2 {
                let (ready, first_read) = scene.kill(process);
                broken.kills.push(ready);
                broken.first_reads.push(first_read);
            } else if share > 0.3 && broken.new_topic.is_none() {
                broken.new_topic = Some(scene.replace_topic(process));
            } else if run.seconds() > self.restarts * f64::from(broken.broker_restarts + 1) && share < 0.95 {
                scene.restart_broker(broken.broker_restarts % 2 == 0);
                broken.broker_restarts += 1;
            }
        }
        broken
    }
}

#[test]
#[ignore = "takes an hour; `make soak` runs it"]
fn an_hour_at_twenty_thousand_events_a_second_with_restarts_and_kills_loses_nothing() {
    let Some(minutes) = setting::<f64>("SOAK_MINUTES") else {
        return eprintln!("SOAK_MINUTES is not set; `make soak` sets it");
    };
    let rate = setting::<u64>("SOAK_RATE").unwrap_or(20_000);
    let Some(broker) = Broker::own() else { return };
    assert!(broker.is_kafka(), "the stand-in forgets everything on a restart");
    broker.create_topic(TOPIC, PARTITIONS as i32);
    let data = tempfile::tempdir().unwrap();
    let start = daemon(&broker, TOPIC, data.path())
        .set(&format!("graph.retention={}", rate * RETENTION_SECONDS))
        .set("checkpoint.interval_seconds=60")
        .set("checkpoint.keep=2")
        .set(&format!("log.retention_bytes={LOG_KEPT}"))
        .set(&format!("log.segment_bytes={SEGMENT}"))
        .set(&format!("snapshot.log_bytes={LOG_OF_SNAPSHOT}"))
        // Other tests have every event trained on.
        .set("learner.lag_target_ms=50");
    let mut process = start.ready();
    let plan = Plan::of(minutes);
    let run = Run::new(rate);
    run.lives(&process);
    let scene = Scene { run: &run, broker: &broker, start: &start, data: data.path() };
    let (results, samples, broken, slow, mut audit) = std::thread::scope(|scope| {
        let end = scopeguard::guard((), |()| run.over.store(true, SeqCst));
        let producing = scope.spawn(|| run.produce(&broker.bootstrap()));
        let clients = [0, 1].map(|thread| {
            let run = &run;
            scope.spawn(move || run.request(thread as u64, REQUEST_RATES[thread]))
        });
        let slow = [Slow::Writer, Slow::Reader].map(|kind| {
            let run = &run;
            scope.spawn(move || run.drag(kind, SLOW_CLIENTS))
        });
        let watching = scope.spawn(|| run.watch());
        let auditing = scope.spawn(|| Audit::default().follow(&run, data.path()));
        let broken = plan.carry_out(&scene, &mut process);
        drop(end);
        let results = clients.map(|thread| thread.join().unwrap());
        let slow = slow.map(|thread| thread.join().unwrap());
        producing.join().unwrap();
        (results, watching.join().unwrap(), broken, slow, auditing.join().unwrap())
    });
    let (sent, all) = (run.committed.load(SeqCst), run.events());
    let ended = Instant::now();
    let status = process
        .wait_until_within(CATCH_UP, "all learned", |status| status["learner"]["applied_position"] == all);
    let caught_up = ended.elapsed().as_secs_f64();
    let (_, health) = process.get("/healthz").unwrap();
    // The newest event's nodes: what is asked now is asked at the time of the stream, whatever one producer's clock was.
    let newest = traffic::source(sent - 1);
    let (_, node) = process.get(&format!("/v1/nodes/{newest}?neighbors=10")).unwrap();
    assert!(process.terminate().success());
    audit.read_to(EdgeId(all), data.path()).unwrap();
    eprintln!("{sent} events committed, {} in the log, {} different ones", audit.records, audit.distinct);
    assert_eq!((audit.records, audit.distinct, audit.wild), (sent, sent, 1), "every event once");
    assert!(!audit.has_others(sent), "an event that was never committed");
    assert_eq!(health["status"], "ok", "{health}");
    assert!(node["neighbors"].as_array().is_some_and(|neighbors| !neighbors.is_empty()), "{node}");
    // All come from one address, of which only so many bodies may be late: the other writers are refused at once.
    let [(writers_cut, _), (readers_cut, readers)] = slow;
    assert!(writers_cut > 0 && readers_cut > 0 && readers == SLOW_CLIENTS, "slow clients: {slow:?}");

    let reads: Vec<f64> =
        results.iter().flat_map(|(taken, _)| taken.iter().map(|&seconds| f64::from(seconds))).collect();
    let refused: Vec<&BTreeMap<String, u64>> = results.iter().map(|(_, failed)| failed).collect();
    let stale = |calm: f64| {
        let samples = samples.iter().filter(|sample| sample.calm >= calm);
        percentiles(samples.map(|sample| sample.behind as f64 / rate as f64).collect())
    };
    let learner = &status["learner"];
    page::report(&json!({
        "minutes": minutes,
        "events_per_second": rate,
        "transactions": run.transactions.load(SeqCst),
        "transactions_aborted": run.aborted.load(SeqCst),
        "events_sent": sent,
        "events_with_wild_time": audit.wild,
        "events_in_log": audit.records,
        "events_distinct": audit.distinct,
        "log_retention_bytes": LOG_KEPT,
        "log_bytes_max": audit.log_bytes_max,
        "data_bytes_max": audit.data_bytes_max,
        "events_applied": learner["applied_position"],
        "events_trained_in_last_life": learner["trained_events"],
        "events_skipped_in_last_life": learner["skipped_events"],
        "broker_restarts": broken.broker_restarts,
        "kills": broken.kills.len(),
        "kill_to_ready_seconds": broken.kills,
        "ready_to_first_read_seconds": broken.first_reads,
        "new_topic_reported": broken.new_topic,
        "slow_clients_of_each_kind": SLOW_CLIENTS,
        "slow_writers_cut": slow[0].0,
        "slow_readers_cut": slow[1].0,
        "end_to_all_learned_seconds": caught_up,
        "reads": percentiles(reads),
        "reads_without_response": refused,
        "staleness": stale(0.0),
        "staleness_calm_for_seconds": plan.restarts / 2.0,
        "staleness_when_calm": stale(plan.restarts / 2.0),
        "resident_max_bytes": samples.iter().map(|sample| sample.resident).max(),
        "resident_slope_bytes_per_hour": slope(&samples),
        "retention_seconds": RETENTION_SECONDS,
        "machine": machine::facts(0),
    }));
    assert!(audit.log_bytes_max <= LOG_MAX, "the log had {} bytes", audit.log_bytes_max);
    assert!(broken.kills.iter().all(|&seconds| seconds <= 5.0), "ready after {:?}", broken.kills);
    assert!(broken.first_reads.iter().all(|&seconds| seconds <= 1.0), "{:?}", broken.first_reads);
}

#[test]
fn a_line_through_memory_is_found_in_the_longest_life() {
    let sample =
        |at: u32, life, resident: u64| Sample { at: f64::from(at), calm: 0.0, life, resident, behind: 0 };
    let mut samples: Vec<Sample> = (0..10).map(|at| sample(at, 1, 1 << 40)).collect();
    samples.extend((10..110).map(|at| sample(at, 2, if at < 60 { 7 } else { 1_000 + u64::from(at) * 5 })));
    assert!((slope(&samples).unwrap() - 5.0 * 3_600.0).abs() < 1e-6);
    assert_eq!(percentile(&[], 0.5), None);
    let values: Vec<f64> = (1..=1000).map(f64::from).collect();
    assert_eq!(
        [0.5, 0.99, 0.999].map(|share| percentile(&values, share)),
        [Some(501.0), Some(991.0), Some(1000.0)]
    );
}
