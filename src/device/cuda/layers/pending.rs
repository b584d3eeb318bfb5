//! wip
#![allow(missing_docs, unused_variables, clippy::all)]
use super::Place;
use crate::device::cuda::{CudaBuffer, CudaError};
fn no() -> Result<(), CudaError> { Err(CudaError::Arguments{operation:"wip", mismatch:String::new()}) }
pub fn clear_rows(p: Place<'_>, rows:&CudaBuffer<u32>, count: usize, columns: usize, d:&mut CudaBuffer<f32>) -> Result<(), CudaError> { no() }
pub fn put_rows(p: Place<'_>, rows:&CudaBuffer<u32>, count: usize, columns: usize, from:&CudaBuffer<f32>, into:&mut CudaBuffer<f32>) -> Result<(), CudaError> { no() }
pub fn mixing_fits(slots: usize, hidden: usize) -> Result<(), String> { if slots<=32 && hidden<=32 {Ok(())} else {Err(format!("{slots} slots"))} }
