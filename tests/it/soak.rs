//! `make soak`: the daemon for an hour at 20,000 events a second from Kafka, learning and serving requests; the broker
//! is restarted every five minutes and the daemon killed twice. At the end every event that Kafka acknowledged is in
//! the log once, and learned. What was measured becomes `docs/benchmarks/soak.json` and its page.
//!
//! `SOAK_MINUTES` is the duration; without it nothing runs. `SOAK_RATE` is another number of events per second,
//! `SOAK_OUT` another folder for the results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use evergraph::cli::machine;
use evergraph::device::rng;
use evergraph::event::{EventTime, Op};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::kafka_daemon::daemon;
use crate::process::Process;

const TOPIC: &str = "soak";
const PARTITIONS: u64 = 4;
/// Nodes that begin edges; a tenth as many end them.
const NODES: u32 = 100_000;
/// Seconds of the stream that the graph keeps.
const RETENTION_SECONDS: u64 = 300;
/// Requests per second of each client thread.
const REQUEST_RATES: [u64; 2] = [100, 100];
/// How long everything may take to be learned when no more comes.
const CATCH_UP: Duration = Duration::from_secs(1_800);

/// A number from the environment.
fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Counts what Kafka has acknowledged.
#[derive(Default)]
struct Deliveries {
    acknowledged: AtomicU64,
    failed: AtomicU64,
}

impl ClientContext for &'static Deliveries {}

impl ProducerContext for &'static Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let counter = if result.is_ok() { &self.acknowledged } else { &self.failed };
        counter.fetch_add(1, SeqCst);
    }
}

/// What the threads of a run share.
struct Run {
    deliveries: &'static Deliveries,
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
    /// Events acknowledged by Kafka that responses do not reflect.
    behind: u64,
}

impl Run {
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

    /// Sends events at the rate until the run is over; how many.
    fn produce(&self, brokers: &str) -> u64 {
        let producer: BaseProducer<&'static Deliveries> = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("enable.idempotence", "true")
            .set("compression.type", "zstd")
            .set("linger.ms", "5")
            // A broker that restarts is waited for.
            .set("queue.buffering.max.messages", "4000000")
            .set("queue.buffering.max.kbytes", "1048576")
            .set("message.timeout.ms", "900000")
            .create_with_context(self.deliveries)
            .unwrap();
        let mut sent = 0;
        while !self.over.load(SeqCst) {
            let due = (self.seconds() * self.rate as f64) as u64;
            while sent < due {
                let draw = |word, n| rng::below([90, word, sent, 0], n);
                let event = format!(
                    "{{\"src\":\"u{}\",\"dst\":\"i{}\",\"ts\":{sent}}}",
                    draw(0, NODES),
                    draw(1, NODES / 10)
                );
                let partition = (sent % PARTITIONS) as i32;
                let record = BaseRecord::<(), _>::to(TOPIC).partition(partition).payload(&event);
                if producer.send(record).is_err() {
                    break;
                }
                sent += 1;
            }
            producer.poll(Duration::from_millis(5));
        }
        producer.flush(Duration::from_secs(900)).unwrap();
        sent
    }

    /// Sends requests at a rate until the run is over; returns the latency of each response, and failures by reason.
    fn request(&self, thread: u64, a_second: u64) -> (Vec<f32>, BTreeMap<String, u64>) {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .build()
            .into();
        let (mut taken, mut failed) = (Vec::new(), BTreeMap::new());
        for number in 0_u64.. {
            let due = Duration::from_secs_f64(number as f64 / a_second as f64);
            std::thread::sleep(due.saturating_sub(self.started.elapsed()));
            if self.over.load(SeqCst) {
                break;
            }
            let url = self.url.lock().unwrap().clone();
            if url.is_empty() {
                continue;
            }
            let node = rng::below([91, thread, number, 0], NODES);
            let body = match number % 2 {
                0 => json!({"nodes": [format!("u{node}")]}),
                _ => json!({"pairs": [{"src": format!("u{node}"), "dst": format!("i{}", node / 10)}]}),
            };
            let route = ["/v1/embeddings", "/v1/links/score"][number as usize % 2];
            let sent = Instant::now();
            let response =
                agent.post(format!("{url}{route}")).content_type("application/json").send(body.to_string());
            match response.map(|mut response| {
                (response.status().as_u16(), response.body_mut().read_to_string().is_ok())
            }) {
                Ok((200, true)) => taken.push(sent.elapsed().as_secs_f32()),
                Ok((status, _)) => *failed.entry(format!("status {status}")).or_default() += 1,
                Err(_) => *failed.entry("no connection".to_owned()).or_default() += 1,
            }
        }
        (taken, failed)
    }

