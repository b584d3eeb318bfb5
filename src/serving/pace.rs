//! How a loop that computes beside others keeps to its share of a core: on its thread alone, and with pauses.

use std::time::Duration;

use rayon::ThreadPool;

/// A pause is taken in parts of this length, so that a stop and whoever watches the thread need not wait for its end.
const PAUSE_PART: Duration = Duration::from_millis(100);

/// The least share of a core: with less, one piece of work would be followed by a pause without an end in sight.
const SHARE_MIN: f64 = 0.01;

/// Has this thread, which computes `what`, do so alone, whatever pool of threads there is, until the result is dropped.
#[must_use]
pub fn compute_alone(what: &str) -> Option<ThreadPool> {
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    alone
        .inspect_err(
            |error| tracing::warn!(%error, what, "no thread pool of its own: it computes in the shared one"),
        )
        .ok()
}

/// The pause after which what took so long was `share` of a core.
#[must_use]
pub fn pause_for_share(took: Duration, share: f64) -> Duration {
    took.mul_f64(1.0 / share.clamp(SHARE_MIN, 1.0) - 1.0)
}

/// Pauses for as long as is `left`, and while `proceed` says so.
pub fn pause(mut left: Duration, proceed: &impl Fn() -> bool) {
    while !left.is_zero() && proceed() {
        let part = left.min(PAUSE_PART);
        std::thread::sleep(part);
        left -= part;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_pause_makes_a_share_of_what_was_computed_and_ends_where_it_is_to() {
        let ms = Duration::from_millis;
        assert_eq!([1.0, 7.0].map(|share| pause_for_share(ms(10), share)), [ms(0); 2]);
        assert_eq!(pause_for_share(ms(10), 0.25), ms(30));
        assert_eq!([0.0, -1.0].map(|share| pause_for_share(ms(1), share)), [ms(99); 2]);
        let begun = Instant::now();
        pause(Duration::from_secs(3600), &|| begun.elapsed() < ms(150));
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
