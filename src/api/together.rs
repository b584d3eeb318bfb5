//! Questions that come at the same time are computed together.
//!
//! A pass of the model over one node costs nearly as much as over several: buffers, the tape, each weight read
//! once. So a question does not get a thread of its own but a place in a queue. Where fewer workers are at it than
//! are allowed, one more is sent to the blocking pool; it takes what waits, as far as it goes together, answers it
//! in one pass, and comes back until nothing waits. A question that is alone is computed at once; the busier the
//! daemon, the larger the passes. Nobody ever waits for company.
//!
//! What goes together is about the same time, and has [`ITEMS_MAX`] items at most unless one question alone has
//! more, so that a small question behind a large one waits for that one only.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::envelope::Permit;
use super::error::ApiError;
use crate::event::EventTime;
use crate::serving::{QueryError, UnknownKeys};

/// Items of several questions that are computed together, at most.
const ITEMS_MAX: usize = 256;

/// A question: its items, and what is answered about those that are unknown.
pub(super) type Asked<'a, I> = (&'a [I], UnknownKeys);

/// Answers questions about one time in one pass, one answer each, in order.
type Pass<I, A> = Box<dyn Fn(&[Asked<'_, I>], Option<EventTime>) -> Result<Vec<A>, QueryError> + Send + Sync>;

/// Questions of one kind on their way to an answer.
pub(super) struct Together<I, A> {
    pass: Pass<I, A>,
    workers_max: usize,
    queue: Mutex<Queue<I, A>>,
}

struct Queue<I, A> {
    waiting: VecDeque<Question<I, A>>,
    workers: usize,
}

struct Question<I, A> {
    items: Vec<I>,
    unknown: UnknownKeys,
    at: Option<EventTime>,
    /// Kept until the work ends, which may be after the client went away.
    _permit: Permit,
    answer: oneshot::Sender<Result<(Vec<I>, A), QueryError>>,
}

impl<I: Send + 'static, A: Send + 'static> Together<I, A> {
    /// Nothing is asked yet. At most `workers_max` passes run at a time, one at least.
    pub(super) fn new(
        workers_max: usize,
        pass: impl Fn(&[Asked<'_, I>], Option<EventTime>) -> Result<Vec<A>, QueryError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), workers: 0 });
        Arc::new(Self { pass: Box::new(pass), workers_max: workers_max.max(1), queue })
    }

    /// The answer about `items`, and the items. After `limit` the client is told that it took too long; work
    /// that has begun goes on and keeps its permit.
    pub(super) async fn ask(
        self: &Arc<Self>,
        items: Vec<I>,
        unknown: UnknownKeys,
        at: Option<EventTime>,
        (permit, limit): (Permit, Duration),
    ) -> Result<(Vec<I>, A), ApiError> {
        let (answer, answered) = oneshot::channel();
        if self.enqueue(Question { items, unknown, at, _permit: permit, answer }) {
            let this = Arc::clone(self);
            tokio::task::spawn_blocking(move || this.work());
        }
        match tokio::time::timeout(limit, answered).await {
            Err(_) => Err(ApiError::WorkTimeout { seconds: limit.as_secs_f64() }),
            Ok(Ok(answer)) => Ok(answer?),
            Ok(Err(_)) => {
                tracing::error!("the work for a request ended early");
                Err(ApiError::Internal)
            }
        }
    }

    /// Whether a worker is to be sent; it is counted already.
    fn enqueue(&self, question: Question<I, A>) -> bool {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(question);
        let send = queue.workers < self.workers_max;
        queue.workers += usize::from(send);
        send
    }

    /// The next questions that go together. `None` when nothing waits: whoever asked has been counted out then.
    fn next(&self) -> Option<Vec<Question<I, A>>> {
        let mut queue = self.queue.lock();
        let mut taken = Vec::new();
        let (mut at, mut items) = (None, 0);
        while let Some(next) = queue.waiting.pop_front() {
            if next.answer.is_closed() {
                continue;
            }
            items += next.items.len();
            if !taken.is_empty() && (at != next.at || items > ITEMS_MAX) {
                queue.waiting.push_front(next);
                break;
            }
            at = next.at;
            taken.push(next);
        }
        queue.workers -= usize::from(taken.is_empty());
        (!taken.is_empty()).then_some(taken)
    }

    /// Answers until nothing waits.
    fn work(&self) {
        while let Some(questions) = self.next() {
            self.answer(questions);
        }
    }

    /// Answers questions in one pass. If that fails, each is answered by itself, so that nobody hears of what is
    /// wrong with somebody else's.
    fn answer(&self, questions: Vec<Question<I, A>>) {
        let at = questions.first().and_then(|question| question.at);
        let asked: Vec<_> =
            questions.iter().map(|question| (&question.items[..], question.unknown)).collect();
        let answers = catch_unwind(AssertUnwindSafe(|| (self.pass)(&asked, at)));
        if !matches!(answers, Ok(Ok(_))) && questions.len() > 1 {
            questions.into_iter().for_each(|question| self.answer(vec![question]));
            return;
        }
        // After a panic, which the panic hook has written to the log, the question is dropped without an answer.
        let Ok(answers) = answers else { return };
        let mut answers = answers.map(Vec::into_iter);
        for Question { items, answer, .. } in questions {
            let told = match &mut answers {
                Ok(answers) => answers.next().map(|one| Ok((items, one))),
                Err(error) => Some(Err(error.clone())),
            };
            // Who does not listen any more has gone.
            told.map(|told| answer.send(told));
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, bounded};
    use tokio::sync::Semaphore;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn permit() -> Permit {
        Permit::new(Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap())
    }

    /// Answers items with themselves, once nobody holds the other end of `gate`, and tells how many questions each pass
    /// had; 0 is a failure, 13 a panic.
    fn echo(gate: Receiver<()>, passes: Arc<Mutex<Vec<usize>>>) -> Arc<Together<usize, Vec<usize>>> {
        Together::new(1, move |asked, _| {
            let _ = gate.recv();
            passes.lock().push(asked.len());
            let all = || asked.iter().flat_map(|(items, _)| items.iter());
            assert!(all().all(|&item| item != 13), "on purpose");
            if all().any(|&item| item == 0) {
                return Err(QueryError::NotReady);
            }
            Ok(asked.iter().map(|(items, _)| items.to_vec()).collect())
        })
    }

    /// Waits until no worker is counted, which is soon after the last answer.
    async fn counted_out(together: &Together<usize, Vec<usize>>) {
        let deadline = std::time::Instant::now() + LONG;
        while together.queue.lock().workers > 0 {
            assert!(std::time::Instant::now() < deadline, "a worker is left");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_waits_is_answered_in_one_pass_each_its_own() {
        let ((shut, gate), passes) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        let together = echo(gate, passes.clone());
        let ask = |items: Vec<usize>, at: Option<i64>| {
            let together = together.clone();
            tokio::spawn(async move {
                together.ask(items, UnknownKeys::Told, at.map(EventTime), (permit(), LONG)).await
            })
        };
        let waiting = |count| {
            let together = together.clone();
            async move {
                let there = || {
                    let queue = together.queue.lock();
                    queue.workers == 1 && queue.waiting.len() == count
                };
                while !there() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let mut asked = vec![ask(vec![1], None)];
        waiting(0).await;
        let more = [(vec![2], None), (vec![3, 4], None), (vec![5], Some(7)), (vec![6; 200], Some(7))];
        let more = more.into_iter().chain([(vec![8; 300], Some(7))]);
        for (count, (items, at)) in more.clone().enumerate() {
            asked.push(ask(items, at));
            waiting(count + 1).await;
        }
        drop(shut);
        let expected = [vec![1]].into_iter().chain(more.map(|(items, _)| items));
        for (one, expected) in asked.into_iter().zip(expected) {
            assert_eq!(one.await.unwrap().unwrap(), (expected.clone(), expected));
        }
        assert_eq!(*passes.lock(), [1, 2, 2, 1], "by time and by size");
        counted_out(&together).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_failure_or_a_panic_is_told_and_the_next_question_is_answered() {
        let together = echo(bounded(0).1, Arc::default());
        let ask = |item: usize| together.ask(vec![item], UnknownKeys::Told, None, (permit(), LONG));
        assert!(matches!(ask(0).await, Err(ApiError::NoModel(_))));
        assert!(matches!(ask(13).await, Err(ApiError::Internal)));
        assert_eq!(ask(5).await.unwrap().1, [5]);
        counted_out(&together).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_wrong_with_one_question_is_told_to_that_one() {
        let ((shut, gate), passes) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        let together = echo(gate, passes.clone());
        let mut asked = Vec::new();
        for (waiting, item) in [1, 2, 0, 13, 3].into_iter().enumerate() {
            let this = together.clone();
            let question =
                async move { this.ask(vec![item], UnknownKeys::Told, None, (permit(), LONG)).await };
            asked.push(tokio::spawn(question));
            // The first is taken and held at the gate.
            let there = || {
                let queue = together.queue.lock();
                queue.workers == 1 && queue.waiting.len() == waiting
            };
            while !there() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        drop(shut);
        let mut answered = Vec::new();
        for one in asked {
            answered.push(one.await.unwrap());
        }
        let [one, two, failed, panicked, three] = &answered[..] else { panic!("five were asked") };
        assert!([one, two, three].iter().all(|answer| answer.is_ok()), "{answered:?}");
        assert!(matches!(failed, Err(ApiError::NoModel(_))), "{failed:?}");
        assert!(matches!(panicked, Err(ApiError::Internal)), "{panicked:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_waits_for_too_long_is_told_and_the_work_goes_on() {
        let ((shut, gate), passes) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        let together = echo(gate, passes.clone());
        let room = Arc::new(Semaphore::new(1));
        let permit = Permit::new(room.clone().try_acquire_owned().unwrap());
        let late = together.ask(vec![1], UnknownKeys::Told, None, (permit, Duration::from_millis(5))).await;
        assert!(matches!(late, Err(ApiError::WorkTimeout { .. })));
        assert_eq!(room.available_permits(), 0, "the work is going on");
        drop(shut);
        let _room = tokio::time::timeout(LONG, room.acquire()).await.unwrap().unwrap();
        assert_eq!(*passes.lock(), [1]);
    }
}
