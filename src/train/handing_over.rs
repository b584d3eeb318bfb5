//! What the first rank has learned, on its way to those that follow it: pieces of one length, of which neither end
//! holds more than one, each behind a round with its length; none is the end. Both ends digest what passes, and
//! compare.

use std::io::{Error, Read, Result, Write};

use xxhash_rust::xxh3::Xxh3;

use crate::device::exchange::{Exchange, ExchangeError, Message, to_others};

/// Bytes of a piece.
const PIECE: usize = 64 << 20;

/// Sends to all others.
pub(super) struct Sender<'a> {
    exchange: &'a mut dyn Exchange,
    /// Called while others are waited for.
    alive: &'a dyn Fn(),
    piece: Vec<u8>,
    digest: Xxh3,
}

impl<'a> Sender<'a> {
    pub fn new(exchange: &'a mut dyn Exchange, alive: &'a dyn Fn()) -> Self {
        Self { exchange, alive, piece: Vec::new(), digest: Xxh3::new() }
    }

    /// Sends what is left; returns the digest of all.
    pub fn end(mut self) -> Result<u64> {
        self.flush_piece()?;
        self.send(&0_u64.to_le_bytes())?;
        Ok(self.digest.digest())
    }

    fn flush_piece(&mut self) -> Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece);
        self.digest.update(&piece);
        self.send(&(piece.len() as u64).to_le_bytes())?;
        self.send(&piece)?;
        self.piece = piece;
        self.piece.clear();
        Ok(())
    }

    fn send(&mut self, sent: &[u8]) -> Result<()> {
        let mut messages = to_others(std::iter::repeat_n(sent, self.exchange.ranks() - 1));
        self.exchange.patient_round(&mut messages, self.alive).map_err(Error::other)
    }
}

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let taken = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == PIECE {
            self.flush_piece()?;
        }
        Ok(taken)
    }

    /// Pieces are sent when they are full.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Receives from the first rank.
pub(super) struct Receiver<'a> {
    exchange: &'a mut dyn Exchange,
    piece: Vec<u8>,
    read: usize,
    is_over: bool,
    digest: Xxh3,
}

impl<'a> Receiver<'a> {
    pub fn new(exchange: &'a mut dyn Exchange) -> Self {
        Self { exchange, piece: Vec::new(), read: 0, is_over: false, digest: Xxh3::new() }
    }

    /// Passes over what is left; returns the digest of all.
    pub fn end(mut self) -> Result<u64> {
        std::io::copy(&mut self, &mut std::io::sink())?;
        Ok(self.digest.digest())
    }

    fn next_piece(&mut self) -> Result<()> {
        let mut length = [0; 8];
        self.receive(&mut length)?;
        let bytes = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        if bytes > PIECE {
            return Err(Error::other(ExchangeError::TooLong { bytes }));
        }
        let mut piece = std::mem::take(&mut self.piece);
        piece.resize(bytes, 0);
        if bytes > 0 {
            self.receive(&mut piece)?;
        }
        self.digest.update(&piece);
        (self.piece, self.read, self.is_over) = (piece, 0, bytes == 0);
        Ok(())
    }

    fn receive(&mut self, received: &mut [u8]) -> Result<()> {
        let message = Message { rank: 0, sent: &[], received };
        self.exchange.patient_round(&mut [message], &|| ()).map_err(Error::other)
    }
}

impl Read for Receiver<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.read == self.piece.len() && !self.is_over {
            self.next_piece()?;
        }
        let left = &self.piece[self.read..];
        let taken = left.len().min(out.len());
        out[..taken].copy_from_slice(&left[..taken]);
        self.read += taken;
        Ok(taken)
    }
}
