//! Clients that hold on to connections: some send a body a byte at a time, others take a response so. The daemon has to
//! cut them; each comes back when it was cut. A reader does not see that for as long as it has something to read, so it
//! comes back after a while, and the daemon is asked how many it has cut.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::json;

use super::{NODES, Run};

/// Between two bytes of one client.
const BEAT: Duration = Duration::from_secs(1);
/// Connections that one kind of client makes in a beat, at most.
const CONNECTS: usize = 10;
/// How long a slow reader takes bytes; the daemon has cut it long before.
const READER_LIFE: Duration = Duration::from_secs(90);
/// Nodes that a slow reader requests; their rows take several times what the buffers of a connection hold.
const READ_NODES: u32 = 400;

/// What slow clients do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Slow {
    /// Sends the body of a push.
    Writer,
    /// Takes the response to a request for embeddings.
    Reader,
}

impl Slow {
    fn connect(self, address: &str) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(BEAT))?;
        stream.set_write_timeout(Some(BEAT))?;
        let (path, media, length, body) = match self {
            Self::Writer => ("/v1/events", "application/x-ndjson", 1 << 20, String::new()),
            Self::Reader => {
                // So that the kernel does not take the response for the client.
                set_socket_recv_buffer_size(&stream, 4 << 10)?;
                let nodes: Vec<String> = (0..READ_NODES).map(|i| format!("u{}", i * 7 % NODES)).collect();
                let body = json!({ "nodes": nodes }).to_string();
                ("/v1/embeddings", "application/json", body.len(), body)
            }
        };
        let host = address;
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// One byte; whether the connection is still there.
    fn beat(self, stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        let moved = match self {
            Self::Writer => match stream.read(&mut byte) {
                // A response to half a body is the end of it.
                Ok(_) => return false,
                Err(error) if error.kind() == ErrorKind::WouldBlock => stream.write(b"\n"),
                Err(error) => Err(error),
            },
            Self::Reader => stream.read(&mut byte),
        };
        match moved {
            Ok(bytes) => bytes > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

impl Run {
    /// Keeps `count` slow clients until the run is over; how many connections the daemon cut, and how many there were at
    /// most.
    pub fn drag(&self, kind: Slow, count: usize) -> (u64, usize) {
        let (mut open, mut ended, mut most): (Vec<(TcpStream, Instant)>, u64, usize) = (Vec::new(), 0, 0);
        let mut cuts = Cuts::default();
        while !self.over.load(SeqCst) {
            std::thread::sleep(BEAT);
            let before = open.len();
            open.retain_mut(|(stream, since)| {
                kind.beat(stream) && (kind == Slow::Writer || since.elapsed() < READER_LIFE)
            });
            ended += (before - open.len()) as u64;
            let url = self.url.lock().unwrap().clone();
            let address = url.trim_start_matches("http://");
            if address.is_empty() {
                continue;
            }
            let missing = count.saturating_sub(open.len()).min(CONNECTS);
            let connect = |_| Some((kind.connect(address).ok()?, Instant::now()));
            open.extend((0..missing).filter_map(connect));
            most = most.max(open.len());
            if kind == Slow::Reader {
                cuts.count(&url);
            }
        }
        (if kind == Slow::Writer { ended } else { cuts.all }, most)
    }
}

/// Readers that the daemon has cut, over all its lives.
#[derive(Default)]
struct Cuts {
    all: u64,
    in_this_life: u64,
}

impl Cuts {
    fn count(&mut self, url: &str) {
        let response = crate::process::client().get(format!("{url}/metrics")).call();
        let Some(text) = response.ok().and_then(|mut response| response.body_mut().read_to_string().ok())
        else {
            return;
        };
        let series = "evergraph_http_refused_connections_total{reason=\"response_timeout\"} ";
        let count = text.lines().find_map(|line| line.strip_prefix(series)?.parse().ok()).unwrap_or(0);
        if count < self.in_this_life {
            self.in_this_life = 0;
        }
        self.all += count - self.in_this_life;
        self.in_this_life = count;
    }
}
