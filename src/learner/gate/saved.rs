//! A gate in a checkpoint: all that it needs to go on as if it had never stopped.
//!
//! ```text
//! magic | doubts | began | decided | judged | numbers of the evidence
//!   | published | previous | anchor | since when it is that
//! ```
//! A version is its number and its parameters. An anchor that is the published version has no parameters of its own.

use std::io::{Error, ErrorKind, Read, Write};

use super::{Anchor, Device, Evidence, Gate, GateOptions, LoadError, ModelOptions, Weights};
use crate::model::tables;
use crate::nn::Parameters;

/// First bytes of a saved gate.
pub(in crate::learner) const MAGIC: u64 = u64::from_le_bytes(*b"EVGGATE2");

impl Gate {
    /// Writes what [`load`](Self::load) reads.
    ///
    /// # Errors
    /// What `out` reports.
    pub(in crate::learner) fn save(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (judged, numbers) = self.evidence.to_numbers();
        for number in [MAGIC, self.doubts, self.began, self.decided, judged] {
            tables::write_u64(out, number)?;
        }
        tables::write_table(out, &numbers)?;
        let versions = self.versions();
        let own_anchor = self.anchor().filter(|_| versions.anchor != versions.published);
        let numbers = [versions.published, versions.kept, versions.anchor];
        for (version, weights) in numbers.into_iter().zip([self.published(), self.kept(), own_anchor]) {
            let bytes = weights.map(|weights| weights.parameters().to_bytes()).transpose();
            tables::write_u64(out, version.unwrap_or_default())?;
            tables::write_table(out, &bytes.map_err(Error::other)?.unwrap_or_default())?;
        }
        tables::write_u64(out, self.anchor.as_ref().map_or(0, |anchor| anchor.since))
    }

    /// A gate from what [`save`](Self::save) wrote behind [`MAGIC`], with these options.
    ///
    /// # Errors
    /// The bytes are damaged, or hold weights of another model.
    pub(in crate::learner) fn load(
        options: GateOptions,
        model: ModelOptions,
        device: &Device,
        input: &mut impl Read,
    ) -> Result<Self, LoadError> {
        let mut gate = Self::new(options);
        gate.doubts = tables::read_u64(input)?;
        (gate.began, gate.decided) = (tables::read_u64(input)?, tables::read_u64(input)?);
        let judged = tables::read_u64(input)?;
        let numbers: Vec<f64> = tables::read_table(input)?;
        let damaged = || Error::new(ErrorKind::InvalidData, "the evidence of the gate is damaged");
        gate.evidence = Evidence::from_numbers(judged, &numbers).ok_or_else(damaged)?;
        let mut version = || -> Result<(u64, Option<Weights>), LoadError> {
            let version = tables::read_u64(input)?;
            let bytes: Vec<u8> = tables::read_table(input)?;
            if bytes.is_empty() {
                return Ok((version, None));
            }
            let weights = Weights::new(model, &Parameters::from_bytes(device, &bytes)?, version)?;
            Ok((version, Some(weights)))
        };
        (_, gate.published) = version()?;
        (_, gate.kept) = version()?;
        let (number, own) = version()?;
        let since = tables::read_u64(input)?;
        let published = || gate.published.clone().filter(|weights| weights.version == number);
        gate.anchor = own.or_else(published).map(|weights| Anchor { weights, since });
        Ok(gate)
    }
}
