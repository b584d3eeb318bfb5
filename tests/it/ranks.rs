//! Several ranks that train together learn what one process does, bit for bit; as threads of this process, and as processes
//! of Open MPI.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use evergraph::device::exchange::{Exchange, ExchangeError, Message, Traffic, broadcast};
use evergraph::device::matmul::Precision;
use evergraph::device::{Device, rng};
use evergraph::event::{EventTime, NodeId};
use evergraph::model::tgn::Aggregator;
use evergraph::model::walk::WalkOptions;
use evergraph::model::{
    EdgeTypes, GatOptions, GraphMixerOptions, GraphSageOptions, ModelOptions, TgatOptions, TgnOptions,
};
use evergraph::train::{PreparedBatch, RanksError, StepMode, TrainError, Trainer, TrainerOptions};

use serde_json::Value;

use crate::hostile::setting;
use crate::shards::{BEFORE, STEP, prepare, prepare_some, step_by, try_step};
use crate::skip::skipped;
use crate::tgn_stream::{BATCH, Stream, options, tgn, wide};

/// A test whose ranks do not meet ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the ranks share: messages under way, by the rank that sends them, and who is in a round.
#[derive(Default)]
struct Table {
    sent: Vec<Vec<(usize, Vec<u8>)>>,
    waiting: usize,
    meetings: u64,
}

/// Ranks that are threads of this process.
struct Threads {
    rank: usize,
    table: Arc<(Mutex<Table>, Condvar)>,
    traffic: Traffic,
}

impl Threads {
    fn new(ranks: usize) -> Vec<Self> {
        let table = Table { sent: vec![Vec::new(); ranks], ..Table::default() };
        let (table, traffic) = (Arc::new((Mutex::new(table), Condvar::new())), Traffic::default());
        (0..ranks).map(|rank| Self { rank, table: table.clone(), traffic }).collect()
    }

    /// Waits until all are here.
    fn meet(&self) -> Result<(), ExchangeError> {
        let (table, changed) = &*self.table;
        let mut table = table.lock().unwrap();
        let meeting = table.meetings;
        table.waiting += 1;
        if table.waiting == table.sent.len() {
            (table.waiting, table.meetings) = (0, meeting + 1);
            changed.notify_all();
        }
        let (_table, timeout) =
            changed.wait_timeout_while(table, PATIENCE, |table| table.meetings == meeting).unwrap();
        let lost = ExchangeError::Lost { rank: self.rank, round: self.traffic.rounds, waited: PATIENCE };
        if timeout.timed_out() { Err(lost) } else { Ok(()) }
    }
}

