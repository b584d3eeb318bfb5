//! Batches concurrent queries into shared passes of the model, and computes large ones in pieces.
//!
//! A pass over one node costs nearly as much as over several: buffers, the tape, each weight read once. So a query
//! gets no thread of its own but a place in a queue. While fewer workers run than are allowed, a query starts one more
//! on the blocking pool. A worker takes as many waiting queries as fit into one pass, sends their responses, and
//! repeats until the queue is empty. A query that is alone is computed at once; higher load makes larger passes. No
//! query is delayed to fill a batch.
//!
//! A batch contains queries about one time, and has at most [`ITEMS_MAX`] items. A query with more is computed in
//! pieces of so many, all at one [moment](Passes::begin), by the [threads for large requests](Bulk): so a small query
//! waits for none of them, and large ones take turns.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::bulk::Bulk;
use super::envelope::{Permit, within};
use super::error::ApiError;
use crate::event::EventTime;
use crate::serving::{
    EmbeddingResponse, QueryError, ScoreResponse, SimilarResponse, TopResponse, UnknownKeys,
};

/// Most items in a batch of several queries, and in a piece of a large one.
const ITEMS_MAX: usize = 256;

/// A query: its items, and how unknown keys are handled.
pub(super) type Query<'a, I> = (&'a [I], UnknownKeys);

/// A response that can be made in pieces.
pub(super) trait Response: Send + 'static {
    /// Adds the response for the items that follow.
    fn append(&mut self, rest: Self);
}

impl Response for EmbeddingResponse {
    fn append(&mut self, rest: Self) {
        self.embeddings.extend(rest.embeddings);
    }
}

impl Response for ScoreResponse {
    fn append(&mut self, rest: Self) {
        self.scores.extend(rest.scores);
    }
}

impl Response for TopResponse {
    fn append(&mut self, rest: Self) {
        self.results.extend(rest.results);
        self.coverage = self.coverage.and(rest.coverage);
    }
}

impl Response for SimilarResponse {
    fn append(&mut self, rest: Self) {
        self.results.extend(rest.results);
        self.coverage = self.coverage.and(rest.coverage);
    }
}

/// How queries are computed.
pub(super) trait Passes: Send + Sync + 'static {
    /// What is asked about.
    type Item: Send + Sync + 'static;
    /// What is returned for a query.
    type Response: Response;
    /// What a query sees from its begin to its end.
    type Moment: Send + Sync + 'static;

    /// How many simple items an item counts as; the same for all of one query.
    fn weight(_item: &Self::Item) -> usize {
        1
    }

    /// The begin of queries about a time.
    fn begin(&self, at: Option<EventTime>) -> Result<Self::Moment, QueryError>;

    /// Computes queries at one moment in one pass; one response each, in order.
    fn pass(
        &self,
        queries: &[Query<'_, Self::Item>],
        moment: &Self::Moment,
    ) -> Result<Vec<Self::Response>, QueryError>;
}

/// The queue and the workers of one kind of query.
pub(super) struct Batcher<P: Passes> {
    passes: P,
    workers_max: usize,
    bulk: Arc<Bulk>,
    queue: Mutex<Queue<P>>,
}

struct Queue<P: Passes> {
    waiting: VecDeque<Request<P>>,
    workers: usize,
}

type Reply<P> = oneshot::Sender<Result<(Vec<<P as Passes>::Item>, <P as Passes>::Response), QueryError>>;

struct Request<P: Passes> {
    items: Vec<P::Item>,
    unknown: UnknownKeys,
    at: Option<EventTime>,
    /// Kept until the work ends, which may be after the client went away.
    _permit: Permit,
    reply: Reply<P>,
}

impl<P: Passes> Request<P> {
    fn weight(&self) -> usize {
        self.items.iter().map(P::weight).sum()
    }

    /// Items of a piece.
    fn piece_items(&self) -> usize {
        let weight = self.items.first().map_or(1, P::weight);
        (ITEMS_MAX / weight.max(1)).max(1)
    }
}

