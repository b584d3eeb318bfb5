//! The screen of `evergraph top`, made of its figures.

use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::demo::{mebibytes, milliseconds};

/// Longest detail of a source, in characters, so that a line stays a line.
const DETAIL_MAX: usize = 60;

/// The figures as text.
pub(super) fn draw(url: &str, figures: &Value) -> String {
    let mut out = format!(
        "evergraph {}  {url}  up {}  {}\n\n",
        figures["version"].as_str().unwrap_or("?"),
        age(figures["uptime_seconds"].as_f64()),
        health(&figures["health"]),
    );
    let rows = [
        ("events in", events(figures)),
        ("learned", learned(figures)),
        ("quality", quality(figures)),
        ("serves", serves(figures)),
        ("freshness", freshness(figures)),
        ("requests", requests(&figures["requests"])),
        ("graph", graph(figures)),
        ("memory", memory(figures)),
    ];
    for (name, text) in rows {
        let _ = writeln!(out, "{name:<10} {text}");
    }
    out + &sources(&figures["sources"])
}

fn events(figures: &Value) -> String {
    let whole = |key: &str| grouped(figures[key].as_u64());
    let (accepted, duplicate) = (whole("accepted_events"), whole("duplicate_events"));
    let (waiting, most) = (whole("queue_batches"), whole("queue_batches_max"));
    let rate = rate(&figures["accepted_per_second"]);
    format!("{rate} /s   {accepted} accepted, {duplicate} duplicate   queue {waiting} of {most}")
}

fn learned(figures: &Value) -> String {
    let whole = |key: &str| grouped(figures[key].as_u64());
    let (all, behind, skipped) =
        (whole("learned_events"), whole("learner_lag_events"), whole("skipped_events"));
    format!("{} /s   {all} total, lag {behind}, {skipped} skipped", rate(&figures["learned_per_second"]))
}

fn quality(figures: &Value) -> String {
    let score =
        |key: &str| figures[key].as_f64().map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let gain = match (figures["average_precision"].as_f64(), figures["edgebank_average_precision"].as_f64()) {
        (Some(model), Some(bank)) => format!("({:+.3})", model - bank),
        _ => String::new(),
    };
    let (model, bank) = (score("average_precision"), score("edgebank_average_precision"));
    let (auc, mrr, loss) = (score("auc"), score("mrr"), score("loss"));
    format!("AP {model}   EdgeBank {bank} {gain}   AUC {auc}   MRR {mrr}   loss {loss}")
}

fn serves(figures: &Value) -> String {
    let (model, version) = (figures["model"].as_str().unwrap_or("?"), figures["model_version"].as_u64());
    let unpromoted = match figures["score_source"].as_str() {
        Some("baseline") => " (scores: baseline)",
        Some("candidate") => " (candidate)",
        _ => "",
    };
    format!("{model} version {}{unpromoted}{}", grouped(version), gate(&figures["gate"]))
}

fn freshness(figures: &Value) -> String {
    let fresh = |key: &str| milliseconds(figures[key].as_f64());
    format!(
        "p50 {}   p99 {}",
        fresh("end_to_end_freshness_p50_seconds"),
        fresh("end_to_end_freshness_p99_seconds")
    )
}

fn graph(figures: &Value) -> String {
    let (nodes, edges) = (grouped(figures["nodes"].as_u64()), grouped(figures["edges"].as_u64()));
    format!("{nodes} nodes   {edges} edges   log {}", bytes(&figures["log_bytes"]))
}

fn memory(figures: &Value) -> String {
    let of = |key: &str| bytes(&figures[key]);
    let (all, graph, learner) = (of("resident_bytes"), of("graph_bytes"), of("learner_bytes"));
    format!("{all} resident   graph {graph}   learner {learner}")
}

