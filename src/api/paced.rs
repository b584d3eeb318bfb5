//! A connection whose client has to keep reading: while bytes wait to be written, it has to take them at a [`Pace`].
//!
//! The system's time-outs see only whether a client acknowledges anything at all; one that reads a byte now and then
//! would hold its response for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::transfer::{Credit, Pace};

/// Fails a write for which the client takes too long.
pub(super) struct Paced<S> {
    stream: S,
    credit: Credit,
    /// Since when a write waits, and until when it may.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, pace: Pace) -> Self {
        Self { stream, credit: Credit::new(pace), waiting: None }
    }

    /// The outcome of a write, or the error of one that waits for too long.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        match outcome {
            Poll::Ready(outcome) => {
                let waited = self.waiting.take().map_or_else(Default::default, |(since, _)| since.elapsed());
                let moved = outcome.as_ref().map_or(0, bytes);
                if !waited.is_zero() || moved > 0 {
                    self.credit.moved(waited, moved);
                }
                Poll::Ready(outcome)
            }
            Poll::Pending => {
                let left = self.credit.left();
                let (_, late) = self.waiting.get_or_insert_with(|| {
                    let now = Instant::now();
                    (now, Box::pin(sleep_until(now + left)))
                });
                ready!(late.as_mut().poll(context));
                let why = "the client reads its response too slowly";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, outcome, |written| *written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, outcome, |written| *written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, outcome, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, outcome, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    /// Takes `bytes` each `every`.
    struct Client {
        bytes: usize,
        every: Duration,
        next: Pin<Box<Sleep>>,
    }

    impl AsyncWrite for Client {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            ready!(self.next.as_mut().poll(context));
            let every = self.every;
            self.next.as_mut().reset(Instant::now() + every);
            Poll::Ready(Ok(bytes.len().min(self.bytes)))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Writes `total` bytes to a client that takes `bytes` each 20 ms, which has to take 10,000 a second: how long that
    /// took, and the error.
    async fn write_to(bytes: usize, total: usize) -> (Duration, Option<io::ErrorKind>) {
        let every = Duration::from_millis(20);
        let client = Client { bytes, every, next: Box::pin(sleep(every)) };
        let mut paced = Paced::new(client, Pace { rate: 10_000, grace: Duration::from_secs(1) });
        let (begun, text, mut written) = (Instant::now(), vec![0; total], 0);
        while written < total {
            let rest = &text[written..];
            match std::future::poll_fn(|context| Pin::new(&mut paced).poll_write(context, rest)).await {
                Ok(count) => written += count,
                Err(error) => return (begun.elapsed(), Some(error.kind())),
            }
        }
        (begun.elapsed(), None)
    }

    #[tokio::test]
    async fn a_client_that_keeps_up_gets_all_and_one_that_does_not_is_cut() {
        let (took, error) = write_to(2_000, 200_000).await;
        assert!(error.is_none() && took > Duration::from_millis(1500), "{took:?} {error:?}");
        let (took, error) = write_to(1, 200_000).await;
        assert_eq!(error, Some(io::ErrorKind::TimedOut), "{took:?}: always something, and never enough");
        assert!(took < Duration::from_secs(15), "{took:?}");
        let (_, error) = write_to(100_000, 1).await;
        assert!(error.is_none(), "nothing else has to be written");
    }
}