impl Exchange for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.table.0.lock().unwrap().sent.len()
    }

    fn round(&mut self, messages: &mut [Message<'_>]) -> Result<(), ExchangeError> {
        self.traffic.rounds += 1;
        self.traffic.bytes += messages.iter().map(|message| message.sent.len() as u64).sum::<u64>();
        let sent = messages.iter().map(|message| (message.rank, message.sent.to_vec())).collect();
        self.table.0.lock().unwrap().sent[self.rank] = sent;
        self.meet()?;
        for (other, sent) in self.table.0.lock().unwrap().sent.iter().enumerate() {
            let sent = sent.iter().filter(|(to, _)| *to == self.rank);
            let expected = messages.iter_mut().filter(|message| message.rank == other);
            assert_eq!(sent.clone().count(), expected.count(), "messages from {other} to {}", self.rank);
            let expected = messages.iter_mut().filter(|message| message.rank == other);
            sent.zip(expected).for_each(|((_, sent), message)| message.received.copy_from_slice(sent));
        }
        self.meet()
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

/// Runs `each` as so many ranks, on a thread each.
fn as_ranks<R: Send>(ranks: usize, each: impl Fn(Threads) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let each = &each;
        let ranks = Threads::new(ranks).into_iter();
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || each(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn models() -> Vec<TrainerOptions> {
    let mixer =
        GraphMixerOptions { edge_feature_dim: 2, node_feature_dim: 3, ..GraphMixerOptions::default() };
    let tgat = TgatOptions { layers: 1, edge_feature_dim: 2, node_feature_dim: 3, ..TgatOptions::default() };
    let gat = GatOptions { layers: 1, edge_feature_dim: 2, node_feature_dim: 3, ..GatOptions::default() };
    let jodie = TgnOptions { edge_feature_dim: 2, node_feature_dim: 3, ..TgnOptions::jodie() };
    let walks = WalkOptions { steps: 2, dimension: 32, hidden: [12, 8], ..WalkOptions::default() };
    let with_walks = ModelOptions::from(tgn()).with_walks(Some(walks));
    let models: [ModelOptions; 6] =
        [tgn().into(), with_walks, jodie.into(), mixer.into(), tgat.into(), gat.into()];
    let wide = TrainerOptions { gradient_delay_batches: 0, ..wide() };
    let models = models.into_iter().map(|model| TrainerOptions { model, ..options() }).chain([wide]);
    let precisions = [Precision::F32, Precision::Bf16];
    models.flat_map(|model| precisions.map(|precision| TrainerOptions { precision, ..model })).collect()
}

#[test]
fn any_number_of_ranks_learns_the_same_bits_as_one_process() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let learn = |trainer: &mut Trainer| {
        let mut losses = Vec::new();
        // Batches of one part, which ranks do not share, and of two and more; one that is only scored or remembered.
        for (events, mode) in [
            (0..1, StepMode::Train),
            (1..BEFORE, StepMode::Train),
            (BEFORE..BEFORE + 400, StepMode::Train),
            (BEFORE + 400..BEFORE + 500, StepMode::StateOnly),
            (BEFORE + 500..BEFORE + 600, StepMode::Train),
            (BEFORE + 600..BEFORE + STEP, StepMode::Score),
            (BEFORE..BEFORE + STEP, StepMode::Train),
        ] {
            let report = step_by(&stream, trainer, events, (false, mode));
            let scores = report.positive.iter().chain(&report.negative).map(|score| score.to_bits());
            losses.push((report.loss.to_bits(), scores.collect::<Vec<_>>(), report.touched));
        }
        let mut saved = Vec::new();
        trainer.save(&mut saved).unwrap();
        (losses, saved)
    };
    for options in models() {
        let expected = learn(&mut Trainer::new(options, &Device::Cpu).unwrap());
        for ranks in [1, 2, 4, 8] {
            let learned = as_ranks(ranks, |exchange| {
                let mut trainer = Trainer::new(options, &Device::Cpu).unwrap();
                trainer.join(Box::new(exchange)).unwrap();
                let learned = learn(&mut trainer);
                trainer.compare_ranks().unwrap();
                (learned, trainer.traffic())
            });
            for (rank, (learned, traffic)) in learned.into_iter().enumerate() {
                assert!(learned == expected, "rank {rank} of {ranks}: {options:?}");
                assert_eq!(traffic.bytes > 1000, ranks > 1, "{traffic:?}");
            }
        }
    }
}

/// What a learner does with a trainer: steps of every kind, replays and deletions, and going back to earlier weights.
fn follow_a_stream(stream: &Stream, trainer: &mut Trainer) -> Vec<u32> {
    let mut scores = Vec::new();
    let mut step = |trainer: &mut Trainer, events: Range<usize>, how| {
        let mut batch = PreparedBatch::default();
        prepare(stream, trainer, events, how, &mut batch).unwrap();
        let report = trainer.test_and_step(&batch).unwrap();
        scores.extend(report.positive.iter().chain(&report.negative).map(|score| score.to_bits()));
        batch
    };
    // It is cleared below, and there again for the next trainer.
    stream.edge_features.set(BEFORE as u64 + 10, &[1.0, 0.5]).unwrap();
    step(trainer, 0..1, (false, StepMode::Train));
    step(trainer, 1..BEFORE, (false, StepMode::Train));
    let early = trainer.weights().unwrap();
    step(trainer, BEFORE..BEFORE + 400, (true, StepMode::Train));
    let seen = trainer.state().known();
    trainer.forget(&seen[3..5]);
    trainer.forget_pairs(&seen[3..5]);
    step(trainer, BEFORE + 400..BEFORE + 500, (false, StepMode::StateOnly));
    trainer.keep_pairs_since(stream.times[BEFORE]);
    step(trainer, BEFORE + 500..BEFORE + 600, (false, StepMode::Train));
    stream.edge_features.clear(BEFORE as u64 + 10);
    trainer.go_on_from(&early).unwrap();
    step(trainer, BEFORE + 600..BEFORE + STEP, (false, StepMode::Score));
    let mut old = PreparedBatch::default();
    prepare(stream, trainer, 0..BEFORE, (false, StepMode::Train), &mut old).unwrap();
    trainer.replay_prepared(&old, 77).unwrap();
    let batch = step(trainer, BEFORE..BEFORE, (false, StepMode::Train));
    assert!(batch.positives().src.is_empty());
    step(trainer, BEFORE..BEFORE + STEP, (false, StepMode::Train));
    let third: Vec<u32> = (0..800).filter(|place| place % 3 == 0).collect();
    let some = prepare_some(stream, trainer, BEFORE..BEFORE + STEP, &third);
    trainer.test_and_step(&some).unwrap();
    // Weights that are not trained score a batch by the first rank alone.
    let mut batch = PreparedBatch::default();
    prepare(stream, trainer, 0..BEFORE, (false, StepMode::Train), &mut batch).unwrap();
    let (positive, _) = trainer.score_prepared_by(&trainer.place(&early), &batch).unwrap();
    scores.extend(positive.iter().map(|score| score.to_bits()));
    scores
}

fn saved(trainer: &Trainer) -> Vec<u8> {
    let mut bytes = Vec::new();
    trainer.save(&mut bytes).unwrap();
    bytes
}

#[test]
fn ranks_that_follow_the_first_learn_what_it_learns_alone() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let dropping = |options: TrainerOptions| {
        let model = options.model.with_dropout(0.2);
        TrainerOptions { model, ..options }
    };
    let mean = TgnOptions { aggregator: Aggregator::Mean, ..tgn() };
    let typed = ModelOptions::from(tgn()).with_features(1, 3).with_edge_types(EdgeTypes::new(9, 3));
    let sage = GraphSageOptions {
        layers: 1,
        edge_feature_dim: 2,
        node_feature_dim: 3,
        ..GraphSageOptions::default()
    };
    let more = [mean.into(), typed, sage.into()].map(|model| TrainerOptions { model, ..options() });
    let all = models().into_iter().flat_map(|options| [options, dropping(options)]).chain(more);
    for (number, options) in all.enumerate() {
        let mut alone = Trainer::new(options, &Device::Cpu).unwrap();
        // They begin in the middle.
        step_by(&stream, &mut alone, 0..100, (false, StepMode::Train));
        let begun = saved(&alone);
        let scores = follow_a_stream(&stream, &mut alone);
        let expected = saved(&alone);
        for ranks in [2, if number % 2 == 0 { 4 } else { 8 }] {
            let learned = as_ranks(ranks, |exchange| {
                if exchange.rank() > 0 {
                    let mut trainer = Trainer::follow(options, Box::new(exchange)).unwrap().unwrap();
                    let (mut batch, mut parcel) = (PreparedBatch::default(), Vec::new());
                    while trainer.take_order(&mut batch, &mut parcel).unwrap() {}
                    trainer.leave().unwrap();
                    return saved(&trainer);
                }
                let mut trainer = Trainer::load(options, &Device::Cpu, &mut &begun[..]).unwrap();
                trainer.lead(Box::new(exchange), &|| ()).unwrap();
                assert!(follow_a_stream(&stream, &mut trainer) == scores, "{options:?}");
                trainer.leave().unwrap();
                saved(&trainer)
            });
            for (rank, learned) in learned.into_iter().enumerate() {
                assert!(learned == expected, "rank {rank} of {ranks}: {options:?}");
            }
        }
    }
}

#[test]
fn a_step_that_is_not_finite_is_refused_by_all_ranks_alike() {
    a_step_that_is_not_finite_is_refused_in(Precision::F32);
    a_step_that_is_not_finite_is_refused_in(Precision::Bf16);
}

fn a_step_that_is_not_finite_is_refused_in(precision: Precision) {
    let options = TrainerOptions { precision, ..options() };
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let ended = as_ranks(2, |exchange| {
        let is_first = exchange.rank() == 0;
        let mut trainer = if is_first {
            let mut trainer = Trainer::new(options, &Device::Cpu).unwrap();
            trainer.lead(Box::new(exchange), &|| ()).unwrap();
            trainer
        } else {
            Trainer::follow(options, Box::new(exchange)).unwrap().unwrap()
        };
        if is_first {
            step_by(&stream, &mut trainer, 0..BEFORE, (false, StepMode::Train));
            stream.edge_features.set(BEFORE as u64 - 1, &[f32::NAN, 0.0]).unwrap();
            let events = BEFORE..BEFORE + 400;
            let refused = try_step(&stream, &mut trainer, events.clone(), (false, StepMode::Train));
            assert!(matches!(refused, Err(TrainError::NonFinite { .. })), "{refused:?}");
            let mut batch = PreparedBatch::default();
            prepare(&stream, &trainer, events, (false, StepMode::Train), &mut batch).unwrap();
            let refused = trainer.replay_prepared(&batch, 5);
            assert!(matches!(refused, Err(TrainError::NonFinite { .. })), "{refused:?}");
            // As a deletion does. Rows that were set stay as they are, so others keep them until one is cleared.
            stream.edge_features.clear(BEFORE as u64 - 1);
            step_by(&stream, &mut trainer, BEFORE + 400..BEFORE + STEP, (false, StepMode::Train));
        } else {
            let (mut batch, mut parcel) = (PreparedBatch::default(), Vec::new());
            while trainer.take_order(&mut batch, &mut parcel).unwrap() {}
        }
        trainer.leave().unwrap();
        saved(&trainer)
    });
    assert!(ended[0] == ended[1]);
}

/// A rank sends half of the gradients of weights to be summed, and the sums of the other half.
#[test]
fn gradients_are_sent_in_the_numbers_that_they_are_rounded_to() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let sent = |precision| {
        let sent = as_ranks(2, |exchange| {
            let mut trainer = Trainer::new(TrainerOptions { precision, ..options() }, &Device::Cpu).unwrap();
            trainer.join(Box::new(exchange)).unwrap();
            step_by(&stream, &mut trainer, 0..BEFORE, (false, StepMode::StateOnly));
            let before = trainer.traffic().bytes;
            step_by(&stream, &mut trainer, BEFORE..BEFORE + STEP, (false, StepMode::Train));
            (trainer.traffic().bytes - before, trainer.gradients().count() as u64)
        });
        sent[0]
    };
    let (in_f32, in_bf16) = (sent(Precision::F32), sent(Precision::Bf16));
    assert_eq!(in_f32.0 - in_bf16.0, 2 * in_f32.1, "{in_f32:?}, {in_bf16:?}");
}

#[test]
fn rows_that_a_rank_still_has_are_not_passed_to_it_again() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    as_ranks(2, |exchange| {
        if exchange.rank() > 0 {
            let mut trainer = Trainer::follow(options(), Box::new(exchange)).unwrap().unwrap();
            let (mut batch, mut parcel) = (PreparedBatch::default(), Vec::new());
            while trainer.take_order(&mut batch, &mut parcel).unwrap() {}
            return trainer.leave().unwrap();
        }
        let mut trainer = Trainer::new(options(), &Device::Cpu).unwrap();
        trainer.lead(Box::new(exchange), &|| ()).unwrap();
        let mut passed = || {
            let mut batch = PreparedBatch::default();
            prepare(&stream, &trainer, BEFORE..BEFORE + STEP, (false, StepMode::Train), &mut batch).unwrap();
            let before = trainer.traffic().bytes;
            trainer.replay_prepared(&batch, 1).unwrap();
            trainer.traffic().bytes - before
        };
        let (first, second) = (passed(), passed());
        let rows = first - second;
        assert!(rows > 0 && rows.is_multiple_of(8), "{first}, then {second}: rows have two values");
        stream.edge_features.clear(BEFORE as u64 + 10);
        assert_eq!([passed(), passed()], [first, second], "one of them was cleared");
        trainer.leave().unwrap();
    });
}

