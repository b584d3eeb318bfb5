//! A trainer as bytes: weights, optimizer, memory, pending messages and the step's number, so
//! that a restored trainer goes on bit for bit as if it had never stopped.
//!
//! Layout, little-endian: magic; the model's name; its options as 64-bit floats; seed; number of steps; weights and
//! optimizer as safetensors, each behind its length; state. Nothing is checksummed here: whoever stores
//! the bytes does that.

use std::io::{Error, Read, Write};

use thiserror::Error;

use super::trainer::{Trainer, TrainerOptions, new_adam};
use crate::device::Device;
use crate::model::{Model, ModelError, ModelState, StateError, TICKS_PER_SECOND, tables};
use crate::nn::{Parameters, StorageError};

/// First bytes of a saved trainer.
const MAGIC: u64 = u64::from_le_bytes(*b"EVGTRNR2");

/// Most characters of a foreign model's name that are reported.
const NAME_CHARS_MAX: usize = 40;

/// A saved trainer that cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The bytes end early or cannot be read.
    #[error("the saved trainer cannot be read: {0}")]
    Read(#[from] Error),
    /// The bytes are something else.
    #[error("these bytes are no saved trainer (they begin with {found:#018x}, expected {MAGIC:#018x})")]
    Magic {
        /// The first eight bytes.
        found: u64,
    },
    /// Another model was saved.
    #[error("the saved model is {saved}, this one is {wanted}; restore the model or start a new one")]
    Model {
        /// Name of the saved one.
        saved: String,
        /// Name of this one.
        wanted: &'static str,
    },
    /// The model was saved with another option.
    #[error(
        "the model was saved with {option} = {saved}, this one has {wanted}; restore the option or start a \
         new model"
    )]
    Option {
        /// Name of the option.
        option: &'static str,
        /// As it was saved.
        saved: f64,
        /// As it is now.
        wanted: f64,
    },
    /// The model was trained on event times in another unit.
    #[error(
        "the model was trained with {saved} units of event time to a second, this one has {wanted}; set \
         model.time_unit to what it was trained with (seconds if 1), or start a new model"
    )]
    TimeUnit {
        /// Units to a second, as it was saved.
        saved: f64,
        /// As it is now.
        wanted: f64,
    },
    /// Weights or optimizer are damaged.
    #[error("the saved weights or optimizer: {0}")]
    Storage(#[from] StorageError),
    /// The weights are of another model.
    #[error("the saved weights: {0}")]
    Weights(#[from] ModelError),
    /// Memory or messages are damaged.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Everything that a trainer needs to go on, as of one moment.
pub struct SavedTrainer {
    /// What stands before the state.
    head: Vec<u8>,
    state: ModelState,
}

impl SavedTrainer {
    /// Writes what [`Trainer::load`] reads.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        out.write_all(&self.head)?;
        self.state.write(out)
    }
}

impl Trainer {
    /// Writes everything that a later [`Self::load`] needs to go on bit for bit.
    ///
    /// # Errors
    /// What `out` reports, or the GPU's, if one computes.
    pub fn save(&self, out: &mut impl Write) -> std::io::Result<()> {
        self.save_head(out)?;
        self.state.write(out)
    }

    /// The same, to be written while the trainer goes on. Takes as long as copying the weights: the tables by node are
    /// shared, and copied page by page where they change.
    ///
    /// # Errors
    /// The GPU's, if one computes.
    pub fn capture(&self) -> std::io::Result<SavedTrainer> {
        let mut head = Vec::new();
        self.save_head(&mut head)?;
        Ok(SavedTrainer { head, state: self.state.clone() })
    }

    fn save_head(&self, out: &mut impl Write) -> std::io::Result<()> {
        self.expect_none_begun();
        tables::write_u64(out, MAGIC)?;
        tables::write_table(out, self.options.model.name().as_bytes())?;
        let mut fields = self.options.model.as_fields();
        // Of times in seconds the unit is not written, as before there was one.
        fields.pop_if(|(option, ticks)| *option == TICKS_PER_SECOND && *ticks == 0.0);
        let fields: Vec<f64> = fields.into_iter().map(|(_, value)| value).collect();
        tables::write_table(out, &fields)?;
        tables::write_u64(out, self.options.seed)?;
        tables::write_u64(out, self.steps)?;
        let parameters = &self.model.parameters;
        let weights = parameters.to_bytes().map_err(Error::other)?;
        let moments = self.adam.to_bytes(parameters).map_err(Error::other)?;
        self.device.check().map_err(Error::other)?;
        tables::write_table(out, &weights)?;
        tables::write_table(out, &moments)
    }

    /// A trainer from saved bytes. The model's shape must be that of `options`; the learning rate and its
    /// schedule are taken from `options`; how far the schedule is and the seed from the bytes, because the saved run
    /// goes on.
    ///
    /// # Errors
    /// The bytes are damaged, are no trainer, or hold a model of another shape.
    pub fn load(options: TrainerOptions, device: &Device, input: &mut impl Read) -> Result<Self, LoadError> {
        let found = tables::read_u64(input)?;
        if found != MAGIC {
            return Err(LoadError::Magic { found });
        }
        let saved: Vec<u8> = tables::read_table(input)?;
        let wanted = options.model.name();
        if saved != wanted.as_bytes() {
            let saved = String::from_utf8_lossy(&saved).chars().take(NAME_CHARS_MAX).collect();
            return Err(LoadError::Model { saved, wanted });
        }
        let saved: Vec<f64> = tables::read_table(input)?;
        for (i, (option, wanted)) in options.model.as_fields().into_iter().enumerate() {
            let saved = saved.get(i).copied().unwrap_or_default();
            // A dropout rate may change between runs; a shape may not.
            if saved == wanted || option == "dropout" {
                continue;
            }
            return Err(match option {
                TICKS_PER_SECOND => LoadError::TimeUnit { saved: saved.max(1.0), wanted: wanted.max(1.0) },
                _ => LoadError::Option { option, saved, wanted },
            });
        }
        let options = TrainerOptions { seed: tables::read_u64(input)?, ..options };
        let steps = tables::read_u64(input)?;
        let weights: Vec<u8> = tables::read_table(input)?;
        options.model.check_device(device)?;
        let parameters = Parameters::from_bytes(&Device::Cpu, &weights)?;
        let here = Model::with_parameters(options.model, &parameters)?;
        let (model, known) = Trainer::placing(here, device, steps);
        let mut adam = new_adam(&options, device, &model);
        let moments: Vec<u8> = tables::read_table(input)?;
        adam.load_bytes(&model.parameters, &moments)?;
        let mut state = ModelState::read(input, &model.needs())?;
        if options.gradient_delay_batches == 0 || *device != Device::Cpu {
            state.deferred.clear();
        }
        Ok(Self::from_parts(options, device, (model, known), adam, state, steps))
    }
}
