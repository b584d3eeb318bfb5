//! All-to-all between processes of one machine, through the communication layer of timely: each sends every other one so
//! many bytes, and waits for as many from each. That is one exchange of a data-parallel training step.
//!
//! ```sh
//! cargo run --release --manifest-path benches/exchange/Cargo.toml -- [PROCESSES] [BYTES] [ROUNDS]
//! ```
//! It starts the processes itself, on free ports of the loopback, and prints a line of JSON: the median and the 99th
//! percentile of the seconds of a round, over the process for which it was the longest.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Instant;

use timely_bytes::arc::Bytes;
use timely_communication::{Bytesable, Config, Pull, Push};

/// Bytes as they are.
struct Block(Vec<u8>);

impl Bytesable for Block {
    fn from_bytes(bytes: Bytes) -> Self {
        Self(bytes.to_vec())
    }

    fn length_in_bytes(&self) -> usize {
        self.0.len()
    }

    fn into_bytes<W: Write>(&self, writer: &mut W) {
        writer.write_all(&self.0).expect("a buffer in memory takes it");
    }
}

/// The seconds of each round, in one of the processes.
fn exchange(process: usize, addresses: Vec<String>, bytes: usize, rounds: usize) -> Vec<f64> {
    let count = addresses.len();
    let config = Config::Cluster { threads: 1, process, addresses, report: false, zerocopy: true };
    let workers = timely_communication::initialize(config, move |mut allocator| {
        let (mut senders, mut receiver) = allocator.allocate::<Block>(0);
        let (mut seconds, mut received) = (Vec::with_capacity(rounds), vec![0; rounds + 1]);
        for round in 0..rounds {
            let begun = Instant::now();
            for (peer, sender) in senders.iter_mut().enumerate() {
                if peer != process {
                    sender.send(Block(vec![round as u8; bytes]));
                    sender.done();
                }
            }
            while received[round] < count - 1 {
                allocator.receive();
                while let Some(block) = receiver.recv() {
                    assert_eq!(block.0.len(), bytes);
                    // Whoever is done with a round begins the next.
                    let ahead = usize::from(block.0[0].wrapping_sub(round as u8));
                    received[round + ahead] += 1;
                }
                allocator.release();
            }
            seconds.push(begun.elapsed().as_secs_f64());
        }
        seconds
    });
    let results = workers.expect("the processes find each other").join();
    let mine = results.into_iter().next().expect("there is one worker");
    mine.expect("it does not fail")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| {
        arguments.get(place).map_or(default, |text| text.parse().expect("a number"))
    };
    if arguments.first().is_some_and(|word| word == "process") {
        let addresses = arguments[4].split(',').map(str::to_owned).collect();
        for seconds in exchange(number(1, 0), addresses, number(2, 0), number(3, 0)) {
            println!("{seconds}");
        }
        return;
    }
    let (processes, bytes, rounds) = (number(0, 2), number(1, 1_400_000), number(2, 500));
    let listeners: Vec<TcpListener> =
        (0..processes).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let addresses: Vec<String> =
        listeners.iter().map(|listener| listener.local_addr().expect("an address").to_string()).collect();
    drop(listeners);
    let this = std::env::current_exe().expect("this program");
    let start = |process: usize| {
        let words = [
            "process".to_owned(),
            process.to_string(),
            bytes.to_string(),
            rounds.to_string(),
            addresses.join(","),
        ];
        Command::new(&this).args(words).stdout(Stdio::piped()).spawn().expect("a process")
    };
    let running: Vec<_> = (0..processes).map(start).collect();
    let mut longest = vec![0.0_f64; rounds];
    for process in running {
        let output = process.wait_with_output().expect("its output");
        assert!(output.status.success(), "a process failed");
        let text = String::from_utf8(output.stdout).expect("numbers");
        // The library prints a line where a connection had to be tried again.
        let found: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(found.len(), rounds, "{text}");
        longest.iter_mut().zip(found).for_each(|(longest, seconds)| *longest = longest.max(seconds));
    }
    // Connections and buffers warm up.
    let mut seconds = longest.split_off(rounds / 10);
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| seconds[((seconds.len() - 1) as f64 * share) as usize];
    println!(
        "{{\"processes\": {processes}, \"bytes\": {bytes}, \"rounds\": {}, \"median_seconds\": {:.6}, \"p99_seconds\": {:.6}}}",
        seconds.len(),
        at(0.5),
        at(0.99)
    );
}
