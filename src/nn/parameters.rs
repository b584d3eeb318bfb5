//! [`Parameters`]: the named weights of a model, in the order in which they were added; [`Gradients`]: one
//! tensor of the same shape for each.
//!
//! Knows nothing of files: bytes are made and read in `storage`.

use crate::device::Device;

use super::Tensor;
use super::cpu::vector::sum_of_squares;
use super::cuda::sums::{Pending, PendingSum};
use super::ops::elementwise::accumulate;

/// A parameter's place in its [`Parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParamId(pub(super) usize);

/// Named weights in the order in which they were added. Names are unique.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    names: Vec<String>,
    tensors: Vec<Tensor>,
}

impl Parameters {
    /// No parameters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor; biases are `1 x n`.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn add(&mut self, name: impl ToString, tensor: Tensor) -> ParamId {
        let name = name.to_string();
        assert!(self.find(&name).is_none(), "parameter {name} is there already");
        self.names.push(name);
        self.tensors.push(tensor);
        ParamId(self.tensors.len() - 1)
    }

    /// The parameter of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.names.iter().position(|n| n == name).map(ParamId)
    }

    /// A parameter's values.
    ///
    /// # Panics
    /// If `id` is of other parameters.
    #[must_use]
    pub fn get(&self, id: ParamId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// A parameter's values for writing.
    ///
    /// # Panics
    /// If `id` is of other parameters.
    #[must_use]
    pub fn get_mut(&mut self, id: ParamId) -> &mut Tensor {
        &mut self.tensors[id.0]
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }

    /// The same on `device`. Waits for a GPU that they are on.
    #[must_use]
    pub fn to(&self, device: &Device) -> Self {
        let names = self.names.clone();
        if *device == Device::Cpu && *self.device() != Device::Cpu {
            // All are requested before the first is waited for.
            let pending: Vec<_> = self.tensors.iter().map(|tensor| tensor.clone().fetch()).collect();
            return Self { names, tensors: pending.into_iter().map(|tensor| tensor.wait().0).collect() };
        }
        Self { names, tensors: self.tensors.iter().map(|tensor| tensor.to(device)).collect() }
    }

    /// Where they are; the CPU if there are none.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.tensors.first().map_or(&Device::Cpu, Tensor::device)
    }

    /// Number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Number of scalars in all tensors.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tensors.iter().map(Tensor::data_len).sum()
    }

    /// Whether every scalar is a finite number.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        all_finite(&self.tensors)
    }

    pub(super) fn tensors_mut(&mut self) -> &mut [Tensor] {
        &mut self.tensors
    }
}

fn all_finite(tensors: &[Tensor]) -> bool {
    // A sum of `v * 0` is 0 for finite values and NaN otherwise, and vectorises.
    tensors.iter().all(|t| t.read().chunks(4096).all(|c| c.iter().map(|v| v * 0.0).sum::<f32>() == 0.0))
}

/// What a gradient holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// A sum that the next backward adds to.
    Sum,
    /// Zeros.
    Zeros,
    /// Numbers of an earlier step that are to be overwritten.
    Stale,
}

/// One gradient per parameter, of the parameter's shape.
#[derive(Clone, Debug)]
pub struct Gradients {
    tensors: Vec<Tensor>,
    holds: Vec<Holds>,
    /// What a backward has found so far and a GPU still has to add up.
    pending: Pending,
}

impl Gradients {
    /// Zeros for every parameter.
    #[must_use]
    pub fn new(device: &Device, parameters: &Parameters) -> Self {
        let tensors = parameters.iter().map(|(_, t)| Tensor::zeros(device, t.rows(), t.cols())).collect();
        Self { tensors, holds: vec![Holds::Zeros; parameters.len()], pending: Pending::default() }
    }

    /// Lets the next backward overwrite every gradient instead of adding to it, without the pass over memory that
    /// [`zero`](Self::zero) takes. Until that backward is done the values mean nothing.
    pub fn start_over(&mut self) {
        self.pending = Pending::default();
        self.holds.iter_mut().filter(|holds| **holds == Holds::Sum).for_each(|holds| *holds = Holds::Stale);
    }

    /// A gradient for an operation to write, and whether it is to be overwritten (`true`) or added to.
    pub(super) fn slot(&mut self, id: ParamId) -> (&mut Tensor, bool) {
        let held = std::mem::replace(&mut self.holds[id.0], Holds::Sum);
        (&mut self.tensors[id.0], held != Holds::Sum)
    }

    /// Whether the next write of a gradient overwrites it.
    pub(super) fn overwrites(&self, id: ParamId) -> bool {
        self.holds[id.0] != Holds::Sum
    }

    /// Has sums added to a gradient when the backward is done.
    pub(super) fn add_later(&mut self, pending: PendingSum) {
        self.pending.push(pending);
    }

