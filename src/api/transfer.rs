//! What transfers may hold: bytes in memory, of all clients and of one, and the time that slow clients get.
//!
//! A small transfer costs nothing here: it fits into the buffers of its connection, and connections are counted. A
//! large one has an [`Entry`] in the [`Ledger`] of its direction for as long as its bytes are in memory. One client
//! gets at most half, so that it cannot keep all others out. Knows nothing of HTTP.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Transfers up to this size are held by the buffers of their connection and are not counted.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// Who transfers: the holder of a key, or without one whoever has an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// Name of the key.
    Key(Arc<str>),
    /// The address, of IPv6 the network: one host has many addresses.
    Address(IpAddr),
}

impl Client {
    /// The client at an address.
    pub(super) fn at(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// What is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The share of this client.
    Client,
    /// The room for all.
    All,
}

/// The large transfers of one direction.
pub(super) struct Ledger {
    bytes_max: usize,
    late_per_client_max: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    bytes: usize,
    clients: HashMap<Client, Share>,
}

#[derive(Default)]
struct Share {
    entries: usize,
    bytes: usize,
    late: usize,
}

impl Ledger {
    /// Room for `bytes_max` bytes, and for `late_per_client_max` transfers of a client that keep it waiting.
    pub(super) fn new(bytes_max: usize, late_per_client_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, late_per_client_max, used: Mutex::default() })
    }

    /// An entry without bytes.
    pub(super) fn enter(self: &Arc<Self>, client: Client) -> Entry {
        self.used.lock().clients.entry(client.clone()).or_default().entries += 1;
        Entry { ledger: Arc::clone(self), client, bytes: 0, late: false }
    }

    /// Bytes of all entries.
    pub(super) fn bytes(&self) -> usize {
        self.used.lock().bytes
    }
}

/// What one transfer holds, until it is dropped.
pub(super) struct Entry {
    ledger: Arc<Ledger>,
    client: Client,
    bytes: usize,
    late: bool,
}

impl Entry {
    /// Holds `bytes` instead of what it held. Fails if there is no room for more; a transfer that is alone always
    /// has room.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), Full> {
        let mut used = self.ledger.used.lock();
        let others = used.bytes - self.bytes;
        let Used { bytes: all, clients } = &mut *used;
        let share = clients.entry(self.client.clone()).or_default();
        let own = share.bytes - self.bytes;
        if bytes > self.bytes {
            if own > 0 && own.saturating_add(bytes) > self.ledger.bytes_max / 2 {
                return Err(Full::Client);
            }
            if others > 0 && others.saturating_add(bytes) > self.ledger.bytes_max {
                return Err(Full::All);
            }
        }
        *all = others + bytes;
        share.bytes = own + bytes;
        self.bytes = bytes;
        Ok(())
    }

    /// Holds `bytes`, within the limits or not: what was done is sent. What comes later finds less room.
    pub(super) fn hold_done(&mut self, bytes: usize) {
        let mut used = self.ledger.used.lock();
        used.bytes = (used.bytes - self.bytes).saturating_add(bytes);
        if let Some(share) = used.clients.get_mut(&self.client) {
            share.bytes = (share.bytes - self.bytes).saturating_add(bytes);
        }
        self.bytes = bytes;
    }

    /// What it holds.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts it among those of its client that keep waiting. Fails if these are too many.
    pub(super) fn is_late(&mut self) -> Result<(), Full> {
        let mut used = self.ledger.used.lock();
        let share = used.clients.entry(self.client.clone()).or_default();
        if share.late >= self.ledger.late_per_client_max {
            return Err(Full::Client);
        }
        share.late += 1;
        self.late = true;
        Ok(())
    }

    /// It no longer keeps waiting.
    pub(super) fn has_arrived(&mut self) {
        if std::mem::take(&mut self.late)
            && let Some(share) = self.ledger.used.lock().clients.get_mut(&self.client)
        {
            share.late -= 1;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.has_arrived();
        let mut used = self.ledger.used.lock();
        used.bytes -= self.bytes;
        let Some(share) = used.clients.get_mut(&self.client) else { return };
        share.bytes -= self.bytes;
        share.entries -= 1;
        if share.entries == 0 {
            used.clients.remove(&self.client);
        }
    }
}

