//! A made-up stream with something to learn and something to forget: users of a shop visit items.
//!
//! - Items belong to genres, and an edge carries a noisy description of its item's genre as features.
//! - A user has a taste for one genre at a time and drifts to another every so often, each user at a
//!   time of its own. What was learned about a user goes stale.
//! - Users come in waves: a few are active for a while, then others. User 1 is in every wave, and the first
//!   event is between user 1 and item 1, so that requests have a known pair from the start.
//!
//! - Optionally, the whole catalog changes at known points: in another era every item belongs to another
//!   genre, and genres have other features. Eras come back, so there is something to retain too.
//!
//! Event `i` is a pure function of (seed, i), so a restarted source goes on at the next event without
//! having kept anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::dead_letter::unix_ms;
use super::handover::Holds;
use super::rejection::IngestStats;
use crate::event::{
    EdgeEvent, Event, EventBatch, EventTime, Incoming, NodeKey, PositionLookup, Receipt, Reply, SourceRange,
    Submission,
};

/// Length of an edge's feature row.
pub const FEATURE_DIMENSION: usize = 8;

const USERS: u64 = 1_000;
const ITEMS: u64 = 1_200;
const GENRES: u64 = 12;
/// Catalogues of a world with eras, in turn.
const ERAS: u64 = 3;
/// The user who is in every wave, at place 0 of it, and the item that is visited first.
const REGULAR_USER: u64 = 1;
const FIRST_ITEM: u64 = 1;
/// Users active in the same wave, and events in a wave.
const WAVE_USERS: u64 = 100;
const WAVE_EVENTS: u64 = 3_000;
/// Events between two changes of one user's taste.
const TASTE_EVENTS: u64 = 60_000;
/// Stream time between two events, in milliseconds.
const STEP_MS: i64 = 1_000;
/// Share of visits, in percent, that follow no taste.
const WANDERING_PERCENT: u64 = 8;

/// The made-up world.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedWorld {
    /// Picks one world of many.
    pub seed: u64,
    /// Events of an era; 0 is a catalogue that never changes.
    pub era_events: u64,
}

/// What a random number is drawn for; keeps the draws of one event apart.
#[derive(Clone, Copy)]
enum Draw {
    Wave = 1,
    User,
    Taste,
    TasteStart,
    Wander,
    Item,
    Genre,
    Noise,
    Catalogue,
}

impl GeneratedWorld {
    /// Event number `i`; times are milliseconds that grow by one second an event.
    #[must_use]
    pub fn event(&self, i: u64) -> EdgeEvent {
        let (user, item, genre) = if i == 0 {
            (REGULAR_USER, FIRST_ITEM, FIRST_ITEM % GENRES)
        } else {
            let user = self.active_user(i);
            let genre = if self.draw(Draw::Wander, i, 0) % 100 < WANDERING_PERCENT {
                self.draw(Draw::Wander, i, 1) % GENRES
            } else {
                self.taste(user, i)
            };
            (user, self.item(genre, i), genre)
        };
        let features = (0..FEATURE_DIMENSION as u64)
            .map(|k| self.describe(genre, self.era(i), k) + 0.3 * self.signed(Draw::Noise, i, k))
            .collect();
        EdgeEvent {
            src: NodeKey::Text(format!("user-{user}").into()),
            dst: NodeKey::Text(format!("item-{item}").into()),
            time: EventTime(i.cast_signed().saturating_mul(STEP_MS)),
            edge_type: None,
            features,
            label: None,
        }
    }

    /// Who acts in event `i`: one of the users of its wave.
    fn active_user(&self, i: u64) -> u64 {
        match self.draw(Draw::User, i, 0) % WAVE_USERS {
            0 => REGULAR_USER,
            place => self.draw(Draw::Wave, i / WAVE_EVENTS, place) % USERS,
        }
    }

    /// The genre that a user likes when event `i` happens.
    fn taste(&self, user: u64, i: u64) -> u64 {
        let period = (i + self.draw(Draw::TasteStart, user, 0) % TASTE_EVENTS) / TASTE_EVENTS;
        self.draw(Draw::Taste, user, period) % GENRES
    }

    /// Which catalogue holds when event `i` happens.
    fn era(&self, i: u64) -> u64 {
        i.checked_div(self.era_events).unwrap_or(0) % ERAS
    }

