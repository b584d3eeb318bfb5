//! Batches concurrent queries into shared passes of the model.
//!
//! A pass over one node costs nearly as much as over several: buffers, the tape, each weight read once. So a query
//! gets no thread of its own but a place in a queue. While fewer workers run than are allowed, a query starts one more
//! on the blocking pool. A worker takes as many waiting queries as fit into one pass, sends their responses, and
//! repeats until the queue is empty. A query that is alone is computed at once; higher load makes larger passes. No
//! query is delayed to fill a batch.
//!
//! A batch contains queries about one time. It has at most [`ITEMS_MAX`] items unless its only query has more, so a
//! small query waits for at most one large query before it.

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

/// Most items in a batch of several queries.
const ITEMS_MAX: usize = 256;

/// A query: its items, and how unknown keys are handled.
pub(super) type Query<'a, I> = (&'a [I], UnknownKeys);

/// Computes queries about one time in one pass; one response each, in order.
type Pass<I, A> = Box<dyn Fn(&[Query<'_, I>], Option<EventTime>) -> Result<Vec<A>, QueryError> + Send + Sync>;

/// The queue and the workers of one kind of query.
pub(super) struct Batcher<I, A> {
    pass: Pass<I, A>,
    workers_max: usize,
    queue: Mutex<Queue<I, A>>,
}

struct Queue<I, A> {
    waiting: VecDeque<Request<I, A>>,
    workers: usize,
}

struct Request<I, A> {
    items: Vec<I>,
    unknown: UnknownKeys,
    at: Option<EventTime>,
    /// Kept until the work ends, which may be after the client went away.
    _permit: Permit,
    reply: oneshot::Sender<Result<(Vec<I>, A), QueryError>>,
}

impl<I: Send + 'static, A: Send + 'static> Batcher<I, A> {
    /// An empty queue. At most `workers_max` passes run at a time, and at least one.
    pub(super) fn new(
        workers_max: usize,
        pass: impl Fn(&[Query<'_, I>], Option<EventTime>) -> Result<Vec<A>, QueryError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), workers: 0 });
        Arc::new(Self { pass: Box::new(pass), workers_max: workers_max.max(1), queue })
    }

    /// The response for `items`, and the items. After `limit` the client gets a timeout error; work that has begun
    /// continues and keeps its permit.
    pub(super) async fn submit(
        self: &Arc<Self>,
        items: Vec<I>,
        unknown: UnknownKeys,
        at: Option<EventTime>,
        (permit, limit): (Permit, Duration),
    ) -> Result<(Vec<I>, A), ApiError> {
        let (reply, received) = oneshot::channel();
        if self.enqueue(Request { items, unknown, at, _permit: permit, reply }) {
            let this = Arc::clone(self);
            tokio::task::spawn_blocking(move || this.work());
        }
        match tokio::time::timeout(limit, received).await {
            Err(_) => Err(ApiError::WorkTimeout { seconds: limit.as_secs_f64() }),
            Ok(Ok(reply)) => Ok(reply?),
            Ok(Err(_)) => {
                tracing::error!("the work for a request ended early");
                Err(ApiError::Internal)
            }
        }
    }

    /// Whether to start a worker, which is counted already.
    fn enqueue(&self, request: Request<I, A>) -> bool {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(request);
        let start = queue.workers < self.workers_max;
        queue.workers += usize::from(start);
        start
    }

    /// The next batch; `None` if the queue is empty, and then the calling worker no longer counts.
    fn next_batch(&self) -> Option<Vec<Request<I, A>>> {
        let mut queue = self.queue.lock();
        let mut taken = Vec::new();
        let (mut at, mut items) = (None, 0);
        while let Some(next) = queue.waiting.pop_front() {
            if next.reply.is_closed() {
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

    /// Computes batches until the queue is empty.
    fn work(&self) {
        while let Some(requests) = self.next_batch() {
            self.compute(requests);
        }
    }

    /// Computes requests in one pass. If that fails, each is computed alone, so that a request fails only by its own
    /// fault.
    fn compute(&self, requests: Vec<Request<I, A>>) {
        let at = requests.first().and_then(|request| request.at);
        let queries: Vec<_> = requests.iter().map(|request| (&request.items[..], request.unknown)).collect();
        let responses = catch_unwind(AssertUnwindSafe(|| (self.pass)(&queries, at)));
        if !matches!(responses, Ok(Ok(_))) && requests.len() > 1 {
            requests.into_iter().for_each(|request| self.compute(vec![request]));
            return;
        }
        // After a panic, which the panic hook has logged, the request is dropped without a response.
        let Ok(responses) = responses else { return };
        let mut responses = responses.map(Vec::into_iter);
        for Request { items, reply, .. } in requests {
            let outcome = match &mut responses {
                Ok(responses) => responses.next().map(|one| Ok((items, one))),
                Err(error) => Some(Err(error.clone())),
            };
            // Sending fails only if the client has gone.
            outcome.map(|outcome| reply.send(outcome));
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

    /// Returns the items unchanged once the other end of `gate` is dropped, and records the number of queries per pass;
    /// item 0 is a failure, 13 a panic.
    fn echo(gate: Receiver<()>, passes: Arc<Mutex<Vec<usize>>>) -> Arc<Batcher<usize, Vec<usize>>> {
        Batcher::new(1, move |queries, _| {
            let _ = gate.recv();
            passes.lock().push(queries.len());
            let all = || queries.iter().flat_map(|(items, _)| items.iter());
            assert!(all().all(|&item| item != 13), "on purpose");
            if all().any(|&item| item == 0) {
                return Err(QueryError::NotReady);
            }
            Ok(queries.iter().map(|(items, _)| items.to_vec()).collect())
        })
    }

    /// Waits until no worker is counted, which is soon after the last response.
    async fn wait_for_idle(batcher: &Batcher<usize, Vec<usize>>) {
        let deadline = std::time::Instant::now() + LONG;
        while batcher.queue.lock().workers > 0 {
            assert!(std::time::Instant::now() < deadline, "a worker is left");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn waiting_queries_share_a_pass_and_get_their_own_responses() {
        let ((shut, gate), passes) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        let batcher = echo(gate, passes.clone());
        let submit = |items: Vec<usize>, at: Option<i64>| {
            let batcher = batcher.clone();
            tokio::spawn(async move {
                batcher.submit(items, UnknownKeys::Error, at.map(EventTime), (permit(), LONG)).await
            })
        };
        let waiting = |count| {
            let batcher = batcher.clone();
            async move {
                let there = || {
                    let queue = batcher.queue.lock();
                    queue.workers == 1 && queue.waiting.len() == count
                };
                while !there() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let mut queries = vec![submit(vec![1], None)];
        waiting(0).await;
        let more = [(vec![2], None), (vec![3, 4], None), (vec![5], Some(7)), (vec![6; 200], Some(7))];
        let more = more.into_iter().chain([(vec![8; 300], Some(7))]);
        for (count, (items, at)) in more.clone().enumerate() {
            queries.push(submit(items, at));
            waiting(count + 1).await;
        }
        drop(shut);
        let expected = [vec![1]].into_iter().chain(more.map(|(items, _)| items));
        for (one, expected) in queries.into_iter().zip(expected) {
            assert_eq!(one.await.unwrap().unwrap(), (expected.clone(), expected));
        }
        assert_eq!(*passes.lock(), [1, 2, 2, 1], "by time and by size");
        wait_for_idle(&batcher).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_failure_or_a_panic_is_reported_and_the_next_query_succeeds() {
        let batcher = echo(bounded(0).1, Arc::default());
        let submit = |item: usize| batcher.submit(vec![item], UnknownKeys::Error, None, (permit(), LONG));
        assert!(matches!(submit(0).await, Err(ApiError::NoModel(_))));
        assert!(matches!(submit(13).await, Err(ApiError::Internal)));
        assert_eq!(submit(5).await.unwrap().1, [5]);
        wait_for_idle(&batcher).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_fault_is_reported_to_its_own_query_only() {
        let ((shut, gate), passes) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        let batcher = echo(gate, passes.clone());
        let mut queries = Vec::new();
        for (waiting, item) in [1, 2, 0, 13, 3].into_iter().enumerate() {
            let this = batcher.clone();
            let query =
                async move { this.submit(vec![item], UnknownKeys::Error, None, (permit(), LONG)).await };
            queries.push(tokio::spawn(query));
            // The first is taken and held at the gate.
            let there = || {
                let queue = batcher.queue.lock();
                queue.workers == 1 && queue.waiting.len() == waiting
            };
            while !there() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        drop(shut);
        let mut received = Vec::new();
        for one in queries {
            received.push(one.await.unwrap());
        }
        let [one, two, failed, panicked, three] = &received[..] else { panic!("five were sent") };
        assert!([one, two, three].iter().all(|result| result.is_ok()), "{received:?}");
        assert!(matches!(failed, Err(ApiError::NoModel(_))), "{failed:?}");
        assert!(matches!(panicked, Err(ApiError::Internal)), "{panicked:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_query_times_out_and_its_work_continues() {
        let ((shut, gate), passes) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        let batcher = echo(gate, passes.clone());
        let room = Arc::new(Semaphore::new(1));
        let permit = Permit::new(room.clone().try_acquire_owned().unwrap());
        let late =
            batcher.submit(vec![1], UnknownKeys::Error, None, (permit, Duration::from_millis(5))).await;
        assert!(matches!(late, Err(ApiError::WorkTimeout { .. })));
        assert_eq!(room.available_permits(), 0, "the work continues");
        drop(shut);
        let _room = tokio::time::timeout(LONG, room.acquire()).await.unwrap().unwrap();
        assert_eq!(*passes.lock(), [1]);
    }
}
