//! Ports for servers that are started later, by other programs, and so cannot ask the kernel for one themselves.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// From here up to the ports that the kernel gives to connections and to who asks for any: of those, a connection of another
/// test may take one before the server does.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// A port that nothing listens on now, and that is handed out once.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes begin at places of their own.
    let begin = std::process::id().wrapping_mul(97);
    loop {
        let number = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed).into()) % u32::from(COUNT);
        let port = FIRST + number as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
