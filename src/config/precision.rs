//! In which numbers the CPU multiplies matrices to train, and the live index keeps its rows: settings, and flags of
//! commands.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::matmul::{self, Precision};
use crate::serving::IndexPrecision;

/// In which numbers the CPU multiplies matrices in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum MatmulPrecision {
    /// bf16 on a CPU that is faster in it, otherwise f32.
    Auto,
    /// f32.
    F32,
    /// Factors in bf16 and sums in f32, gradients of parts of a batch in bf16: on Intel's CPUs with AMX and AMD's with
    /// AVX512-BF16.
    Bf16,
}

impl MatmulPrecision {
    /// What stands in the way of it on this CPU.
    #[must_use]
    pub fn objection(self) -> Option<&'static str> {
        let lacks = self == Self::Bf16 && !matmul::has_bf16();
        lacks.then_some(
            "must be auto or f32: bf16 needs AMX that this process may use, or a CPU of AMD with AVX512-BF16",
        )
    }

    /// What a command computes in.
    ///
    /// # Errors
    /// This CPU does not have it.
    pub fn checked(self) -> Result<Precision, PrecisionError> {
        self.objection().map_or_else(|| Ok(self.into()), |why| Err(PrecisionError(why)))
    }
}

impl From<MatmulPrecision> for Precision {
    fn from(precision: MatmulPrecision) -> Self {
        match precision {
            MatmulPrecision::Auto => Self::fastest(),
            MatmulPrecision::F32 => Self::F32,
            MatmulPrecision::Bf16 => Self::Bf16,
        }
    }
}

/// In which numbers the live index keeps its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RowPrecision {
    /// 32-bit floats.
    F32,
    /// 8-bit integers, and a scale for each row.
    Int8,
}

impl From<RowPrecision> for IndexPrecision {
    fn from(precision: RowPrecision) -> Self {
        match precision {
            RowPrecision::F32 => Self::F32,
            RowPrecision::Int8 => Self::Int8,
        }
    }
}

/// A precision that this CPU does not have, of a command's flag.
#[derive(Debug, Error)]
#[error("--matmul-precision bf16 {0}")]
pub struct PrecisionError(&'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_for_cpus_that_have_it_and_auto_for_all() {
        let has = matmul::has_bf16();
        assert_eq!(MatmulPrecision::Bf16.checked().is_ok(), has);
        assert_eq!(MatmulPrecision::F32.checked().ok(), Some(Precision::F32));
        let auto = MatmulPrecision::Auto.checked().ok();
        assert_eq!(auto, Some(if has { Precision::Bf16 } else { Precision::F32 }));
        if !has {
            let error = MatmulPrecision::Bf16.checked().map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains("--matmul-precision bf16 must be auto or f32")));
        }
    }
}
