//! The figures of two samples of a daemon: levels from the later one, rates between both.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use crate::cli::scrape::values;

/// Routes of queries.
const QUERY_ROUTES: [&str; 8] = [
    "/v1/anomalies",
    "/v1/embeddings",
    "/v1/links/score",
    "/v1/links/top",
    "/v1/map",
    "/v1/nodes/similar",
    "/v1/nodes/{key}",
    "/v1/nodes/{key}/neighbors",
];

/// The state at one moment.
pub(super) struct Sample {
    pub at: Instant,
    /// The status document.
    pub status: Value,
    /// The readiness report, if available.
    pub health: Option<Value>,
    /// Counters of requests, if they could be had.
    pub requests: Option<Requests>,
}

/// Counters of queries since the daemon's start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Requests {
    pub total: f64,
    /// Those that failed with a status of 500 and above.
    pub failed: f64,
    /// Cumulative histogram of latency: counts by the upper bound in seconds, as Prometheus writes it.
    latency: BTreeMap<String, f64>,
}

impl Requests {
    /// Reads them out of a scrape.
    pub fn of(scrape: &str) -> Self {
        let mut found = Self::default();
        for exported in values(scrape) {
            if !exported.label("route").is_some_and(|route| QUERY_ROUTES.contains(&route)) {
                continue;
            }
            let value = exported.value;
            match exported.name {
                "evergraph_http_requests_total" => {
                    found.total += value;
                    if exported.label("code").is_some_and(|code| code.starts_with('5')) {
                        found.failed += value;
                    }
                }
                "evergraph_http_request_duration_seconds_bucket" => {
                    *found.latency.entry(exported.label("le").unwrap_or_default().to_owned()).or_default() +=
                        value;
                }
                _ => {}
            }
        }
        found
    }

    /// The `share` quantile of latency since `before` in seconds, as a bound of the histogram; `None` without requests,
    /// and beyond the last bound.
    fn quantile(&self, before: &Self, share: f64) -> Option<f64> {
        let bounds = self.latency.iter().filter_map(|(bound, count)| {
            let earlier = before.latency.get(bound).copied().unwrap_or(0.0);
            Some((bound.parse::<f64>().ok()?, count - earlier))
        });
        let mut bounds: Vec<(f64, f64)> = bounds.collect();
        bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = bounds.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
        let reached = bounds.into_iter().find(|(_, count)| *count >= share * all)?;
        Some(reached.0).filter(|bound| bound.is_finite())
    }
}

/// The figures of one screen. Keys contain their units; unknown values are null.
pub(super) fn figures(before: &Sample, after: &Sample) -> Value {
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-3);
    // A daemon that restarted in between counts from 0.
    let rate = |pointer: &str| {
        let of = |sample: &Sample| sample.status.pointer(pointer).and_then(Value::as_f64);
        of(after).zip(of(before)).map(|(now, then)| (now - then).max(0.0) / seconds)
    };
    let status = &after.status;
    let (ingest, learner, graph) = (&status["ingest"], &status["learner"], &status["graph"]);
    json!({
        "version": status["version"],
        "uptime_seconds": status["uptime_seconds"],
        "interval_seconds": seconds,
        "health": after.health.as_ref().map(health),
        "accepted_per_second": rate("/ingest/accepted_events"),
        "accepted_events": ingest["accepted_events"],
        "duplicate_events": ingest["duplicate_events"],
        "queue_batches": ingest["queue_batches"],
        "queue_batches_max": ingest["queue_batches_max"],
        "learned_per_second": rate("/learner/applied_position"),
        "learned_events": learner["applied_position"],
        "learner_lag_events": learner["lag_events"],
        "skipped_events": learner["skipped_events"],
        "model": learner["model"],
        "model_version": learner["model_version"],
        "score_source": learner["score_source"],
        "gate": learner["gate"],
        "average_precision": learner["average_precision"],
        "edgebank_average_precision": learner["edgebank_average_precision"],
        "auc": learner["auc"],
        "mrr": learner["mrr"],
        "loss": learner["loss"],
        "end_to_end_freshness_p50_seconds": learner["end_to_end_freshness_p50_seconds"],
        "end_to_end_freshness_p99_seconds": learner["end_to_end_freshness_p99_seconds"],
        "requests": requests(before, after, seconds),
        "nodes": graph["nodes"],
        "edges": graph["edges"],
        "resident_bytes": status["resident_bytes"],
        "graph_bytes": sum(&graph["bytes"]),
        "learner_bytes": sum(&learner["bytes"]),
        "log_bytes": status["log"]["bytes"],
        "log_state": status["log"]["state"],
        "sources": sources(before, after, seconds),
    })
}

