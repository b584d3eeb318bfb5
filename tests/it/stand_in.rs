//! The path to NVIDIA's driver without a GPU: a stand-in driver (`gpu/driver.cpp`) is built, and this program runs
//! again with it in place of libcuda. So opening a device, loading kernels, streams, events, pinned memory, graphs and
//! their updates are run as on a GPU, where nothing happens before somebody waits. Needs NVRTC, as kernels are
//! compiled.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use evergraph::device::Device;
use evergraph::device::cuda::{Cuda, CudaError, CudaOptions, CudaWork};
use evergraph::model::TgnOptions;
use evergraph::sampler::{DeviceSamplerOptions, SampleCounts};
use evergraph::train::{Negatives, PreparedBatch, StepMode, Trainer, TrainerOptions, World};
use serde_json::Value;

use crate::gpu::ahead::prepared;
use crate::kernels_compile::nvrtc;
use crate::process::{Process, Start};
use crate::skip::skipped;
use crate::tgn_stream::{BATCH, Sight, Stream, options};

/// Where the kernels are kept from run to run.
const KERNELS: &str = "EVERGRAPH_KERNEL_DIR";

/// The folder of the library, built when it is first asked for.
pub fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/stand-in-driver.sh");
        let built = Command::new(script).arg(&folder).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        folder
    })
}

/// Where libraries are found, the stand-in driver first.
pub fn libraries() -> OsString {
    let mut folders = vec![library().to_path_buf()];
    folders.extend(std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
    std::env::join_paths(folders).unwrap()
}

/// Where kernels that were compiled are kept.
pub fn kernel_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in-kernels")
}

/// This program again, with the stand-in driver, for the tests that `arguments` name.
fn again(arguments: &[&str], settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // Tests share one context, which a capture keeps others from waiting for.
    command.args(arguments).args(["--test-threads=1", "--nocapture"]).envs(settings.iter().copied());
    command.env("LD_LIBRARY_PATH", libraries()).env("EVERGRAPH_GPU", "small");
    command.env(KERNELS, kernel_dir());
    command
}

