//! The figures of the cluster benchmark: what ranks computed and exchanged, and the speed that follows where each has a
//! machine of its own.
//!
//! The speed model is a sum of measured parts: a batch takes the CPU time of the slowest rank, the latency of each
//! round of the exchange, and its bytes at the bandwidth. It is applied twice: to the exchange of this machine, whose
//! latency and bandwidth were measured just before, where the clock can check it as long as every rank has a core; and
//! to a network of given latency and bandwidth. It leaves out that ranks wait for one another where their batches
//! differ.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cli::bench::per_second;
use crate::cli::output;
use crate::device::exchange::Traffic;

/// A network.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Network {
    /// In each direction.
    pub gbps: f64,
    pub latency_us: f64,
}

/// The exchange between ranks, as measured or given.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Link {
    /// Of a round.
    pub latency_seconds: f64,
    /// That a rank sends while it receives as many.
    pub bytes_per_second: f64,
}

/// What one rank measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankReport {
    pub events: u64,
    pub batches: u64,
    pub seconds: f64,
    /// Of all threads, those in the exchange included.
    pub cpu_seconds: f64,
    pub exchange_seconds: f64,
    pub exchange_cpu_seconds: f64,
    pub rounds: u64,
    pub bytes: u64,
    /// Rows that the ranks' own events read, added up, and the distinct ones of whole batches.
    pub rows_read: u64,
    pub rows_distinct: u64,
    pub link: Link,
    /// Of what was learned.
    pub digest: String,
}

/// What so many ranks measured: training together, and each alone with as many beside it, which one rank does in any
/// case.
#[derive(Debug, Default)]
pub struct Run {
    pub together: Vec<RankReport>,
    pub alone: Vec<RankReport>,
}

/// The figures of one number of ranks.
#[derive(Debug, Serialize)]
pub struct RankFigures {
    pub ranks: usize,
    /// That the slowest rank computed, without the exchange.
    pub cpu_seconds: f64,
    pub cpu_seconds_by_rank: Vec<f64>,
    /// By the clock.
    pub seconds: f64,
    pub events_per_second: f64,
    /// That a rank sent, on average.
    pub bytes_exchanged: u64,
    pub bytes_per_batch: f64,
    pub rounds_per_batch: f64,
    pub exchange_seconds: f64,
    /// Of the rows that the ranks read for their own events, the share that are of a row which a rank before reads,
    /// too.
    pub unique_row_overlap_ratio: f64,
    pub exchange_here: Link,
    /// By the model, with the exchange of this machine; the clock's rate beside it in `clock_to_model_ratio`.
    pub modeled_here_events_per_second: f64,
    pub clock_to_model_ratio: f64,
    /// By the model, with the network that was given.
    pub modeled_events_per_second: f64,
    /// CPU time of a process that trains alone, with as many beside it as ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_cpu_seconds: Option<f64>,
    /// The model's rate beside that of such a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modeled_speedup: Option<f64>,
    pub digest: String,
}

/// All figures.
#[derive(Debug, Serialize)]
pub struct Figures {
    pub events: u64,
    pub batches: u64,
    pub network: Network,
    pub ranks: Vec<RankFigures>,
    /// Whether all ranks of all runs have learned the same, bit for bit.
    pub bits_equal: bool,
}

impl RankReport {
    /// Notes what was exchanged between two moments.
    pub fn exchanged(&mut self, end: Traffic, begin: Traffic) {
        self.exchange_seconds = end.seconds - begin.seconds;
        self.exchange_cpu_seconds = end.cpu_seconds - begin.cpu_seconds;
        self.rounds = end.rounds - begin.rounds;
        self.bytes = end.bytes - begin.bytes;
    }

    fn file(rank: usize) -> String {
        format!("rank-{rank}.json")
    }

    /// Leaves it for [`read`](Self::read).
    pub fn write(&self, folder: &Path, rank: usize) -> Result<()> {
        let path = folder.join(Self::file(rank));
        std::fs::write(&path, serde_json::to_vec(self)?).with_context(|| path.display().to_string())
    }

