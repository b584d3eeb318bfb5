//! What a run measured, as a page for people and as figures.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{PARTITIONS, REQUEST_RATES};

/// Writes figures and page.
pub fn report(figures: &Value) {
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
    let mib = |pointer: &str| number(pointer) / f64::from(1 << 20);
    // Runs of before the log was cut have no figures of it.
    let log = figures["log_bytes_max"].as_u64().map_or_else(String::new, |_| {
        format!(
            "The log, cut behind snapshots to\n{:.0} MiB, had at most {:.0} MiB, and the data directory with snapshots and \
             checkpoints {:.0} MiB.\n",
            mib("/log_retention_bytes"),
            mib("/log_bytes_max"),
            mib("/data_bytes_max")
        )
    });
    let row = |what: &str, from: &str, show: &dyn Fn(&str) -> String| {
        let cells = ["p50", "p99", "p999"].map(|share| show(&format!("/{from}/{share}_seconds")));
        format!("| {what} | {} | {} |\n", cells.join(" | "), show(&format!("/{from}/max_seconds")))
    };
    let seconds = |pointer: &str| format!("{:.2} s", number(pointer));
    let (calm, machine) =
        (figures["staleness_calm_for_seconds"].as_f64().unwrap_or_default(), &figures["machine"]);
    format!(
        "# Under load, with restarts and kills\n\n\
         <!-- Made by `make soak`: change tests/it/soak, not this. -->\n\n\
         {} minutes at {} events per second from Apache Kafka ({} partitions), learning, and serving {} requests a\n\
         second. The broker was restarted {} times and the daemon killed {} times; the graph keeps {} s of events.\n\
         Events came in {} transactions ({} of them aborted), {} with a time far in the future; the topic was deleted and\n\
         created again {} times. Of {} clients that send a body a byte a second, and as many that take a response so,\n\
         the daemon cut {} and {} connections.\n\
         {}, {} cores, {:.1} GiB of memory; broker, producer and clients ran on the same machine.\n\n\
         | events | |\n|---|--:|\n\
         | committed in Kafka | {} |\n| in the log | {} |\n| different ones in the log | {} |\n\
         | learned: node memory and graph reflect them | {} |\n\
         | in the last life of the daemon: trained on | {} |\n\
         | in the last life of the daemon: too late for a gradient step | {} |\n\n\
         | | p50 | p99 | p99.9 | longest |\n|---|--:|--:|--:|--:|\n{}{}{}\n\
         Staleness is the number of committed events that responses do not reflect, over the rate, sampled once a\n\
         second. In overload it stays near `learner.lag_target_ms`, and as many events get a gradient step as that allows. From a kill\n\
         to ready: {}. {}Resident memory: at most {:.0} MiB; in the second half of the\n\
         daemon's longest life it grew by {:.1} MiB per hour. All figures are in [soak.json](soak.json).\n",
        figures["minutes"],
        whole("events_per_second"),
        PARTITIONS,
        REQUEST_RATES.iter().sum::<u64>(),
        whole("broker_restarts"),
        whole("kills"),
        whole("retention_seconds"),
        whole("transactions"),
        whole("transactions_aborted"),
        whole("events_with_wild_time"),
        u32::from(figures["new_topic_reported"].is_string()),
        whole("slow_clients_of_each_kind"),
        whole("slow_writers_cut"),
        whole("slow_readers_cut"),
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
        log,
        mib("/resident_max_bytes"),
        mib("/resident_slope_bytes_per_hour"),
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