/// The slowest that a transfer may be: on average a rate, with as much delay as `grace` at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// Bytes per second.
    pub(super) rate: u32,
    /// The longest pause, and the most time that fast bytes earn for slow ones.
    pub(super) grace: Duration,
}

/// The time that a transfer may still wait for its other side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    pace: Pace,
    left: Duration,
}

impl Credit {
    /// That of a transfer that begins.
    pub(super) fn new(pace: Pace) -> Self {
        Self { pace, left: pace.grace }
    }

    /// The longest wait for the next byte.
    pub(super) fn left(&self) -> Duration {
        self.left
    }

    /// After a wait, `bytes` moved.
    pub(super) fn moved(&mut self, waited: Duration, bytes: usize) {
        let earned = bytes as f64 / f64::from(self.pace.rate.max(1));
        let earned = Duration::try_from_secs_f64(earned).unwrap_or(self.pace.grace);
        self.left = self.left.saturating_sub(waited).saturating_add(earned).min(self.pace.grace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Client {
        Client::Key(name.into())
    }

    #[test]
    fn all_bytes_are_bounded_and_a_client_gets_half() {
        let ledger = Ledger::new(100, 2);
        let (mut a, mut b, mut c) =
            (ledger.enter(client("a")), ledger.enter(client("a")), ledger.enter(client("b")));
        assert_eq!(a.hold(40), Ok(()));
        assert_eq!(b.hold(11), Err(Full::Client));
        assert_eq!(b.hold(10), Ok(()));
        assert_eq!(c.hold(51), Err(Full::All));
        assert_eq!(c.hold(50), Ok(()));
        assert_eq!(c.hold(20), Ok(()), "it can shrink");
        assert_eq!(ledger.bytes(), 70);
        drop(a);
        assert_eq!((ledger.bytes(), b.hold(80)), (30, Ok(())), "its only transfer has what is left");
        drop((b, c));
        let mut alone = ledger.enter(client("a"));
        assert_eq!(alone.hold(1000), Ok(()), "what is alone always has room");
        drop(alone);
        assert_eq!(ledger.bytes(), 0);
        assert!(ledger.used.lock().clients.is_empty());
    }

    #[test]
    fn what_was_done_counts_past_the_limits_and_keeps_others_from_beginning() {
        let ledger = Ledger::new(100, 2);
        let (mut a, mut b) = (ledger.enter(client("a")), ledger.enter(client("b")));
        assert_eq!(a.hold(40), Ok(()));
        a.hold_done(400);
        assert_eq!((ledger.bytes(), b.hold(1)), (400, Err(Full::All)));
        a.hold_done(50);
        assert_eq!((b.hold(50), ledger.bytes()), (Ok(()), 100));
        drop((a, b));
        assert_eq!(ledger.bytes(), 0);
        assert!(ledger.used.lock().clients.is_empty());
    }

    #[test]
    fn a_client_keeps_a_number_of_transfers_waiting() {
        let ledger = Ledger::new(100, 2);
        let mut entries: Vec<_> = (0..3).map(|_| ledger.enter(client("a"))).collect();
        let late: Vec<_> = entries.iter_mut().map(Entry::is_late).collect();
        assert_eq!(late, [Ok(()), Ok(()), Err(Full::Client)]);
        assert_eq!(ledger.enter(client("b")).is_late(), Ok(()));
        entries[0].has_arrived();
        entries[0].has_arrived();
        assert_eq!(entries[2].is_late(), Ok(()));
        drop(entries);
        assert!(ledger.used.lock().clients.is_empty());
    }

    #[test]
    fn clients_without_a_key_are_hosts() {
        let at = |address: &str| Client::at(address.parse().unwrap());
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
        assert_eq!(at("2001:db8::1"), at("2001:db8::2"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
    }

    #[test]
    fn fast_bytes_earn_time_up_to_the_grace() {
        let seconds = Duration::from_secs;
        let mut credit = Credit::new(Pace { rate: 100, grace: seconds(5) });
        credit.moved(seconds(3), 100);
        assert_eq!(credit.left(), seconds(3));
        credit.moved(Duration::ZERO, 1 << 40);
        assert_eq!(credit.left(), seconds(5));
        let mut waits = 0;
        while credit.left() >= seconds(1) {
            credit.moved(seconds(1), 50);
            waits += 1;
        }
        assert_eq!(waits, 9, "half the rate uses up the grace in twice its time");
    }
}