impl<P: Passes> Batcher<P> {
    /// An empty queue. At most `workers_max` passes over small queries run at a time, at least one.
    pub(super) fn new(workers_max: usize, bulk: Arc<Bulk>, passes: P) -> Arc<Self> {
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), workers: 0 });
        Arc::new(Self { passes, workers_max: workers_max.max(1), bulk, queue })
    }

    /// The response for `items`, and the items. After `limit` the client gets a timeout error; a pass that has begun
    /// continues and keeps its permit.
    pub(super) async fn submit(
        self: &Arc<Self>,
        items: Vec<P::Item>,
        unknown: UnknownKeys,
        at: Option<EventTime>,
        (permit, limit): (Permit, Duration),
    ) -> Result<(Vec<P::Item>, P::Response), ApiError> {
        let (reply, received) = oneshot::channel();
        let request = Request { items, unknown, at, _permit: permit, reply };
        let this = Arc::clone(self);
        if request.weight() > ITEMS_MAX {
            self.bulk.spawn(move || this.begin(request));
        } else if self.enqueue(request) {
            tokio::task::spawn_blocking(move || this.work());
        }
        Ok(within(limit, received).await??)
    }

    /// Whether to start a worker, which is counted already.
    fn enqueue(&self, request: Request<P>) -> bool {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(request);
        let start = queue.workers < self.workers_max;
        queue.workers += usize::from(start);
        start
    }

    /// What goes into the calling worker's next pass. If nothing is left, the worker no longer counts.
    fn next_batch(&self) -> Vec<Request<P>> {
        let mut queue = self.queue.lock();
        let mut taken = Vec::new();
        let (mut at, mut items) = (None, 0);
        while let Some(next) = queue.waiting.pop_front() {
            if next.reply.is_closed() {
                continue;
            }
            items += next.weight();
            if !taken.is_empty() && (at != next.at || items > ITEMS_MAX) {
                queue.waiting.push_front(next);
                break;
            }
            at = next.at;
            taken.push(next);
        }
        queue.workers -= usize::from(taken.is_empty());
        taken
    }

    /// Works until nothing is left to do.
    fn work(&self) {
        loop {
            let batch = self.next_batch();
            if batch.is_empty() {
                return;
            }
            self.compute(batch);
        }
    }

    /// Computes requests in one pass. If that fails, each is computed alone, so that a request fails only by its own
    /// fault.
    fn compute(&self, requests: Vec<Request<P>>) {
        let at = requests.first().and_then(|request| request.at);
        let queries: Vec<_> = requests.iter().map(|request| (&request.items[..], request.unknown)).collect();
        let pass = || self.passes.pass(&queries, &self.passes.begin(at)?);
        let responses = catch_unwind(AssertUnwindSafe(pass));
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

    /// Begins a large query: as many of its pieces are at work at a time as there are threads.
    fn begin(self: Arc<Self>, request: Request<P>) {
        if request.reply.is_closed() {
            return;
        }
        let moment = match self.passes.begin(request.at) {
            Ok(moment) => moment,
            Err(error) => return drop(request.reply.send(Err(error))),
        };
        let large = Arc::new(Large::new(request, moment));
        let count = self.bulk.threads().min(large.pieces());
        // Every handle ends in `piece`, so that one of them sends the response.
        for large in std::iter::repeat_n(large, count) {
            let this = Arc::clone(&self);
            self.bulk.spawn(move || this.piece(large));
        }
    }

    /// Computes the next piece of a large query, and queues the one after it. The last to end sends the response.
    fn piece(self: Arc<Self>, large: Arc<Large<P>>) {
        if let Some((number, items)) = large.next() {
            let pass = || self.passes.pass(&[(items, large.request.unknown)], &large.moment);
            // The panic hook has logged a panic.
            match catch_unwind(AssertUnwindSafe(pass)) {
                Ok(Ok(found)) => large.progress.lock().parts[number] = found.into_iter().next(),
                Ok(Err(error)) => large.end(Some(error)),
                Err(_) => large.end(None),
            }
            let this = Arc::clone(&self);
            return self.bulk.spawn(move || this.piece(large));
        }
        if let Some(large) = Arc::into_inner(large) {
            large.finish();
        }
    }
}

