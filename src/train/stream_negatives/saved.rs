//! The destinations as bytes, for a checkpoint: in their order, which draws depend on.

use std::io::{Error, ErrorKind, Read, Result, Write};

use super::{MetDestinations, NEVER, StreamNegatives};
use crate::event::NodeId;
use crate::model::tables::{read_nodes, read_table, read_u64, write_nodes, write_table, write_u64};

impl StreamNegatives {
    /// Writes the destinations.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        write_table(out, self.known.nodes())?;
        write_table(out, &self.recent.iter().copied().collect::<Vec<NodeId>>())?;
        write_u64(out, u64::from(self.last.is_some()))?;
        self.last.iter().try_for_each(|last| write_nodes(out, last, |edge| edge))?;
        write_u64(out, self.unsearched as u64)?;
        write_u64(out, u64::from(self.met.is_some()))?;
        self.met.as_ref().map_or(Ok(()), |met| met.write(out))
    }

    /// Takes over what [`write`](Self::write) wrote, into new ones that age if those did.
    ///
    /// # Errors
    /// The bytes are damaged, or of others.
    pub fn read(&mut self, input: &mut impl Read) -> Result<()> {
        let malformed = || Error::new(ErrorKind::InvalidData, "saved destinations are malformed");
        self.known.extend(&read_table::<NodeId>(input)?);
        self.recent = read_table::<NodeId>(input)?.into();
        let ages = read_u64(input)? == 1;
        if ages != self.last.is_some() {
            return Err(malformed());
        }
        self.last = if ages { Some(read_nodes(input, NEVER)?) } else { None };
        self.unsearched = usize::try_from(read_u64(input)?).map_err(|_| malformed())?;
        self.met = if read_u64(input)? == 1 { Some(MetDestinations::read(input)?) } else { None };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EdgeId;

    #[test]
    fn destinations_come_back_in_their_order_and_age_on() {
        for ages in [false, true] {
            let new = || if ages { StreamNegatives::aging() } else { StreamNegatives::new() };
            let mut negatives = new();
            negatives.keep_met(ages);
            let observe = |negatives: &mut StreamNegatives, from: u64, to: u64| {
                for i in from..to {
                    let (src, dst) = ([NodeId((i % 7) as u32)], [NodeId((i * i % 997) as u32)]);
                    negatives.observe(&src, &dst, &[EdgeId(i)]);
                    negatives.keep_from(EdgeId(i.saturating_sub(300)));
                }
            };
            observe(&mut negatives, 0, 3_000);
            negatives.remove(&[negatives.known().nodes()[3]]);
            let (mut bytes, mut loaded) = (Vec::new(), new());
            negatives.write(&mut bytes).unwrap();
            loaded.read(&mut &bytes[..]).unwrap();
            for both in [&mut negatives, &mut loaded] {
                observe(both, 3_000, 4_000);
            }
            assert_eq!(loaded.known().nodes(), negatives.known().nodes());
            let (mut one, mut other) = (Vec::new(), Vec::new());
            let (src, dst) = ([NodeId(1); 50], [NodeId(4); 50]);
            negatives.draw([1, 2], 0.5, (&src, &dst), &mut one);
            loaded.draw([1, 2], 0.5, (&src, &dst), &mut other);
            assert_eq!(one, other);
            for end in 0..bytes.len() {
                assert!(new().read(&mut &bytes[..end]).is_err(), "{end}");
            }
        }
    }
}