    /// Adds up what is pending, and zeroes the gradients that were to be overwritten and that nothing has written.
    pub(super) fn settle(&mut self) {
        let holds = &mut self.holds;
        let overwrite = |id: ParamId| std::mem::replace(&mut holds[id.0], Holds::Sum) != Holds::Sum;
        std::mem::take(&mut self.pending).add_up(&mut self.tensors, overwrite);
        for (tensor, holds) in self.tensors.iter_mut().zip(&mut self.holds) {
            if *holds == Holds::Stale {
                tensor.clear();
                *holds = Holds::Zeros;
            }
        }
    }

    /// Adds the gradients of the same parameters that another backward made.
    pub fn add(&mut self, other: &Self) {
        for (i, (added, holds)) in other.tensors.iter().zip(&other.holds).enumerate() {
            if *holds == Holds::Sum {
                let (sum, overwrite) = self.slot(ParamId(i));
                accumulate(sum, added, overwrite);
            }
        }
    }

    /// Appends the values of all gradients on the CPU, one after another, so that sums of such rows, value by value,
    /// are the gradients that [`add`](Self::add) makes, bit for bit: a gradient that nothing has written is -0, which
    /// is neutral in every sum. Behind them stands for each gradient whether something has written it, 1 or 0.
    pub fn append_to(&self, row: &mut Vec<f32>) {
        for (tensor, holds) in self.tensors.iter().zip(&self.holds) {
            match holds {
                Holds::Sum => row.extend_from_slice(tensor.data()),
                Holds::Zeros | Holds::Stale => row.resize(row.len() + tensor.data_len(), -0.0),
            }
        }
        row.extend(self.holds.iter().map(|holds| f32::from(u8::from(*holds == Holds::Sum))));
    }

    /// Takes the sum of rows of [`append_to`](Self::append_to).
    ///
    /// # Panics
    /// If the row is of other parameters.
    pub fn take_row(&mut self, row: &[f32]) {
        let (mut values, written) = row.split_at(row.len() - self.tensors.len());
        for ((tensor, holds), written) in self.tensors.iter_mut().zip(&mut self.holds).zip(written) {
            let (own, others) = values.split_at(tensor.data_len());
            if *written > 0.0 {
                tensor.data_mut().copy_from_slice(own);
                *holds = Holds::Sum;
            } else {
                tensor.clear();
                *holds = Holds::Zeros;
            }
            values = others;
        }
    }

    /// A parameter's gradient.
    ///
    /// # Panics
    /// If `id` is of other parameters.
    #[must_use]
    pub fn get(&self, id: ParamId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// A parameter's gradient for writing.
    ///
    /// # Panics
    /// If `id` is of other parameters.
    #[must_use]
    pub fn get_mut(&mut self, id: ParamId) -> &mut Tensor {
        let (tensor, overwrite) = self.slot(id);
        if overwrite {
            tensor.clear();
        }
        tensor
    }

    /// Euclidean norm over all gradients.
    #[must_use]
    pub fn norm(&self) -> f32 {
        self.tensors.iter().map(|tensor| sum_of_squares(tensor.data())).sum::<f64>().sqrt() as f32
    }

    /// Multiplies every gradient by `factor`.
    pub fn scale(&mut self, factor: f32) {
        self.tensors.iter_mut().flat_map(|t| t.data_mut()).for_each(|v| *v *= factor);
    }

    /// Whether every value is a finite number.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        all_finite(&self.tensors)
    }

    pub(super) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_rows_are_sums_of_gradients_bit_for_bit() {
        let mut parameters = Parameters::new();
        let cpu = &Device::Cpu;
        let [a, b, c] = ["a", "b", "c"].map(|name| parameters.add(name, Tensor::zeros(cpu, 1, 2)));
        let made = |id: ParamId, values: [f32; 2]| {
            let mut gradients = Gradients::new(cpu, &parameters);
            gradients.get_mut(id).data_mut().copy_from_slice(&values);
            gradients.get_mut(c).data_mut().copy_from_slice(&[0.1, -0.0]);
            gradients
        };
        let (mut one, other) = (made(a, [-0.0, 1.0]), made(c, [0.2, -0.0]));
        let rows = [&one, &other].map(|gradients| {
            let mut row = Vec::new();
            gradients.append_to(&mut row);
            assert_eq!(row.len(), parameters.count() + parameters.len());
            row
        });
        let sum: Vec<f32> = rows[0].iter().zip(&rows[1]).map(|(x, y)| x + y).collect();
        let mut taken = made(b, [7.0, 7.0]);
        taken.take_row(&sum);
        one.add(&other);
        for id in [a, b, c] {
            let bits = |gradients: &Gradients| {
                gradients.get(id).data().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits(&taken), bits(&one));
        }
        assert!(taken.overwrites(b) && !taken.overwrites(a));
    }
}