fn health(report: &Value) -> Value {
    let checks = report["checks"].as_object().into_iter().flatten();
    let reported = checks
        .filter(|(_, check)| check["state"] != "ok")
        .map(|(name, check)| json!({ "check": name, "state": check["state"], "detail": check["detail"] }));
    json!({ "status": report["status"], "not_ok": reported.collect::<Vec<_>>() })
}

fn requests(before: &Sample, after: &Sample, seconds: f64) -> Value {
    let (Some(then), Some(now)) = (&before.requests, &after.requests) else { return Value::Null };
    json!({
        "requests_per_second": (now.total - then.total).max(0.0) / seconds,
        "failed_per_second": (now.failed - then.failed).max(0.0) / seconds,
        "latency_p50_seconds": now.quantile(then, 0.5),
        "latency_p99_seconds": now.quantile(then, 0.99),
    })
}

fn sources(before: &Sample, after: &Sample, seconds: f64) -> Vec<Value> {
    let of = |sample: &Sample| sample.status["ingest"]["sources"].as_array().cloned().unwrap_or_default();
    let earlier = of(before);
    let reported = |source: Value| {
        let then = earlier.iter().find(|then| then["name"] == source["name"]);
        let received = |of: &Value| of["received_events"].as_f64();
        let rate =
            received(&source).zip(then.and_then(received)).map(|(now, then)| (now - then).max(0.0) / seconds);
        let lags = source["lag_records"].as_object().filter(|lags| !lags.is_empty());
        let lag = lags.map(|lags| lags.values().filter_map(Value::as_i64).sum::<i64>());
        json!({
            "name": source["name"], "state": source["state"], "detail": source["detail"],
            "received_per_second": rate, "lag_records": lag, "rejected_events": source["rejected_events"],
        })
    };
    of(after).into_iter().map(reported).collect()
}

fn sum(parts: &Value) -> u64 {
    parts.as_object().into_iter().flatten().filter_map(|(_, bytes)| bytes.as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SCRAPE: &str = "# HELP x\n\
        evergraph_http_requests_total{code=\"200\",route=\"/v1/embeddings\"} 90\n\
        evergraph_http_requests_total{code=\"503\",route=\"/v1/nodes/{key}\"} 10\n\
        evergraph_http_requests_total{code=\"200\",route=\"/v1/status\"} 1000\n\
        evergraph_http_request_duration_seconds_bucket{route=\"/v1/embeddings\",le=\"0.001\"} 50\n\
        evergraph_http_request_duration_seconds_bucket{route=\"/v1/embeddings\",le=\"0.01\"} 99\n\
        evergraph_http_request_duration_seconds_bucket{route=\"/v1/embeddings\",le=\"+Inf\"} 100\n\
        evergraph_graph_nodes 7\n";

    #[test]
    fn requests_and_latency_are_read_from_a_scrape() {
        let (none, seen) = (Requests::default(), Requests::of(SCRAPE));
        assert_eq!((seen.total, seen.failed), (100.0, 10.0));
        assert_eq!(seen.quantile(&none, 0.5), Some(0.001));
        assert_eq!(seen.quantile(&none, 0.99), Some(0.01));
        assert_eq!(seen.quantile(&none, 1.0), None, "beyond every bound");
        assert_eq!(seen.quantile(&seen, 0.5), None, "no request in between");
    }

    #[test]
    fn rates_are_taken_between_two_samples() {
        let at = Instant::now();
        let sample = |seconds: u64, accepted: u64, received: u64| Sample {
            at: at + Duration::from_secs(seconds),
            status: json!({
                "ingest": {
                    "accepted_events": accepted,
                    "sources": [{ "name": "http", "state": "running", "received_events": received, "lag_records": {} }],
                },
                "graph": { "bytes": { "entries": 3, "slack": 4 } },
            }),
            health: Some(json!({ "status": "degraded", "checks": {
                "log": { "state": "ok", "detail": "" }, "sources": { "state": "degraded", "detail": "why" } } })),
            requests: Some(Requests { total: received as f64, ..Requests::default() }),
        };
        let reported = figures(&sample(0, 10, 5), &sample(2, 30, 9));
        assert_eq!(reported["accepted_per_second"], 10.0);
        assert_eq!(reported["sources"][0]["received_per_second"], 2.0);
        assert_eq!(reported["requests"]["requests_per_second"], 2.0);
        assert_eq!((&reported["learned_per_second"], &reported["graph_bytes"]), (&Value::Null, &json!(7)));
        assert_eq!(reported["health"]["not_ok"][0]["check"], "sources");
        let restarted = figures(&sample(0, 30, 9), &sample(2, 3, 1));
        assert_eq!(restarted["accepted_per_second"], 0.0, "counted from 0 again");
    }
}