fn message(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs tests again, all of which have to pass; how many they were.
#[track_caller]
fn pass(arguments: &[&str], settings: &[(&str, &str)]) -> usize {
    let started = Instant::now();
    let output = again(arguments, settings).output().unwrap();
    let message = message(&output);
    assert!(output.status.success(), "{}: {message}", output.status);
    let result = message.lines().find_map(|line| line.strip_prefix("test result: ok. ")).unwrap();
    println!("stand-in driver, {arguments:?} {settings:?}: {result} {:.1?}", started.elapsed());
    result.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn what_runs_on_a_device_passes_through_the_drivers_path() {
    if !nvrtc() {
        return;
    }
    // Rows are read so by the tests of samples, too, in fewer runs.
    assert!(pass(&["gpu::", "--skip", "rows_of_edges_"], &[]) > 50);
}

#[test]
fn a_device_without_pools_of_memory_and_one_that_is_done_at_once_do_the_same() {
    if !nvrtc() {
        return;
    }
    let parts = ["gpu::capture::", "gpu::rows::", "gpu::staging::", "gpu::train::memory_stays"];
    assert!(pass(&parts, &[("EVERGRAPH_STANDIN_POOLS", "0")]) > 10);
    assert!(pass(&parts, &[("EVERGRAPH_STANDIN_MODE", "eager")]) > 10);
}

#[test]
fn a_wait_that_is_missing_shows_and_so_do_other_faults() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gpu/driver_checks.cpp");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in-checks");
    let built = Command::new("g++")
        .args(["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .arg(library().join("libcuda.so.1"))
        .output()
        .expect("g++ compiles the kernels; scripts/setup.sh installs it");
    assert!(built.status.success(), "{}", message(&built));
    let ran = Command::new(program).env("LD_LIBRARY_PATH", library()).output().unwrap();
    assert!(ran.status.success(), "{}: {}", ran.status, message(&ran));
}

/// Whether this notices waits that are missing: without those of the host, and without those among streams, tests fail
/// that pass with them.
#[test]
fn tests_of_a_device_fail_without_waits() {
    if !nvrtc() {
        return;
    }
    let tests = [
        ("EVERGRAPH_STANDIN_WAITS", "gpu::staging::downloads_are_read_after_a_wait"),
        (
            "EVERGRAPH_STANDIN_WAITS",
            "gpu::publish::rows_of_a_batch_are_the_same_whenever_they_are_waited_for",
        ),
        ("EVERGRAPH_STANDIN_WAITS", "gpu::train::memory_stays_on_the_gpu_from_step_to_step"),
        ("EVERGRAPH_STANDIN_WAITS", "gpu::sampling::graphmixer_learns_from_samples_and_rows_of_a_gpu"),
        ("EVERGRAPH_STANDIN_ORDERS", "gpu::rows::what_goes_to_another_stream"),
    ];
    for (setting, test) in tests {
        assert_eq!(pass(&[test], &[]), 1, "{test}");
        let output = again(&[test], &[(setting, "0")]).output().unwrap();
        assert!(!output.status.success(), "{test} passes with {setting}=0: {}", message(&output));
    }
}

#[test]
fn a_driver_that_is_too_old_is_refused_in_words() {
    if !nvrtc() {
        return;
    }
    let output =
        again(&["--exact", "stand_in::opens", "--ignored"], &[("EVERGRAPH_STANDIN_VERSION", "11000")])
            .output()
            .unwrap();
    let message = message(&output);
    assert!(message.contains("the driver knows CUDA 11.0 and 13."), "{message}");
    assert!(message.contains("is needed; update the driver"), "{message}");
}

#[test]
fn a_step_brings_the_graph_of_the_one_before_up_to_date() {
    if nvrtc() {
        pass(&["--exact", "stand_in::trains_and_goes_on_without", "--ignored"], &[]);
    }
}

#[test]
fn a_step_takes_so_many_kernels_and_copies() {
    if nvrtc() {
        pass(&["--exact", "stand_in::counts_what_a_step_asks_for", "--ignored"], &[]);
    }
}

/// Where no kernel runs, each takes its time all the same.
#[test]
fn a_device_keeps_its_pace() {
    if nvrtc() {
        let pace = [("EVERGRAPH_STANDIN_MODE", "paced"), ("EVERGRAPH_STANDIN_KERNEL_NS", "1000000")];
        pass(&["--exact", "stand_in::counts_what_a_step_asks_for", "--ignored"], &pace);
    }
}

/// Counts what steps of TGN of the usual shape ask the device for, once they are all alike.
#[test]
#[ignore = "run by a_step_takes_so_many_kernels_and_copies"]
fn counts_what_a_step_asks_for() {
    /// Of kernels and of copies.
    const MOST: [u64; 2] = [63, 3];
    let Some(cuda) = open() else { return };
    let (cuda, stream) = (cuda.unwrap(), Stream::new(12));
    let model = TgnOptions { edge_feature_dim: 2, ..TgnOptions::default() };
    let device = Device::Cuda(CudaWork::new(cuda.clone()));
    let mut trainer = Trainer::new(TrainerOptions { model: model.into(), ..options() }, &device).unwrap();
    trainer.cache_rows(1 << 16);
    trainer.read_rows_in_place(1 << 20);
    let counts = || {
        let kernels: BTreeMap<&str, u64> = cuda.launches().into_iter().collect();
        (kernels, cuda.bus().copies_to_gpu)
    };
    let pace = std::env::var("EVERGRAPH_STANDIN_KERNEL_NS").ok();
    let pace = pace.map(|ns| Duration::from_nanos(ns.parse().unwrap())).unwrap_or_default();
    let (mut before, mut few, begun) = (counts(), 0, Instant::now());
    for b in 0..12 {
        let (world, positives) = (stream.world(b, Sight::Everything), stream.positives(b));
        let negatives = Negatives { src: positives.src, dst: &stream.against[b * BATCH..(b + 1) * BATCH] };
        trainer.step(&world, &positives, &negatives, StepMode::Train).unwrap();
        let after = counts();
        let kernels = after.0.iter().map(|(name, count)| (*name, count - before.0[name]));
        let kernels: BTreeMap<&str, u64> = kernels.filter(|(_, count)| *count > 0).collect();
        let found = [kernels.values().sum::<u64>(), after.1 - before.1];
        println!("step {b}: {} kernels, {} copies, {kernels:?}", found[0], found[1]);
        few += usize::from(b >= 6 && found[1] <= MOST[1]);
        assert!(b < 6 || found[0] <= MOST[0], "{found:?}, and {MOST:?} are the most");
        before = after;
    }
    cuda.compute().synchronize().unwrap();
    assert!(begun.elapsed() >= pace * before.0.values().sum::<u64>() as u32, "{:?}", begun.elapsed());
    // Where lists are longer than ever, some are copied by themselves.
    assert!(few >= 5, "{few} of 6 steps with {} copies at most", MOST[1]);
}

#[test]
fn a_device_that_is_lost_at_any_time_ends_nothing() {
    if !nvrtc() {
        return;
    }
    for calls in [1, 5, 20, 200, 500, 900, 1100, 1200] {
        let calls: &str = &calls.to_string();
        pass(
            &["--exact", "stand_in::trains_and_goes_on_without", "--ignored"],
            &[("EVERGRAPH_STANDIN_FAIL_AFTER", calls)],
        );
    }
}

#[test]
fn a_wait_waits_whatever_was_refused_before_it() {
    if nvrtc() {
        let test = ["--exact", "gpu::staging::a_wait_behind_a_refusal", "--ignored"];
        pass(&test, &[("EVERGRAPH_STANDIN_KEEPS", "1")]);
    }
}

#[test]
fn a_loop_publishes_what_a_lost_device_did_not_compute() {
    if !nvrtc() {
        return;
    }
    for waits in ["1", "2", "4"] {
        pass(
            &["--exact", "gpu::sampling::a_loop_on_a_device_that_is_lost", "--ignored"],
            &[("EVERGRAPH_STANDIN_FAIL_BLOCKING", waits)],
        );
    }
}

/// The report of a command on the device, with these arguments and as many bytes for the graph.
fn report(folder: &Path, arguments: &[&str], graph_bytes: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_evergraph"))
        .current_dir(folder)
        .args(arguments)
        .args([
            "--events",
            "events.csv",
            "--device",
            "cuda:0",
            "--gpu-graph-bytes",
            graph_bytes,
            "--json",
            "-",
        ])
        .env("LD_LIBRARY_PATH", libraries())
        .env(KERNELS, kernel_dir())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", message(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn commands_learn_the_same_from_samples_of_the_device() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..900).map(|i| format!("u{},i{},{i}\n", i % 40, i * i % 30)).collect();
    std::fs::write(folder.path().join("events.csv"), format!("src,dst,ts\n{rows}")).unwrap();
    let train = ["bench", "train", "--embedding-dimension", "16", "--row-dimension", "4", "--verify"];
    let [here, there] = ["0", "16777216"].map(|bytes| report(folder.path(), &train, bytes));
    assert_eq!((&there["loss"], &there["verified"]), (&here["loss"], &here["verified"]));
    let samples =
        |report: &Value| ["gpu", "cpu"].map(|place| report["gpu_use"][format!("samples_on_{place}")].clone());
    assert_eq!((samples(&here), samples(&there)), ([0, 0].map(Value::from), [5, 0].map(Value::from)));
    for report in [&here, &there] {
        let rows = ["gpu", "cpu"].map(|place| report["gpu_use"][format!("edge_rows_on_{place}")].as_u64());
        assert!(rows[0] > Some(1_000) && rows[1] == Some(0), "{report:#}");
    }
    let bus =
        |report: &Value, kind| report["gpu_use"][format!("bus_bytes_{kind}_per_event")].as_f64().unwrap();
    assert!(bus(&there, "to_host") > bus(&here, "to_host") && bus(&here, "to_gpu") > 0.0, "{there:#}");
    assert!(there["cpu_seconds_per_million_events"].as_f64() > Some(0.0));
    assert!(there["gpu_joules_per_million_events"].as_f64() > Some(0.0), "{there:#}");
    // Few events, and a small model: on the simulated GPU a thread is a few instructions of a program.
    let few: String = rows.lines().take(300).map(|row| format!("{row}\n")).collect();
    std::fs::write(folder.path().join("events.csv"), format!("src,dst,ts\n{few}")).unwrap();
    for protocol in ["prequential", "dyglib"] {
        let eval =
            ["eval", "--model", "tgn", "--protocol", protocol, "--epochs", "1", "--embedding-dimension", "8"];
        let [here, there] = ["0", "16777216"].map(|bytes| report(folder.path(), &eval, bytes));
        let precision = |report: &Value| {
            ["mean_average_precision", "test_average_precision"].map(|name| report.get(name).cloned())
        };
        assert_eq!(precision(&there), precision(&here), "{protocol}");
        assert!(precision(&here).iter().flatten().count() > 0, "{here:#}");
    }
}

/// Pushes events from `first` on, every tenth of them late, and a deletion; waits until all is learned.
fn push(daemon: &Process, first: u64) -> Value {
    let mut lines: Vec<String> = (first..first + 500)
        .map(|i| {
            let time = if i % 10 == 0 { i.saturating_sub(90) } else { i };
            format!(r#"{{"src":"u{}","dst":"i{}","ts":{time}}}"#, i % 40, i * i % 30)
        })
        .collect();
    lines.insert(300, format!(r#"{{"op":"delete","node":"u{}"}}"#, first % 40));
    assert!(daemon.push_or_dies(&lines.join("\n"), 501));
    let position = (first / 500 + 1) * 501;
    let limit = Duration::from_secs(300);
    daemon.wait_until_within(limit, "all is learned", |status| {
        status["learner"]["applied_position"].as_u64() >= Some(position)
    })
}

/// A daemon's metric with these labels.
pub fn metric(daemon: &Process, series: &str) -> Option<f64> {
    let text = daemon.metrics();
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn a_daemon_samples_on_the_device_until_that_is_lost() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let libraries = libraries().into_string().unwrap();
    let start = || {
        let daemon = Start::in_dir(folder.path()).set("device.use=cuda:0").set("graph.retention=400");
        let daemon = daemon.set(&format!("device.kernel_dir={}", kernel_dir().display()));
        daemon.set("learner.replay.ratio=0.5").env("LD_LIBRARY_PATH", &libraries)
    };
    let daemon = start().ready();
    let status = push(&daemon, 0);
    assert!(status["learner"]["bytes"]["graph_copy"].as_u64() > Some(0), "{status:#}");
    push(&daemon, 500);
    let samples = |daemon: &Process, place| {
        metric(daemon, &format!("evergraph_device_samples_total{{place=\"{place}\"}}"))
    };
    assert!(samples(&daemon, "gpu") >= Some(5.0) && samples(&daemon, "cpu") == Some(0.0));
    assert!(metric(&daemon, "evergraph_device_bus_bytes_total{kind=\"to_host\"}") > Some(0.0));
    let handed_over = "evergraph_train_step_duration_seconds_count{phase=\"hand_over\"}";
    assert!(metric(&daemon, handed_over) > Some(0.0));
    assert!(daemon.terminate().success());

    let daemon = start().env("EVERGRAPH_STANDIN_FAIL_AFTER", "900").ready();
    push(&daemon, 1_000);
    assert_eq!(metric(&daemon, "evergraph_device_degraded"), Some(1.0));
    assert!(daemon.terminate().success());
}

/// Events of a stream from `first` on, with features, every tenth of them late; after them a deletion.
fn events(first: u64, count: u64) -> String {
    let mut lines: Vec<String> = (first..first + count)
        .map(|i| {
            let (time, source) = (if i % 10 == 0 { i.saturating_sub(90) } else { i }, i * 37 % 400);
            // Most sources keep to a few destinations.
            let destination = if i % 8 == 0 { i * i % 300 } else { (source * 7 + i % 3) % 300 };
            let features = [i % 5, i % 7, source % 4].map(|value| value as f32 / 4.0);
            format!(r#"{{"src":"u{source}","dst":"i{destination}","ts":{time},"features":{features:?}}}"#)
        })
        .collect();
    lines.push(format!(r#"{{"op":"delete","node":"u{}"}}"#, first / count * 11 % 400));
    lines.join("\n")
}

/// Streams events, `batches` parts of `events` each, through daemons that sample, gather, cache and train on the device,
/// with retention, deletions, late events and checkpoints: the first ends in order after two thirds of them, the second
/// goes on from its checkpoint and loses the device after so many calls.
fn a_long_run(parts: u64, count: u64, batch_events: u64, lost_after: u64) {
    let folder = tempfile::tempdir().unwrap();
    let libraries = libraries().into_string().unwrap();
    let retention = parts * count / 5;
    let start = || {
        let settings = [
            "device.use=cuda:0".to_owned(),
            "device.row_cache_bytes=65536".to_owned(),
            format!("device.kernel_dir={}", kernel_dir().display()),
            format!("graph.retention={retention}"),
            "graph.page_entries_max=64".to_owned(),
            format!("learner.batch_events={batch_events}"),
            "learner.lag_events_max=10000000".to_owned(),
            "checkpoint.interval_seconds=1".to_owned(),
            "stream.edge_feature_dimension=3".to_owned(),
            "model.memory_dimension=16".to_owned(),
            "model.time_dimension=8".to_owned(),
            "model.embedding_dimension=16".to_owned(),
            "model.fanout=4".to_owned(),
        ];
        let start = settings.iter().fold(Start::in_dir(folder.path()), |start, setting| start.set(setting));
        start.env("LD_LIBRARY_PATH", &libraries)
    };
    let through = |daemon: &Process, parts: std::ops::Range<u64>| {
        for part in parts.clone() {
            assert!(daemon.push_or_dies(&events(part * count, count), count + 1), "part {part}");
        }
        daemon.wait_until_within(Duration::from_secs(3_000), "all is learned", |status| {
            status["learner"]["applied_position"].as_u64() >= Some(parts.end * (count + 1))
        })
    };
    let value = |daemon: &Process, name: &str| metric(daemon, &format!("evergraph_{name}")).unwrap_or(-1.0);
    let on_device = |daemon: &Process| {
        for name in ["device_samples_total", "device_edge_rows_total"] {
            let [gpu, cpu] = ["gpu", "cpu"].map(|at| value(daemon, &format!("{name}{{place=\"{at}\"}}")));
            println!("{name}: {gpu} on the device, {cpu} on the host");
            assert!(gpu > 0.0 && cpu == 0.0, "{name}: {gpu}, {cpu}");
        }
    };

    let begun = parts * 2 / 3;
    let daemon = start().ready();
    let status = through(&daemon, 0..begun);
    on_device(&daemon);
    assert!(status["learner"]["bytes"]["edge_rows"].as_u64() > Some(0), "{status:#}");
    assert!(value(&daemon, "graph_expired_edges_total") > 0.0);
    assert!(value(&daemon, "checkpoint_duration_seconds_count") > 0.0);
    assert!(value(&daemon, "device_row_cache_rows_total{result=\"restored\"}") > 0.0);
    assert!(daemon.terminate().success());

    let daemon = start().env("EVERGRAPH_STANDIN_FAIL_AFTER", &lost_after.to_string()).ready();
    let status = through(&daemon, begun..parts);
    assert_eq!(value(&daemon, "device_degraded"), 1.0, "the device was to be lost");
    assert!(value(&daemon, "device_edge_rows_total{place=\"gpu\"}") > 0.0, "it was lost too soon");
    let precision = status["learner"]["average_precision"].as_f64();
    println!("average precision {precision:?} at the end");
    assert!(precision > Some(0.6), "{status:#}");
    assert!(daemon.terminate().success());
}

/// `DEVICE_EVENTS` is how many events are streamed; without it nothing runs.
#[test]
#[ignore = "takes minutes; `make device-run` runs it"]
fn a_stream_with_all_that_streams_have_goes_through_the_device() {
    let events = std::env::var("DEVICE_EVENTS").ok().map(|events| events.parse::<u64>().unwrap());
    let Some(events) = events.filter(|_| nvrtc()) else {
        return eprintln!("DEVICE_EVENTS is not set; `make device-run` sets it");
    };
    let parts = (events / 600).clamp(3, 40);
    let batch = if events > 50_000 { 1_000 } else { 200 };
    a_long_run(parts, events / parts, batch, events / 20 + 2_000);
}

/// The device, and whether it is the stand-in's: a GPU is not to be used by tests that name none.
fn open() -> Option<Result<std::sync::Arc<Cuda>, CudaError>> {
    if !std::env::var_os("LD_LIBRARY_PATH").is_some_and(|path| path.to_string_lossy().contains("stand-in")) {
        skipped("there is no stand-in driver on the path of libraries");
        return None;
    }
    let kernel_dir = std::env::var_os(KERNELS).map(Into::into);
    Some(Cuda::open(0, &CudaOptions { memory_bytes_max: 1 << 30, kernel_dir, ..CudaOptions::default() }))
}

#[test]
#[ignore = "run by a_driver_that_is_too_old_is_refused_in_words"]
fn opens() {
    match open() {
        Some(Ok(cuda)) => println!("opened {}, {}", cuda.describe(), cuda.details()),
        Some(Err(error)) => println!("refused: {error}"),
        None => {}
    }
}

/// Trains on the device while it lasts, then on the CPU.
#[test]
#[ignore = "run by a_device_that_is_lost_at_any_time_ends_nothing"]
fn trains_and_goes_on_without() {
    let cuda = match open() {
        Some(Ok(cuda)) => cuda,
        Some(Err(error)) => {
            assert!(error.is_lost(), "{error}");
            return println!("lost while it was opened: {error}");
        }
        None => return,
    };
    let work = CudaWork::new(cuda);
    let stream = Stream::new(6);
    let mut trainer = match Trainer::new(options(), &Device::Cuda(work.clone())) {
        Ok(trainer) => trainer,
        Err(error) => return println!("lost while the trainer was made: {error}"),
    };
    trainer.cache_rows(1 << 12);
    trainer.read_rows_in_place(1 << 20);
    trainer.sample_on_device(DeviceSamplerOptions { gpu_bytes_max: 1 << 24, host_bytes_max: 0 });
    let sampler = trainer.device_sampler().unwrap();
    sampler.open(&stream.graph);
    let mut lost = false;
    let world = World { sampler: Some(&sampler), ..stream.world(0, Sight::Everything) };
    let mut batch = prepared(&trainer, (&stream, &world), 0, None);
    for b in 0..6 {
        let prepare = |trainer: &Trainer, b, before: Option<&PreparedBatch>| {
            prepared(trainer, (&stream, &world), b, before)
        };
        let next = (b < 5).then(|| prepare(&trainer, b + 1, Some(&batch)));
        if let Err(error) = trainer.step_and_begin(&batch, next.as_ref()) {
            println!("step {b}: {error}, {:?}", work.recorded());
            assert!(error.to_string().contains("the GPU is lost"), "{error}");
            lost = true;
            trainer.leave_gpu().unwrap();
            sampler.close();
            let again = prepare(&trainer, b, None);
            trainer.step_prepared(&again).unwrap();
            batch = prepare(&trainer, 5.min(b + 1), None);
        } else if let Some(next) = next {
            batch = next;
        }
    }
    let recorded = work.recorded();
    println!("{recorded:?}");
    assert_eq!(lost, std::env::var_os("EVERGRAPH_STANDIN_FAIL_AFTER").is_some());
    if !lost {
        let all = recorded.launched == 6 && recorded.updated + recorded.built == 6;
        assert!(all && recorded.updated > 0 && recorded.refused == 0, "{recorded:?}");
        assert!(recorded.ahead >= 4, "{recorded:?}");
        assert_eq!(sampler.counts(), SampleCounts { on_device: 6, on_cpu: 0 });
    }
}