    /// Samples once a second until the run is over.
    fn watch(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        while !self.over.load(SeqCst) {
            std::thread::sleep(Duration::from_secs(1));
            let url = self.url.lock().unwrap().clone();
            let (at, life) = (self.seconds(), self.life.load(SeqCst));
            let acknowledged = self.deliveries.acknowledged.load(SeqCst);
            let Some(applied) = applied(&url) else { continue };
            samples.push(Sample {
                at,
                calm: at - self.broken.load(SeqCst) as f64,
                life,
                resident: resident_bytes(self.pid.load(SeqCst)),
                behind: acknowledged.saturating_sub(applied),
            });
        }
        samples
    }
}

/// The position up to which the daemon has learned; `None` if it does not respond.
fn applied(url: &str) -> Option<u64> {
    let text = ureq::get(format!("{url}/v1/status")).call().ok()?.body_mut().read_to_string().ok()?;
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

/// How many events of the stream stand in the log, and how many different ones.
fn events(data: &Path, produced: u64) -> (u64, u64) {
    let mut seen = vec![0_u64; produced as usize / 64 + 1];
    let (mut records, mut distinct) = (0, 0);
    let mut reader = evergraph::log::read_only(&data.join("log")).unwrap();
    while let Some(frame) = reader.next_frame().unwrap() {
        for (&op, &EventTime(number)) in frame.batch.op.iter().zip(&frame.batch.time) {
            assert_eq!(op, Op::Edge);
            let number = u64::try_from(number).unwrap();
            assert!(number < produced, "event {number} was never sent");
            let (word, bit) = (number as usize / 64, 1 << (number % 64));
            records += 1;
            distinct += u64::from(seen[word] & bit == 0);
            seen[word] |= bit;
        }
    }
    (records, distinct)
}

/// What is broken when.
struct Plan {
    seconds: f64,
    /// Between two restarts of the broker.
    restarts: f64,
}

impl Plan {
    fn of(minutes: f64) -> Self {
        // A broker takes a while to come back, however short the run.
        Self { seconds: minutes * 60.0, restarts: (minutes * 5.0).max(40.0) }
    }

    /// Breaks things until the time is over; how often the broker was restarted, and seconds from each kill of the
    /// daemon until it was ready again.
    fn carry_out(
        &self,
        run: &Run,
        broker: &Broker,
        start: &crate::process::Start,
        process: &mut Process,
    ) -> (u32, Vec<f64>) {
        let (mut restarts, mut kills) = (0, Vec::new());
        while run.seconds() < self.seconds {
            std::thread::sleep(Duration::from_millis(200));
            if run.seconds() > self.seconds * f64::from(kills.len() as u32 + 1) / 3.0 && kills.len() < 2 {
                run.breaks("the daemon is killed");
                run.url.lock().unwrap().clear();
                let killed = Instant::now();
                process.signal("-KILL");
                process.ended();
                *process = start.ready();
                run.lives(process);
                kills.push(killed.elapsed().as_secs_f64());
                run.breaks("the daemon is back");
            } else if run.seconds() > self.restarts * f64::from(restarts + 1)
                && run.seconds() < self.seconds * 0.95
            {
                run.breaks("the broker is restarted");
                // In order and not in order, in turn.
                if restarts % 2 == 0 {
                    broker.stop()
                } else {
                    broker.kill()
                }
                broker.start();
                restarts += 1;
                run.breaks("the broker is back");
            }
        }
        (restarts, kills)
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
        // Other tests have every event trained on.
        .set("learner.lag_ms_max=1000");
    let mut process = start.ready();
    let plan = Plan::of(minutes);
    let run = Run {
        deliveries: Box::leak(Box::default()),
        rate,
        started: Instant::now(),
        url: Mutex::default(),
        pid: AtomicU32::default(),
        life: AtomicU32::default(),
        broken: AtomicU64::default(),
        over: AtomicBool::default(),
    };
    run.lives(&process);
    let (sent, results, samples, (restarts, kills)) = std::thread::scope(|scope| {
        let producing = scope.spawn(|| run.produce(&broker.bootstrap()));
        let asking = [0, 1].map(|thread| {
            let run = &run;
            scope.spawn(move || run.request(thread as u64, REQUEST_RATES[thread]))
        });
        let watching = scope.spawn(|| run.watch());
        let broken = plan.carry_out(&run, &broker, &start, &mut process);
        run.over.store(true, SeqCst);
        let results = asking.map(|thread| thread.join().unwrap());
        (producing.join().unwrap(), results, watching.join().unwrap(), broken)
    });
    let failed = run.deliveries.failed.load(SeqCst);
    assert_eq!((run.deliveries.acknowledged.load(SeqCst), failed), (sent, 0), "what Kafka acknowledged");
    let ended = Instant::now();
    let status = process
        .wait_until_within(CATCH_UP, "all learned", |status| status["learner"]["applied_position"] == sent);
    let caught_up = ended.elapsed().as_secs_f64();
    let (_, health) = process.get("/healthz").unwrap();
    assert!(process.terminate().success());
    let (records, distinct) = events(data.path(), sent);
    eprintln!("{sent} events sent, {records} in the log, {distinct} different ones");
    assert_eq!((records, distinct), (sent, sent), "every event once");
    assert_eq!(health["status"], "ok", "{health}");

    let reads: Vec<f64> =
        results.iter().flat_map(|(taken, _)| taken.iter().map(|&seconds| f64::from(seconds))).collect();
    let refused: Vec<&BTreeMap<String, u64>> = results.iter().map(|(_, failed)| failed).collect();
    let stale = |calm: f64| {
        let samples = samples.iter().filter(|sample| sample.calm >= calm);
        percentiles(samples.map(|sample| sample.behind as f64 / rate as f64).collect())
    };
    let learner = &status["learner"];
    report(&json!({
        "minutes": minutes,
        "events_per_second": rate,
        "events_sent": sent,
        "events_in_log": records,
        "events_distinct": distinct,
        "events_applied": learner["applied_position"],
        "events_trained_in_last_life": learner["trained_events"],
        "events_skipped_in_last_life": learner["skipped_events"],
        "broker_restarts": restarts,
        "kills": kills.len(),
        "kill_to_ready_seconds": kills,
        "end_to_all_learned_seconds": caught_up,
        "reads": percentiles(reads),
        "reads_without_answer": refused,
        "staleness": stale(0.0),
        "staleness_calm_for_seconds": plan.restarts / 2.0,
        "staleness_when_calm": stale(plan.restarts / 2.0),
        "resident_max_bytes": samples.iter().map(|sample| sample.resident).max(),
        "resident_slope_bytes_per_hour": slope(&samples),
        "retention_seconds": RETENTION_SECONDS,
        "machine": machine::facts(0),
    }));
}

/// Writes figures and page.
fn report(figures: &Value) {
    let folder = std::env::var_os("SOAK_OUT").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks"));
    std::fs::write(folder.join("soak.json"), serde_json::to_string_pretty(figures).unwrap() + "\n").unwrap();
    std::fs::write(folder.join("soak.md"), page(figures)).unwrap();
    eprintln!("{figures:#}");
}

fn page(figures: &Value) -> String {
    let whole = |key: &str| figures[key].as_u64().unwrap_or_default();
    let number = |pointer: &str| figures.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let ms = |pointer: &str| format!("{:.1} ms", number(pointer) * 1e3);
    let row = |what: &str, from: &str, show: &dyn Fn(&str) -> String| {
        let cells = ["p50", "p99", "p999"].map(|share| show(&format!("/{from}/{share}_seconds")));
        format!("| {what} | {} | {} |\n", cells.join(" | "), show(&format!("/{from}/max_seconds")))
    };
    let seconds = |pointer: &str| format!("{:.2} s", number(pointer));
    let (calm, machine) =
        (figures["staleness_calm_for_seconds"].as_f64().unwrap_or_default(), &figures["machine"]);
    format!(
        "# An hour under load, with restarts and kills\n\n\
         <!-- Made by `make soak`: change tests/it/soak.rs, not this. -->\n\n\
         {} minutes at {} events per second from Apache Kafka ({} partitions), learning, and serving {} requests a\n\
         second. The broker was restarted {} times and the daemon killed {} times; the graph keeps {} s of events.\n\
         {}, {} cores, {:.1} GiB of memory; broker, producer and clients ran on the same machine.\n\n\
         | events | |\n|---|--:|\n\
         | acknowledged by Kafka | {} |\n| in the log | {} |\n| different ones in the log | {} |\n\
         | learned: node memory and graph reflect them | {} |\n\
         | in the last life of the daemon: trained on | {} |\n\
         | in the last life of the daemon: too late for a gradient step | {} |\n\n\
         | | p50 | p99 | p99.9 | longest |\n|---|--:|--:|--:|--:|\n{}{}{}\n\
         Staleness is the number of acknowledged events that responses do not reflect, over the rate, sampled once a\n\
         second. It stays near `learner.lag_ms_max`, here one second: later events got no gradient step. From a kill\n\
         to ready: {}. Resident memory: at most {:.0} MiB; in the second half of the\n\
         daemon's longest life it grew by {:.1} MiB per hour. All figures are in [soak.json](soak.json).\n",
        figures["minutes"],
        whole("events_per_second"),
        PARTITIONS,
        REQUEST_RATES.iter().sum::<u64>(),
        whole("broker_restarts"),
        whole("kills"),
        whole("retention_seconds"),
        machine["cpu"].as_str().unwrap_or("an unknown CPU"),
        machine["cores"],
        machine["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 30),
        whole("events_sent"),
        whole("events_in_log"),
        whole("events_distinct"),
        whole("events_applied"),
        whole("events_trained_in_last_life"),
        whole("events_skipped_in_last_life"),
        row("response", "reads", &ms),
        row("staleness", "staleness", &seconds),
        row(
            &format!("staleness, {calm:.0} s and more after a restart or kill"),
            "staleness_when_calm",
            &seconds
        ),
        figures["kill_to_ready_seconds"]
            .as_array()
            .map(|all| all
                .iter()
                .map(|s| format!("{:.1} s", s.as_f64().unwrap_or_default()))
                .collect::<Vec<_>>()
                .join(", "))
            .unwrap_or_default(),
        number("/resident_max_bytes") / f64::from(1 << 20),
        number("/resident_slope_bytes_per_hour") / f64::from(1 << 20),
    )
}

#[test]
fn the_page_is_made_of_its_figures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks");
    let figures = std::fs::read_to_string(folder.join("soak.json")).unwrap();
    let made = page(&serde_json::from_str(&figures).unwrap());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(folder.join("soak.md"), &made).unwrap();
    }
    assert_eq!(std::fs::read_to_string(folder.join("soak.md")).unwrap(), made, "run this with UPDATE=1");
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