    /// An item of a genre; the first ones are the popular ones.
    fn item(&self, genre: u64, i: u64) -> u64 {
        let era = self.era(i);
        if era > 0 {
            let of = |item: u64| self.draw(Draw::Catalogue, item, era) % GENRES;
            let two = |k: u64| [0, 1].map(|half| self.draw(Draw::Item, i, 2 * k + half) % ITEMS);
            // One in twelve is of the genre, so this ends soon.
            let mut tried = (0..).map(|k| two(k).into_iter().fold(ITEMS, u64::min));
            return tried.find(|&item| of(item) == genre).unwrap_or(FIRST_ITEM);
        }
        let of_genre = ITEMS / GENRES;
        let (a, b) = (self.draw(Draw::Item, i, 0) % of_genre, self.draw(Draw::Item, i, 1) % of_genre);
        a.min(b) * GENRES + genre
    }

    /// Feature `k` of a genre, the same for all its items.
    fn describe(&self, genre: u64, era: u64, k: u64) -> f32 {
        self.signed(Draw::Genre, genre + era * GENRES, k)
    }

    fn draw(&self, what: Draw, a: u64, b: u64) -> u64 {
        let mut key = [0; 24];
        for (part, value) in key.chunks_exact_mut(8).zip([what as u64, a, b]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        xxh3_64_with_seed(&key, self.seed)
    }

    /// A number in [-1, 1).
    #[allow(clippy::cast_precision_loss)] // 24 bits fit
    fn signed(&self, what: Draw, a: u64, b: u64) -> f32 {
        (self.draw(what, a, b) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Name of the source in positions and status.
pub const SOURCE: &str = "generated:demo";
/// How often a batch is made.
const TICK: Duration = Duration::from_millis(50);
/// Most events of one batch, however long the source was held up.
const BATCH_MAX: u64 = 5_000;
/// How long a refused batch waits before it is submitted again.
const RETRY: Duration = Duration::from_millis(500);

/// Submits events of `world` at `events_per_second`, from where the log stands, until `stop` is set.
/// A source that is held up by a full queue or an operator does not catch up in a burst: it goes on at its pace.
pub fn run(
    world: GeneratedWorld,
    events_per_second: f64,
    positions: &dyn PositionLookup,
    (queue, holds): (&Sender<Submission>, &Holds),
    stats: &IngestStats,
    stop: &AtomicBool,
) {
    let source: Arc<str> = Arc::from(SOURCE);
    let mut next = u64::try_from(positions.position(SOURCE, 0).unwrap_or(0)).unwrap_or(0);
    let (mut owed, mut last) = (0.0, Instant::now());
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(TICK);
        if holds.has(SOURCE) {
            last = Instant::now();
            continue;
        }
        owed += events_per_second * last.elapsed().as_secs_f64();
        last = Instant::now();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // bounded right here
        let count = (owed as u64).min(BATCH_MAX);
        if count == 0 {
            continue;
        }
        owed = if count == BATCH_MAX { 0.0 } else { owed.fract() };
        let Some(receipt) = hand_over(queue, || batch(world, &source, next, count), stop) else { return };
        stats.count_received(count);
        stats.count_stored(&receipt);
        next += count;
    }
}

fn batch(world: GeneratedWorld, source: &Arc<str>, first: u64, count: u64) -> EventBatch {
    let range = first..first + count;
    EventBatch {
        events: range.clone().map(|i| Incoming::new(Event::Edge(world.event(i)))).collect(),
        offsets: range.clone().map(u64::cast_signed).collect(),
        ranges: vec![SourceRange {
            source: source.clone(),
            partition: 0,
            from: range.start.cast_signed(),
            to: range.end.cast_signed(),
            mark: None,
        }],
        gap_allowed: false,
        origin_unix_ms: unix_ms(),
    }
}

/// Submits a batch until it is durable; `None` if the daemon stops first.
fn hand_over(
    queue: &Sender<Submission>,
    batch: impl Fn() -> EventBatch,
    stop: &AtomicBool,
) -> Option<Receipt> {
    while !stop.load(Ordering::Acquire) {
        let (sender, outcomes) = crossbeam_channel::bounded(1);
        let reply: Reply = Box::new(move |outcome| drop(sender.send(outcome)));
        let mut submission = Submission { batch: batch(), reply: Some(reply) };
        while let Err(refused) = queue.send_timeout(submission, TICK) {
            if stop.load(Ordering::Acquire) || refused.is_disconnected() {
                return None;
            }
            submission = refused.into_inner();
        }
        // A log that hangs must not hold up the end; what became of the batch is in the log.
        let outcome = loop {
            match outcomes.recv_timeout(TICK) {
                Err(RecvTimeoutError::Timeout) if !stop.load(Ordering::Acquire) => {}
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(Ok(receipt)) => return Some(receipt),
            Ok(Err(refusal)) => {
                tracing::debug!(%refusal, "the generated batch is submitted again");
                std::thread::sleep(RETRY);
            }
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_event_comes_out_every_time_and_time_grows() {
        let world = GeneratedWorld { seed: 7, era_events: 0 };
        for i in [0, 1, 2_999, 3_000, 1_000_000] {
            assert_eq!(world.event(i), world.event(i));
            assert!(world.event(i).time < world.event(i + 1).time);
            assert!(world.event(i).features.iter().all(|x| x.abs() <= 1.3));
        }
        assert_ne!(world.event(5), GeneratedWorld { seed: 8, era_events: 0 }.event(5));
    }

    #[test]
    fn user_1_and_item_1_are_there_from_the_first_event_and_user_1_stays() {
        for seed in [0, 7] {
            let world = GeneratedWorld { seed, era_events: 0 };
            let first = world.event(0);
            assert_eq!((&first.src, &first.dst), (&NodeKey::from("user-1"), &NodeKey::from("item-1")));
            let late = 50 * WAVE_EVENTS;
            let visits = (late..late + WAVE_EVENTS).filter(|&i| world.event(i).src == first.src).count();
            assert!(visits > 10, "user-1 acts {visits} times in wave 50 of world {seed}");
        }
    }

    #[test]
    fn a_log_that_never_replies_does_not_hold_up_the_end() {
        struct Nothing;
        impl PositionLookup for Nothing {
            fn position(&self, _: &str, _: i32) -> Option<i64> {
                None
            }
        }
        let (queue, silent) = crossbeam_channel::bounded(1);
        let (stats, stop) = (IngestStats::default(), AtomicBool::new(false));
        let world = GeneratedWorld { seed: 1, era_events: 0 };
        std::thread::scope(|scope| {
            let end = scopeguard::guard((), |()| stop.store(true, Ordering::Release));
            let running =
                scope.spawn(|| run(world, 1e4, &Nothing, (&queue, &Holds::default()), &stats, &stop));
            while silent.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(end);
            running.join().unwrap();
        });
        assert_eq!(silent.len(), 1);
    }

    #[test]
    fn a_catalogue_re_forms_at_known_points_and_comes_back() {
        let (plain, world) =
            (GeneratedWorld { seed: 3, era_events: 0 }, GeneratedWorld { seed: 3, era_events: 100 });
        for i in [0, 50, 99, 300, 399] {
            assert_eq!(world.event(i), plain.event(i), "the first catalogue is that of a world without eras");
        }
        let kept = (100..200).filter(|&i| world.event(i).features == plain.event(i).features).count();
        assert_eq!(kept, 0, "genres have other features");
        let item = |key: &NodeKey| key.to_string().trim_start_matches("item-").parse::<u64>().unwrap();
        let same =
            (100..300).filter(|&i| item(&world.event(i).dst) % GENRES == item(&plain.event(i).dst) % GENRES);
        assert!(same.count() < 40, "items belong to other genres");
    }

    #[test]
    fn tastes_hold_for_a_while_and_then_drift() {
        let world = GeneratedWorld { seed: 1, era_events: 0 };
        let changes =
            (0..USERS).filter(|&user| world.taste(user, 0) != world.taste(user, TASTE_EVENTS)).count();
        let kept = (0..USERS).filter(|&user| world.taste(user, 0) == world.taste(user, 200)).count();
        assert!(changes > 800, "{changes} of {USERS} changed their taste over a period");
        assert!(kept > 950, "{kept} of {USERS} kept their taste over 200 events");
    }
}