/// A query that counts as more than [`ITEMS_MAX`] items.
struct Large<P: Passes> {
    request: Request<P>,
    moment: P::Moment,
    progress: Mutex<Parts<P::Response>>,
}

/// How far a large query is.
struct Parts<R> {
    /// Pieces that were begun.
    begun: usize,
    /// The response for each piece.
    parts: Vec<Option<R>>,
    /// Whether no further piece is to begin.
    has_ended: bool,
    failed: Option<QueryError>,
}

impl<P: Passes> Large<P> {
    fn new(request: Request<P>, moment: P::Moment) -> Self {
        let parts = (0..request.items.len().div_ceil(request.piece_items())).map(|_| None).collect();
        Self {
            request,
            moment,
            progress: Mutex::new(Parts { begun: 0, parts, has_ended: false, failed: None }),
        }
    }

    fn pieces(&self) -> usize {
        self.progress.lock().parts.len()
    }

    /// The number and the items of the next piece; `None` after the last, after a failure, and if the client has gone.
    fn next(&self) -> Option<(usize, &[P::Item])> {
        let mut progress = self.progress.lock();
        if progress.has_ended || self.request.reply.is_closed() {
            return None;
        }
        let piece = self.request.items.chunks(self.request.piece_items()).nth(progress.begun)?;
        progress.begun += 1;
        Some((progress.begun - 1, piece))
    }

    /// Begins no further piece, because of an error or a panic.
    fn end(&self, error: Option<QueryError>) {
        let mut progress = self.progress.lock();
        progress.has_ended = true;
        progress.failed = progress.failed.take().or(error);
    }

