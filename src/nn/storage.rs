//! Parameters and optimizer state as safetensors bytes.
//!
//! The format keeps tensors by name; the order of [`Parameters`] is kept in its metadata under `order` (names
//! joined by line feeds). Optimizer state is `first.NAME`, `second.NAME` and the metadata `steps`. Knows no
//! files.

use std::collections::HashMap;

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};

use crate::device::Device;

use super::{Adam, Parameters, Tensor};

/// Why bytes are not the parameters or state that were expected.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Not safetensors, or damaged.
    #[error("not valid safetensors: {0}; restore the file from another checkpoint")]
    Format(#[from] SafeTensorError),
    /// An expected tensor is not there.
    #[error("tensor {name} is missing; the file was written for another model")]
    Missing {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor of another shape.
    #[error(
        "tensor {name} has shape {found:?}, expected {expected:?}; the options differ from those at saving"
    )]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape in memory.
        expected: (usize, usize),
    },
    /// A tensor that is not f32.
    #[error("tensor {name} holds {found}, expected F32")]
    Type {
        /// Name of the tensor.
        name: String,
        /// Element type in the file.
        found: String,
    },
    /// Metadata that is missing or unreadable.
    #[error("metadata {key} is missing or unreadable")]
    Metadata {
        /// Its key.
        key: &'static str,
    },
}

fn serialize<'a>(
    tensors: impl Iterator<Item = (String, &'a Tensor)>,
    metadata: HashMap<String, String>,
) -> Result<Vec<u8>, StorageError> {
    let tensors: Vec<_> = tensors.map(|(name, t)| (name, t.shape(), t.read())).collect();
    let views = tensors.iter().map(|(name, (rows, cols), values)| {
        let bytes = bytemuck::cast_slice(values);
        Ok((name.clone(), TensorView::new(Dtype::F32, vec![*rows, *cols], bytes)?))
    });
    let views: Vec<(String, TensorView<'_>)> = views.collect::<Result<_, SafeTensorError>>()?;
    Ok(safetensors::serialize(views, Some(metadata))?)
}

/// Reads a tensor of one or two dimensions.
fn read(device: &Device, name: &str, view: &TensorView<'_>) -> Result<Tensor, StorageError> {
    if view.dtype() != Dtype::F32 {
        return Err(StorageError::Type { name: name.into(), found: format!("{:?}", view.dtype()) });
    }
    let (rows, cols) = match *view.shape() {
        [cols] => (1, cols),
        [rows, cols] => (rows, cols),
        _ => {
            let found = view.shape().to_vec();
            return Err(StorageError::Shape { name: name.into(), found, expected: (0, 0) });
        }
    };
    let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    let values: Vec<f32> = view.data().as_chunks().0.iter().map(value).collect();
    Ok(Tensor::from_vec(device, rows, cols, values))
}

fn read_into(target: &mut Tensor, name: &str, file: &SafeTensors<'_>) -> Result<(), StorageError> {
    let view = file.tensor(name).map_err(|_| StorageError::Missing { name: name.into() })?;
    let tensor = read(&target.device().clone(), name, &view)?;
    if tensor.shape() != target.shape() {
        let found = view.shape().to_vec();
        return Err(StorageError::Shape { name: name.into(), found, expected: target.shape() });
    }
    *target = tensor;
    Ok(())
}

fn metadata_of(bytes: &[u8]) -> Result<HashMap<String, String>, StorageError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    Ok(metadata.metadata().clone().unwrap_or_default())
}

impl Parameters {
    /// The parameters as safetensors, with their order.
    ///
    /// # Errors
    /// [`StorageError::Format`] if the format cannot hold them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, StorageError> {
        let names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
        let metadata = HashMap::from([("order".to_string(), names.join("\n"))]);
        serialize(self.iter().map(|(name, t)| (name.to_string(), t)), metadata)
    }

    /// Parameters from safetensors, in the saved order (or the file's if it has none). Tensors of one dimension
    /// become rows.
    ///
    /// # Errors
    /// Any [`StorageError`].
    pub fn from_bytes(device: &Device, bytes: &[u8]) -> Result<Self, StorageError> {
        let file = SafeTensors::deserialize(bytes)?;
        let names: Vec<String> = match metadata_of(bytes)?.get("order") {
            Some(order) => order.split('\n').filter(|n| !n.is_empty()).map(str::to_string).collect(),
            None => file.names().into_iter().map(str::to_string).collect(),
        };
        if names.len() != file.len() {
            return Err(StorageError::Metadata { key: "order" });
        }
        let mut parameters = Self::new();
        for name in names {
            let view = file.tensor(&name).map_err(|_| StorageError::Missing { name: name.clone() })?;
            if parameters.find(&name).is_some() {
                return Err(StorageError::Metadata { key: "order" });
            }
            let tensor = read(device, &name, &view)?;
            parameters.add(name, tensor);
        }
        Ok(parameters)
    }
}

impl Adam {
    /// Moments and step count as safetensors, by the names of `parameters`.
    ///
    /// # Errors
    /// [`StorageError::Format`] if the format cannot hold them.
    pub fn to_bytes(&self, parameters: &Parameters) -> Result<Vec<u8>, StorageError> {
        let metadata = HashMap::from([("steps".to_string(), self.steps.to_string())]);
        let named = |prefix: &'static str, tensors| {
            parameters.iter().zip(tensors).map(move |((name, _), t)| (format!("{prefix}.{name}"), t))
        };
        serialize(named("first", &self.first).chain(named("second", &self.second)), metadata)
    }

    /// Replaces moments and step count by those in `bytes`. On an error nothing is changed.
    ///
    /// # Errors
    /// Any [`StorageError`].
    pub fn load_bytes(&mut self, parameters: &Parameters, bytes: &[u8]) -> Result<(), StorageError> {
        let file = SafeTensors::deserialize(bytes)?;
        let steps = metadata_of(bytes)?.get("steps").and_then(|s| s.parse().ok());
        let mut loaded = self.clone();
        loaded.steps = steps.ok_or(StorageError::Metadata { key: "steps" })?;
        let moments = loaded.first.iter_mut().zip(&mut loaded.second);
        for ((name, _), (first, second)) in parameters.iter().zip(moments) {
            read_into(first, &format!("first.{name}"), &file)?;
            read_into(second, &format!("second.{name}"), &file)?;
        }
        *self = loaded;
        Ok(())
    }
}
