//! The bank as bytes, for a checkpoint, where its rule is that of a stream.

use std::io::{Error, ErrorKind, Read, Result, Write};

use super::{BankRule, EdgeBank};
use crate::event::EventTime;
use crate::model::tables::{read_table, read_u64, write_table, write_u64};

/// Times that are looked up at a time.
const AT_ONCE: usize = 1 << 14;

impl EdgeBank {
    /// Writes the pairs of a bank that is [`Unlimited`](BankRule::Unlimited) or [`Retained`](BankRule::Retained).
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        write_u64(out, u64::from(self.rule == BankRule::Retained))?;
        write_table(out, &[self.evicted.cast_signed(), self.window_start.0])?;
        write_u64(out, self.prune_at as u64)?;
        // Sorted: equal banks are equal bytes.
        let mut seen: Vec<u64> = self.seen.iter().copied().collect();
        seen.sort_unstable();
        write_table(out, &seen)?;
        let mut pairs: Vec<u64> = self.latest_of.keys().copied().collect();
        pairs.sort_unstable();
        write_table(out, &pairs)?;
        write_u64(out, pairs.len() as u64)?;
        for pairs in pairs.chunks(AT_ONCE) {
            let latest: Vec<EventTime> = pairs.iter().map(|pair| self.latest_of[pair]).collect();
            out.write_all(bytemuck::cast_slice(&latest))?;
        }
        Ok(())
    }

    /// Takes over what [`write`](Self::write) wrote, into a new bank with the same rule.
    ///
    /// # Errors
    /// The bytes are damaged, or of a bank with another rule.
    pub fn read(&mut self, input: &mut impl Read) -> Result<()> {
        let malformed = || Error::new(ErrorKind::InvalidData, "a saved EdgeBank is malformed");
        let is_retained = read_u64(input)? == 1;
        let is_ours = matches!(self.rule, BankRule::Unlimited | BankRule::Retained);
        if !is_ours || is_retained != (self.rule == BankRule::Retained) {
            return Err(malformed());
        }
        let [evicted, window_start] = read_table::<i64>(input)?[..] else { return Err(malformed()) };
        (self.evicted, self.window_start) = (evicted.cast_unsigned(), EventTime(window_start));
        self.prune_at = usize::try_from(read_u64(input)?).map_err(|_| malformed())?;
        self.seen = read_table::<u64>(input)?.into_iter().collect();
        let (pairs, latest): (Vec<u64>, Vec<EventTime>) = (read_table(input)?, read_table(input)?);
        if pairs.len() != latest.len() {
            return Err(malformed());
        }
        self.latest_of = pairs.into_iter().zip(latest).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::NodeId;

    #[test]
    fn a_bank_comes_back_and_goes_on_alike() {
        for rule in [BankRule::Unlimited, BankRule::Retained] {
            let mut bank = EdgeBank::new(rule).limited(500);
            let observe = |bank: &mut EdgeBank, from: u32, to: u32| {
                for i in from..to {
                    bank.observe(&[NodeId(i % 61)], &[NodeId(i * 7 % 89)], &[EventTime(i64::from(i))]);
                    bank.keep_since(EventTime(i64::from(i) - 4_000));
                }
            };
            observe(&mut bank, 0, 9_000);
            let mut bytes = Vec::new();
            bank.write(&mut bytes).unwrap();
            let mut loaded = EdgeBank::new(rule).limited(500);
            loaded.read(&mut &bytes[..]).unwrap();
            observe(&mut bank, 9_000, 12_000);
            observe(&mut loaded, 9_000, 12_000);
            assert_eq!((loaded.pairs(), loaded.evicted()), (bank.pairs(), bank.evicted()));
            for pair in (0..61).flat_map(|src| (0..89).map(move |dst| (NodeId(src), NodeId(dst)))) {
                assert_eq!(loaded.score(pair.0, pair.1), bank.score(pair.0, pair.1), "{pair:?}");
            }
            for end in 0..bytes.len() {
                assert!(EdgeBank::new(rule).read(&mut &bytes[..end]).is_err(), "{end}");
            }
            assert!(EdgeBank::new(BankRule::Window).read(&mut &bytes[..]).is_err());
        }
    }
}