#[test]
fn ranks_that_wait_for_a_trainer_that_does_not_come_end() {
    let ended = as_ranks(2, |exchange| match exchange.rank() {
        0 => Trainer::dismiss(Box::new(exchange)).is_ok(),
        _ => Trainer::follow(options(), Box::new(exchange)).unwrap().is_none(),
    });
    assert_eq!(ended, [true; 2]);
}

/// What a rank received in order, message by message.
type Tape = Arc<Mutex<Vec<Vec<u8>>>>;

/// Keeps what comes.
struct Recording(Threads, Tape);

impl Exchange for Recording {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn round(&mut self, messages: &mut [Message<'_>]) -> Result<(), ExchangeError> {
        self.0.round(messages)?;
        self.1.lock().unwrap().extend(messages.iter().map(|message| message.received.to_vec()));
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }
}

/// Rank 1 of 2, to which comes what was recorded.
struct Replayed(std::collections::VecDeque<Vec<u8>>);

impl Exchange for Replayed {
    fn rank(&self) -> usize {
        1
    }

    fn ranks(&self) -> usize {
        2
    }

    fn round(&mut self, messages: &mut [Message<'_>]) -> Result<(), ExchangeError> {
        for message in messages {
            let lost = || ExchangeError::Lost { rank: 1, round: 0, waited: Duration::ZERO };
            let came = self.0.pop_front().ok_or_else(lost)?;
            let (rank, expected) = (message.rank, message.received.len());
            if came.len() != expected {
                return Err(ExchangeError::Length { rank, came: came.len() as i64, expected });
            }
            message.received.copy_from_slice(&came);
        }
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

#[test]
fn damaged_orders_end_a_rank_with_an_error() {
    let (stream, tape) = (Stream::new((BEFORE + STEP) / BATCH), Tape::default());
    let follow = |exchange: Box<dyn Exchange>| -> Result<(), String> {
        let trainer = Trainer::follow(options(), exchange).map_err(|error| error.to_string())?;
        let (mut batch, mut parcel) = (PreparedBatch::default(), Vec::new());
        let mut trainer = trainer.ok_or("none")?;
        while trainer.take_order(&mut batch, &mut parcel).map_err(|error| error.to_string())? {}
        Ok(())
    };
    as_ranks(2, |exchange| {
        if exchange.rank() == 1 {
            return follow(Box::new(Recording(exchange, tape.clone()))).unwrap();
        }
        let mut trainer = Trainer::new(options(), &Device::Cpu).unwrap();
        trainer.lead(Box::new(exchange), &|| ()).unwrap();
        step_by(&stream, &mut trainer, 0..BEFORE, (false, StepMode::Train));
        trainer.forget(&[NodeId(3)]);
        step_by(&stream, &mut trainer, BEFORE..BEFORE + 400, (true, StepMode::Train));
        step_by(&stream, &mut trainer, BEFORE + 400..BEFORE + 450, (false, StepMode::StateOnly));
        trainer.leave().unwrap();
    });
    let whole = tape.lock().unwrap().clone();
    follow(Box::new(Replayed(whole.clone().into()))).unwrap();
    // Parcels begin with the length of their changes.
    let long: Vec<usize> = (0..whole.len()).filter(|&i| whole[i].len() > 500).collect();
    let (mut refused, seed) = (0_u64, setting("EVERGRAPH_FUZZ_SEED", 57) as u64);
    let cases = (setting("EVERGRAPH_FUZZ_CASES", 0) / 10).max(400) as u64;
    for case in 0..cases {
        let draw = |word: u64, below: usize| rng::below([case, word, 0, seed], below as u32) as usize;
        let mut damaged = whole.clone();
        let message = &mut damaged[long[draw(0, long.len())]];
        let at = draw(1, message.len() - 8);
        match draw(2, 3) {
            0 => message[at] ^= 1 << draw(3, 8),
            // Where numbers stand that are lengths.
            1 => message[at / 8 * 8..][..8]
                .copy_from_slice(&[0, 1, 255, u64::MAX, 1 << 40][draw(3, 5)].to_le_bytes()),
            _ => message[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes()),
        }
        let followed = catch_unwind(AssertUnwindSafe(|| follow(Box::new(Replayed(damaged.into())))));
        let followed = followed.unwrap_or_else(|_| panic!("case {case} of seed {seed}"));
        refused += u64::from(followed.is_err());
    }
    assert!(refused * 20 > cases, "{refused} of {cases} were refused");
}

#[test]
fn a_rank_with_other_settings_does_not_follow_the_first() {
    let differs = TrainerOptions { learning_rate: 0.5, ..options() };
    let ended = as_ranks(2, |exchange| match exchange.rank() {
        0 => {
            let mut trainer = Trainer::new(options(), &Device::Cpu).unwrap();
            trainer.lead(Box::new(exchange), &|| ()).map_err(|error| error.to_string())
        }
        _ => {
            let follower = Trainer::follow(differs, Box::new(exchange));
            follower.map(drop).map_err(|error| error.to_string())
        }
    });
    for ended in ended {
        let error = ended.unwrap_err();
        assert!(error.contains("the states of ranks"), "{error}");
    }
}

#[test]
fn a_rank_fetches_the_edge_rows_of_its_own_events_and_nodes() {
    let node = |i: usize, word: u64| NodeId(rng::below([91, word, i as u64, 0], 10_000));
    let nodes = |word| (0..BEFORE + STEP).map(|i| node(i, word)).collect();
    let times = (0..).map(EventTime).take(BEFORE + STEP).collect();
    let stream = Stream::over(nodes(0), nodes(1), times, nodes(2));
    let (events, how) = (BEFORE..BEFORE + STEP, (true, StepMode::Train));
    let prepared = |trainer: &mut Trainer| {
        step_by(&stream, trainer, 0..BEFORE, how);
        let mut batch = PreparedBatch::default();
        prepare(&stream, trainer, events.clone(), how, &mut batch).unwrap();
        batch
    };
    let rows = |batch: &PreparedBatch| batch.sample_and_rows().1.edges().len();
    let mut alone = Trainer::new(options(), &Device::Cpu).unwrap();
    let whole = prepared(&mut alone);
    for ranks in [2, 4] {
        let read = as_ranks(ranks, |exchange| {
            let mut trainer = Trainer::new(options(), &Device::Cpu).unwrap();
            trainer.join(Box::new(exchange)).unwrap();
            let batch = prepared(&mut trainer);
            // What another prepared has other rows.
            let refused = trainer.step_prepared(&whole);
            assert!(matches!(refused, Err(TrainError::OutOfOrder { .. })), "{refused:?}");
            let apart = trainer.score_prepared(&batch);
            assert!(matches!(apart, Err(TrainError::Shared)), "{apart:?}");
            trainer.step_prepared(&batch).unwrap();
            rows(&batch)
        });
        // What several ranks read for events or nodes of their own, each of these fetches.
        let sum = read.iter().sum::<usize>();
        assert!(sum >= rows(&whole) && sum * 10 < rows(&whole) * ranks * 9, "{read:?} of {}", rows(&whole));
    }
}

#[test]
fn ranks_that_cannot_train_together_say_why() {
    let join = |options: TrainerOptions, ranks| {
        let joined = as_ranks(ranks, |exchange| {
            let mut trainer = Trainer::new(options, &Device::Cpu).unwrap();
            trainer.join(Box::new(exchange)).map_err(|error| error.to_string())
        });
        joined.into_iter().find_map(Result::err)
    };
    let model = |model: ModelOptions| TrainerOptions { model, ..options() };
    for (options, ranks, why) in [
        (options(), 3, "power of two"),
        (options(), 16, "8 at most"),
        (model(WalkOptions::default().into()), 2, "no embeddings"),
        (model(TgatOptions::default().into()), 2, "several layers"),
        (TrainerOptions { gradient_delay_batches: 3, ..options() }, 2, "gradient_delay_batches"),
    ] {
        let error = join(options, ranks).unwrap();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(join(model(WalkOptions::default().into()), 1), None);
    assert_eq!(join(options(), 2), None);
}

#[test]
fn ranks_in_other_states_are_found_out() {
    let joined = as_ranks(2, |exchange| {
        let seed = exchange.rank() as u64;
        let mut trainer = Trainer::new(TrainerOptions { seed, ..options() }, &Device::Cpu).unwrap();
        trainer.join(Box::new(exchange))
    });
    for (own, joined) in joined.into_iter().enumerate() {
        assert!(
            matches!(joined, Err(RanksError::Apart { rank, other, step: 0 }) if rank == own && other == 1 - own)
        );
    }
    // A setting that the state does not show, and a state that the weights do not.
    let other = |rate: f32, remembers: bool| {
        let stream = Stream::new((BEFORE + STEP) / BATCH);
        let joined = as_ranks(2, |exchange| {
            let differs = exchange.rank() == 1;
            let learning_rate = options().learning_rate * if differs { rate } else { 1.0 };
            let mut trainer =
                Trainer::new(TrainerOptions { learning_rate, ..options() }, &Device::Cpu).unwrap();
            let events = if differs && remembers { 1..20 } else { 0..20 };
            step_by(&stream, &mut trainer, events, (false, StepMode::StateOnly));
            trainer.join(Box::new(exchange)).is_ok()
        });
        assert!(joined[0] == joined[1]);
        joined[0]
    };
    assert!(other(1.0, false), "they are alike");
    assert!(!other(1.01, false) && !other(1.0, true));
}

#[test]
fn ranks_that_learn_other_things_are_found_out_after_a_hundred_steps() {
    let stream = Stream::new((BEFORE + STEP) / BATCH);
    let ended = as_ranks(2, |exchange| {
        let differs = exchange.rank() == 1;
        let mut trainer = Trainer::new(options(), &Device::Cpu).unwrap();
        trainer.join(Box::new(exchange)).unwrap();
        (0..200).find_map(|number| {
            // Batches of one part, which ranks do not exchange anything for.
            let events = if differs && number == 7 { 50..150 } else { 0..100 };
            try_step(&stream, &mut trainer, events, (false, StepMode::Train)).err()
        })
    });
    for ended in ended {
        assert!(matches!(ended, Some(TrainError::Ranks(RanksError::Apart { step: 100, .. }))), "{ended:?}");
    }
}

#[test]
fn all_ranks_get_what_the_first_has() {
    for bytes in [Vec::new(), (0..100_u8).collect::<Vec<_>>()] {
        let got = as_ranks(4, |mut exchange| {
            let mut held = if exchange.rank() == 0 { bytes.clone() } else { vec![7; 3] };
            broadcast(&mut exchange, &mut held).unwrap();
            held
        });
        assert!(got.iter().all(|got| *got == bytes));
    }
}

/// `mpiexec` as `scripts/setup.sh test` installs it.
pub fn mpiexec() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tools/mpi/bin/mpiexec");
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("EVERGRAPH_MPI").is_none(), "EVERGRAPH_MPI requires {}", path.display());
    skipped("Open MPI (scripts/setup.sh test installs it)");
    None
}

/// `evergraph bench cluster` on the events of `folder`, with small rows.
fn cluster(folder: &Path, mpiexec: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    let fixed = ["bench", "cluster", "--events", "events.csv", "--row-dimension", "4", "--json", "-"];
    command.args(fixed).arg("--mpiexec").arg(mpiexec).args(args).current_dir(folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn events(folder: &Path, count: u64) {
    let rows: String = (0..count).map(|i| format!("u{},i{},{i}\n", i % 251, i * i % 97)).collect();
    std::fs::write(folder.join("events.csv"), format!("src,dst,ts\n{rows}")).unwrap();
}

fn figures(output: &Output) -> Value {
    let Output { status, stdout, stderr } = output;
    assert!(status.success(), "{}", String::from_utf8_lossy(stderr));
    serde_json::from_slice(stdout).unwrap()
}

#[test]
fn processes_of_open_mpi_learn_the_same_bits() {
    let (folder, Some(mpiexec)) = (tempfile::tempdir().unwrap(), mpiexec()) else { return };
    events(folder.path(), 3_000);
    for args in [
        &["--ranks", "1,2,4", "--model", "tgn"][..],
        &["--ranks", "2,1", "--model", "graphmixer"],
        &["--ranks", "2,1", "--lead"],
    ] {
        let figures = figures(&cluster(folder.path(), &mpiexec, args).output().unwrap());
        assert_eq!(
            (&figures["bench"], &figures["bits_equal"]),
            (&"cluster".into(), &true.into()),
            "{figures}"
        );
        assert_eq!((&figures["events"], &figures["batches"]), (&3_000.into(), &5.into()));
        let ranks = figures["ranks"].as_array().unwrap();
        let number =
            |ranks: &Value, key: &str| ranks[key].as_f64().unwrap_or_else(|| panic!("{key}: {ranks}"));
        let counts: Vec<_> = ranks.iter().map(|ranks| number(ranks, "ranks")).collect();
        assert!(counts == [1.0, 2.0, 4.0] || counts == [1.0, 2.0], "in order: {counts:?}");
        for ranks in ranks {
            let shared = number(ranks, "ranks") > 1.0;
            assert_eq!(number(ranks, "bytes_exchanged") > 1e5, shared, "{ranks}");
            assert_eq!(number(ranks, "unique_row_overlap_ratio") > 0.0, shared, "{ranks}");
            // Four rounds of a step, and some to compare what was learned.
            assert!(number(ranks, "rounds_per_batch") >= 4.0 || !shared, "{ranks}");
            for key in ["cpu_seconds", "events_per_second", "alone_cpu_seconds", "modeled_speedup"] {
                assert!(number(ranks, key) > 0.0, "{key}: {ranks}");
            }
        }
    }
}

#[test]
fn a_cluster_that_cannot_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path(), 300);
    let errors = |mpiexec: &Path, args: &[&str]| {
        let output = cluster(folder.path(), mpiexec, args).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (args, why) in [
        (&["--ranks", "3"][..], "powers of two"),
        (&["--ranks", "16"], "8 at most"),
        (&["--ranks", "1,2", "--checkpoint", "kept"], "one number of ranks"),
        (&["--ranks", "2"], "install Open MPI"),
    ] {
        let said = errors(Path::new("no-mpiexec-here"), args);
        assert!(said.contains(why), "{said}");
    }
    let Some(mpiexec) = mpiexec() else { return };
    let said = errors(&mpiexec, &["--ranks", "2", "--model", "walk"]);
    assert!(said.contains("no embeddings"), "{said}");
    // What one rank cannot do is named at once, and the others end with it.
    let begun = Instant::now();
    let said = errors(&mpiexec, &["--ranks", "2", "--checkpoint", "no-folder/kept", "--batch-events", "10"]);
    assert!(said.contains("no-folder/kept") && !said.contains("they go on"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(50), "before the deadline of those that wait");
}

#[test]
fn ranks_end_where_one_of_them_is_stuck() {
    let (folder, Some(mpiexec)) = (tempfile::tempdir().unwrap(), mpiexec()) else { return };
    let path = folder.path().canonicalize().unwrap();
    events(folder.path(), 200_000);
    let args = ["--ranks", "2", "--deadline-seconds", "5"];
    let mut running = cluster(folder.path(), &mpiexec, &args).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while ranks_of(&path).len() < 2 {
        assert!(Instant::now() < deadline && running.try_wait().unwrap().is_none(), "there are no ranks");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Behind the start, of which the deadline is not.
    std::thread::sleep(Duration::from_secs(3));
    let stuck = rustix::process::Pid::from_raw(ranks_of(&path)[1]).unwrap();
    rustix::process::kill_process(stuck, rustix::process::Signal::STOP).unwrap();
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("one is lost or stuck"), "{said}");
    assert!(ranks_of(&path).is_empty(), "no rank is left");
}

/// Processes that train as ranks on the events of `folder`.
fn ranks_of(folder: &Path) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let is_rank = |pid: &i32| {
        let of = std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|of| of == folder);
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        // `mpiexec` has these arguments, too.
        let program = Path::new(env!("CARGO_BIN_EXE_evergraph")).canonicalize().unwrap();
        let is_program = line.split('\0').next().is_some_and(|named| Path::new(named) == program);
        of && is_program && line.contains("--rank-of")
    };
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_rank).collect()
}

/// Kills one of four ranks so many times, at random moments, and compares what they learn in the end.
fn kill_ranks(kills: usize) {
    let (folder, Some(mpiexec)) = (tempfile::tempdir().unwrap(), mpiexec()) else { return };
    let folder_path = folder.path().canonicalize().unwrap();
    events(folder.path(), 24_000);
    let kept = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let args = ["--ranks", "4", "--checkpoint-batches", "3", "--restarts", "1000", "--checkpoint"];
    let unbroken = cluster(folder.path(), &mpiexec, &[&args[..], &["unbroken"]].concat()).output().unwrap();
    figures(&unbroken);
    let (mut killed, mut resumed) = (0, 0);
    for _ in 0..10 * kills {
        if killed == kills {
            break;
        }
        _ = std::fs::remove_file(folder.path().join("broken"));
        let mut command = cluster(folder.path(), &mpiexec, &[&args[..], &["broken"]].concat());
        let said = std::fs::File::create(folder.path().join("said")).unwrap();
        let mut running = command.stderr(said).stdout(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        let ended = loop {
            if let Some(ended) = running.try_wait().unwrap() {
                break ended;
            }
            assert!(begun.elapsed() < Duration::from_secs(600), "the ranks come to no end");
            // Anything from the start of the ranks to their end.
            let wait = evergraph::device::rng::below(
                [7, killed as u64, begun.elapsed().as_nanos() as u64, 0],
                2_500,
            );
            std::thread::sleep(Duration::from_millis(u64::from(wait)));
            let ranks = ranks_of(&folder_path);
            if killed < kills && ranks.len() == 4 {
                let pid = rustix::process::Pid::from_raw(ranks[killed % 4]).unwrap();
                killed +=
                    usize::from(rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok());
            }
        };
        let said = String::from_utf8_lossy(&kept("said")).into_owned();
        assert!(ended.success(), "{ended} after {killed} kills: {said}");
        assert!(kept("broken") == kept("unbroken"), "other bits after {killed} kills");
        resumed += said.matches("they go on from the checkpoint").count();
    }
    assert!(killed == kills && resumed > 0, "{killed} kills, and {resumed} times ranks went on");
}

/// `RANK_KILLS` is how many, 3 if it is not set.
#[test]
fn a_killed_rank_changes_nothing_of_what_is_learned() {
    let kills = std::env::var("RANK_KILLS").ok().and_then(|kills| kills.parse().ok());
    kill_ranks(kills.unwrap_or(3));
}