fn sources(sources: &Value) -> String {
    let mut out =
        format!("\n{:<32} {:<10} {:>10} {:>10} {:>10}\n", "source", "state", "events/s", "lag", "rejected");
    for source in sources.as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "{:<32} {:<10} {:>10} {:>10} {:>10}",
            source["name"].as_str().unwrap_or("?"),
            source["state"].as_str().unwrap_or("?"),
            rate(&source["received_per_second"]),
            grouped(source["lag_records"].as_u64()),
            grouped(source["rejected_events"].as_u64()),
        );
        let detail =
            source["detail"].as_str().filter(|detail| !detail.is_empty() && source["state"] != "ended");
        if let Some(detail) = detail {
            let short: String = detail.chars().take(DETAIL_MAX).collect();
            let more = if short.len() < detail.len() { "…" } else { "" };
            let _ = writeln!(out, "  {short}{more}");
        }
    }
    out
}

fn health(health: &Value) -> String {
    let Some(status) = health["status"].as_str() else { return String::new() };
    let checks = health["not_ok"].as_array().into_iter().flatten();
    let named: Vec<&str> = checks.filter_map(|check| check["check"].as_str()).collect();
    if named.is_empty() { status.to_owned() } else { format!("{status}: {}", named.join(", ")) }
}

fn gate(gate: &Value) -> String {
    let count = |key: &str| grouped(gate[key].as_u64());
    if gate.is_null() {
        return String::new();
    }
    format!(
        "   gate: {} promoted, {} held, {} rolled back",
        count("promoted"),
        count("held"),
        count("rolled_back")
    )
}

fn requests(requests: &Value) -> String {
    if requests.is_null() {
        return "not known here: see --operations-url".to_owned();
    }
    let latency = |key: &str| milliseconds(requests[key].as_f64());
    format!(
        "{} /s   {} failed /s   p50 {}, p99 {}",
        rate(&requests["requests_per_second"]),
        rate(&requests["failed_per_second"]),
        latency("latency_p50_seconds"),
        latency("latency_p99_seconds"),
    )
}

fn rate(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), mebibytes)
}

/// A number with commas between thousands.
fn grouped(value: Option<u64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a time since a start
fn age(seconds: Option<f64>) -> String {
    let seconds = seconds.unwrap_or(0.0).max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// The screen in the place of the last one: each line to its end, and everything below it.
pub(super) fn over_the_last(text: &str) -> String {
    let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
    format!("\x1b[H{}\x1b[J", lines.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_screen_shows_what_is_known_and_a_dash_for_what_is_not() {
        let figures = json!({
            "version": "0.1.0", "uptime_seconds": 3_725.0, "accepted_events": 1_234_567, "accepted_per_second": 12.34,
            "average_precision": 0.9, "edgebank_average_precision": 0.75, "model": "tgn", "model_version": 64,
            "score_source": "baseline",
            "gate": { "promoted": 1_000, "held": 2, "rolled_back": 0 }, "requests": null,
            "health": { "status": "degraded", "not_ok": [{ "check": "sources" }] },
            "sources": [{ "name": "http", "state": "paused", "detail": "d".repeat(100), "lag_records": null }],
        });
        let text = draw("http://here", &figures);
        for part in [
            "evergraph 0.1.0  http://here  up 1 h 2 min  degraded: sources",
            "12.3 /s   1,234,567 accepted",
            "AP 0.900   EdgeBank 0.750 (+0.150)   AUC -",
            "tgn version 64 (scores: baseline)   gate: 1,000 promoted",
            "--operations-url",
            &format!("  {}…", "d".repeat(DETAIL_MAX)),
        ] {
            assert!(text.contains(part), "{part} not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let drawn = over_the_last("a\nb\n");
        assert_eq!(drawn, "\x1b[Ha\x1b[K\nb\x1b[K\x1b[J");
        assert_eq!(
            [0, 999, 1_000, 12_345_678].map(|n| grouped(Some(n))),
            ["0", "999", "1,000", "12,345,678"]
        );
    }
}