    /// Sends the response. After a panic in a piece there is none: the request is dropped without one.
    fn finish(self) {
        let Request { items, reply, .. } = self.request;
        let Parts { parts, failed, .. } = self.progress.into_inner();
        let whole = parts.into_iter().reduce(|whole, part| {
            let mut whole = whole?;
            whole.append(part?);
            Some(whole)
        });
        let outcome = match failed {
            Some(error) => Some(Err(error)),
            None => whole.flatten().map(|response| Ok((items, response))),
        };
        outcome.map(|outcome| reply.send(outcome));
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

    impl Response for Vec<usize> {
        fn append(&mut self, rest: Self) {
            self.extend(rest);
        }
    }

    /// Returns the items unchanged once the other end of `gate` is dropped, and records the number of queries per pass;
    /// item 0 is a failure, 13 a panic.
    struct Echo {
        gate: Receiver<()>,
        passes: Arc<Mutex<Vec<usize>>>,
    }

    impl Passes for Echo {
        type Item = usize;
        type Response = Vec<usize>;
        type Moment = Option<EventTime>;

        fn begin(&self, at: Option<EventTime>) -> Result<Self::Moment, QueryError> {
            Ok(at)
        }

        fn pass(
            &self,
            queries: &[Query<'_, usize>],
            _: &Self::Moment,
        ) -> Result<Vec<Vec<usize>>, QueryError> {
            let _ = self.gate.recv();
            self.passes.lock().push(queries.len());
            let all = || queries.iter().flat_map(|(items, _)| items.iter());
            assert!(all().all(|&item| item != 13), "on purpose");
            if all().any(|&item| item == 0) {
                return Err(QueryError::NotReady);
            }
            Ok(queries.iter().map(|(items, _)| items.to_vec()).collect())
        }
    }

    fn echo(gate: Receiver<()>, passes: Arc<Mutex<Vec<usize>>>) -> Arc<Batcher<Echo>> {
        Batcher::new(1, Bulk::with_threads(1, 0).unwrap(), Echo { gate, passes })
    }

    /// Waits until no worker is counted, which is soon after the last response.
    async fn wait_for_idle(batcher: &Batcher<Echo>) {
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
        let more = more.into_iter().chain([(vec![8; 100], Some(7))]);
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

    /// Returns the items unchanged; passes over items from [`GATED`] on wait for a token each, and are recorded by
    /// their first item when they begin.
    struct Gated {
        gate: Receiver<()>,
        begun: Arc<Mutex<Vec<usize>>>,
    }

    const GATED: usize = 100;

    impl Passes for Gated {
        type Item = usize;
        type Response = Vec<usize>;
        type Moment = ();

        fn begin(&self, _: Option<EventTime>) -> Result<(), QueryError> {
            Ok(())
        }

        fn pass(&self, queries: &[Query<'_, usize>], (): &()) -> Result<Vec<Vec<usize>>, QueryError> {
            let first = queries[0].0[0];
            if first >= GATED {
                self.begun.lock().push(first);
                let _ = self.gate.recv();
            }
            assert!(queries.iter().all(|(items, _)| !items.contains(&13)), "on purpose");
            Ok(queries.iter().map(|(items, _)| items.to_vec()).collect())
        }
    }

    type Outcome = Result<(Vec<usize>, Vec<usize>), ApiError>;

    /// Submits items on a task of its own.
    fn submit(batcher: &Arc<Batcher<Gated>>, items: Vec<usize>) -> tokio::task::JoinHandle<Outcome> {
        let batcher = batcher.clone();
        tokio::spawn(async move { batcher.submit(items, UnknownKeys::Error, None, (permit(), LONG)).await })
    }

    async fn wait_until(what: impl Fn() -> bool) {
        let deadline = std::time::Instant::now() + LONG;
        while !what() {
            assert!(std::time::Instant::now() < deadline, "it does not happen");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn small_queries_wait_for_no_large_one_and_large_ones_take_turns() {
        let ((step, gate), begun) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        let passes = Gated { gate, begun: begun.clone() };
        let batcher = Batcher::new(1, Bulk::with_threads(1, 0).unwrap(), passes);
        let [first, second]: [Vec<usize>; 2] = [(1_000..1_600).collect(), (2_000..2_300).collect()];
        let one = submit(&batcher, first.clone());
        wait_until(|| !begun.lock().is_empty()).await;
        let other = submit(&batcher, second.clone());
        assert_eq!(submit(&batcher, vec![5]).await.unwrap().unwrap().1, [5], "a large one is at the gate");
        // The other is queued by now, or soon: its turn comes after the piece that is at work.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(step);
        assert_eq!(other.await.unwrap().unwrap(), (second.clone(), second));
        assert_eq!(one.await.unwrap().unwrap(), (first.clone(), first));
        assert_eq!(*begun.lock(), [1_000, 1_256, 2_000, 1_512, 2_256]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_large_queries_on_several_threads_all_get_their_responses() {
        let passes = Gated { gate: bounded(0).1, begun: Arc::default() };
        let batcher = Batcher::new(1, Bulk::with_threads(4, 0).unwrap(), passes);
        let all: Vec<_> = (0..400).map(|i| submit(&batcher, (1_000..1_300 + i * 5).collect())).collect();
        for (i, one) in all.into_iter().enumerate() {
            let (items, response) = one.await.unwrap().unwrap_or_else(|error| panic!("query {i}: {error:?}"));
            assert_eq!((items.len(), items == response), (300 + i * 5, true));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_fault_in_a_piece_is_that_of_its_query_and_nobody_works_for_who_has_gone() {
        let ((step, gate), begun) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        let passes = Gated { gate, begun: begun.clone() };
        let batcher = Batcher::new(1, Bulk::with_threads(2, 0).unwrap(), passes);
        let room = Arc::new(Semaphore::new(1));
        let (this, held) = (batcher.clone(), Permit::new(room.clone().try_acquire_owned().unwrap()));
        let gone = tokio::spawn(async move {
            this.submit((1_000..9_000).collect(), UnknownKeys::Error, None, (held, LONG)).await
        });
        wait_until(|| begun.lock().len() == 2).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        drop(step);
        wait_until(|| room.available_permits() == 1).await;
        assert_eq!(begun.lock().len(), 2, "no further piece is begun");
        let mut wild: Vec<usize> = (1_000..9_000).collect();
        wild[300] = 13;
        assert!(matches!(submit(&batcher, wild).await.unwrap(), Err(ApiError::Internal)));
        assert_eq!(submit(&batcher, vec![1; 600]).await.unwrap().unwrap().1, vec![1; 600]);
    }
}