    /// What a rank has left.
    pub fn read(folder: &Path, rank: u32) -> Result<Self> {
        let path = folder.join(Self::file(rank as usize));
        let text = std::fs::read(&path).with_context(|| format!("rank {rank} has left no figures"))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Seconds that it computed.
    fn computed(&self) -> f64 {
        (self.cpu_seconds - self.exchange_cpu_seconds).max(0.0)
    }
}

impl Network {
    fn link(self) -> Link {
        Link { latency_seconds: self.latency_us * 1e-6, bytes_per_second: self.gbps * 1e9 / 8.0 }
    }
}

impl Link {
    /// Seconds of so many rounds and bytes.
    fn seconds(self, rounds: f64, bytes: f64) -> f64 {
        rounds * self.latency_seconds + bytes / self.bytes_per_second.max(1.0)
    }
}

impl RankFigures {
    #[allow(clippy::cast_precision_loss)] // counts of a benchmark fit
    fn of(run: &Run, network: Network) -> Result<Self> {
        let reports = &run.together;
        let first = reports.first().context("there are no ranks")?;
        let alone = if let [one] = &reports[..] { std::slice::from_ref(one) } else { &run.alone };
        let alone =
            alone.iter().map(RankReport::computed).reduce(|a, b| a + b).map(|sum| sum / alone.len() as f64);
        let mean = |of: fn(&RankReport) -> f64| reports.iter().map(of).sum::<f64>() / reports.len() as f64;
        let most = |of: fn(&RankReport) -> f64| reports.iter().map(of).fold(0.0, f64::max);
        let (events, seconds) = (first.events, most(|report| report.seconds));
        let computed = most(RankReport::computed);
        let (rounds, bytes) = (mean(|report| report.rounds as f64), mean(|report| report.bytes as f64));
        // The one that sends most is waited for.
        let sent = most(|report| report.bytes as f64);
        let rate = |seconds: f64| per_second(usize::try_from(events).unwrap_or(usize::MAX), seconds);
        let here = rate(computed + first.link.seconds(rounds, sent));
        let there = computed + network.link().seconds(rounds, sent);
        let batches = first.batches.max(1) as f64;
        Ok(Self {
            ranks: reports.len(),
            cpu_seconds: computed,
            cpu_seconds_by_rank: reports.iter().map(RankReport::computed).collect(),
            seconds,
            events_per_second: rate(seconds),
            bytes_exchanged: bytes as u64,
            bytes_per_batch: bytes / batches,
            rounds_per_batch: rounds / batches,
            exchange_seconds: mean(|report| report.exchange_seconds),
            unique_row_overlap_ratio: 1.0 - first.rows_distinct as f64 / first.rows_read.max(1) as f64,
            exchange_here: first.link,
            modeled_here_events_per_second: here,
            clock_to_model_ratio: rate(seconds) / here.max(f64::MIN_POSITIVE),
            modeled_events_per_second: rate(there),
            alone_cpu_seconds: alone,
            modeled_speedup: alone.map(|alone| alone / there.max(f64::MIN_POSITIVE)),
            digest: first.digest.clone(),
        })
    }
}

impl Figures {
    /// Of what the ranks of each run reported.
    pub fn of(runs: &[Run], network: Network) -> Result<Self> {
        let ranks = runs.iter().map(|run| RankFigures::of(run, network)).collect::<Result<Vec<_>>>()?;
        let all = runs.iter().flat_map(|run| run.together.iter().chain(&run.alone));
        let first = all.clone().next().context("nothing was measured")?;
        let bits_equal = all.clone().all(|report| report.digest == first.digest);
        Ok(Self { events: first.events, batches: first.batches, network, ranks, bits_equal })
    }
}

/// The figures, for people.
pub fn print_summary(figures: &Figures) {
    let Network { gbps, latency_us } = figures.network;
    if figures.batches == 0 {
        output::print_status("nothing was left to train: the checkpoint is of the whole stream");
    }
    for ranks in &figures.ranks {
        let speedup = ranks.modeled_speedup.map_or_else(String::new, |speedup| format!(" ({speedup:.2}×)"));
        output::print_status(&format!(
            "{} ranks: {:.0} events/s here, {:.2} of what the model says; {:.0} events/s{speedup} at {gbps} Gb/s and \
             {latency_us} us; each computes {:.1} s and sends {:.2} MB a batch; {:.0} % of their row reads are repeats",
            ranks.ranks,
            ranks.events_per_second,
            ranks.clock_to_model_ratio,
            ranks.modeled_events_per_second,
            ranks.cpu_seconds,
            ranks.bytes_per_batch * 1e-6,
            100.0 * ranks.unique_row_overlap_ratio,
        ));
    }
    let equal = if figures.bits_equal { "all learned the same bits" } else { "ranks learned other bits" };
    output::print_status(equal);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(seconds: f64, bytes: u64, digest: &str) -> RankReport {
        RankReport {
            events: 1000,
            batches: 10,
            seconds,
            cpu_seconds: seconds,
            rounds: 40,
            bytes,
            rows_read: 120,
            rows_distinct: 90,
            link: Link { latency_seconds: 0.01, bytes_per_second: 1e6 },
            digest: digest.to_owned(),
            ..RankReport::default()
        }
    }

    #[test]
    fn the_model_adds_up_computing_latency_and_bytes() {
        let network = Network { gbps: 0.08, latency_us: 2500.0 };
        let one = Run { together: vec![report(1.0, 0, "a")], alone: Vec::new() };
        let together = vec![report(0.5, 1_000_000, "a"), report(0.4, 1_000_000, "a")];
        let runs = [one, Run { together, alone: vec![report(1.2, 0, "a"), report(1.6, 0, "a")] }];
        let figures = Figures::of(&runs, network).unwrap();
        assert!(figures.bits_equal);
        let two = &figures.ranks[1];
        assert!((two.modeled_events_per_second - 1000.0 / (0.5 + 0.1 + 0.1)).abs() < 1e-6, "{two:?}");
        assert!((two.modeled_here_events_per_second - 1000.0 / (0.5 + 0.4 + 1.0)).abs() < 1e-6);
        assert!((two.modeled_speedup.unwrap() - 1.4 / 0.7).abs() < 1e-6, "beside one with another beside it");
        assert!((two.unique_row_overlap_ratio - 0.25).abs() < 1e-9);
        assert_eq!((two.cpu_seconds, two.bytes_per_batch), (0.5, 100_000.0));
        let runs = [Run { together: vec![report(1.0, 0, "a"), report(1.0, 0, "b")], alone: Vec::new() }];
        assert!(!Figures::of(&runs, network).unwrap().bits_equal);
    }
}
