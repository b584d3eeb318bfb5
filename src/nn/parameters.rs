//! [`Parameters`]: the named weights of a model, in the order in which they were added; [`Gradients`]: one
//! tensor of the same shape for each.
//!
//! Knows nothing of files: bytes are made and read in `storage`.

use crate::device::Device;

use super::Tensor;
use super::cpu::number::{Number, add_rounded, round};
use super::cpu::vector::sum_of_squares;
use super::cuda::sums::Later;

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
}

impl Gradients {
    /// Zeros for every parameter.
    #[must_use]
    pub fn new(device: &Device, parameters: &Parameters) -> Self {
        let tensors = parameters.iter().map(|(_, t)| Tensor::zeros(device, t.rows(), t.cols())).collect();
        Self { tensors, holds: vec![Holds::Zeros; parameters.len()] }
    }

    /// Lets the next backward overwrite every gradient instead of adding to it, without the pass over memory that
    /// [`zero`](Self::zero) takes. Until that backward is done the values mean nothing.
    pub fn start_over(&mut self) {
        // What a GPU was asked for may never have happened: that a gradient is zero, say.
        let is_sure = self.tensors.iter().all(|tensor| *tensor.device() == Device::Cpu);
        let is_other = |holds: &&mut Holds| !is_sure || **holds == Holds::Sum;
        self.holds.iter_mut().filter(is_other).for_each(|holds| *holds = Holds::Stale);
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

    /// Adds up what a backward left for its end, and zeroes the gradients that were to be overwritten and that nothing
    /// has written.
    pub(super) fn settle(&mut self, later: Later<'_>) {
        let holds = &mut self.holds;
        let overwrite = |id: ParamId| std::mem::replace(&mut holds[id.0], Holds::Sum) != Holds::Sum;
        later.add_up(&mut self.tensors, overwrite);
        for (tensor, holds) in self.tensors.iter_mut().zip(&mut self.holds) {
            if *holds == Holds::Stale {
                tensor.clear();
                *holds = Holds::Zeros;
            }
        }
    }

    /// Adds the gradients of the same parameters that another backward made, on the CPU: terms and sums are rounded.
    pub fn add<N: Number>(&mut self, other: &Self) {
        for (i, added) in other.tensors.iter().enumerate() {
            let (holds, added) = (self.holds[i], (other.holds[i] == Holds::Sum).then_some(added.data()));
            let sum = self.tensors[i].data_mut();
            match (holds, added) {
                (Holds::Sum, Some(added)) => add_rounded::<N>(sum, added),
                (_, Some(added)) => {
                    sum.copy_from_slice(added);
                    round::<N>(sum);
                    self.holds[i] = Holds::Sum;
                }
                (Holds::Sum, None) => round::<N>(sum),
                (_, None) => {}
            }
        }
    }

    /// Prepares gradients on the CPU to be summed value by value ([`runs_mut`](Self::runs_mut)) with those of the same
    /// parameters elsewhere, as [`add`](Self::add) does, bit for bit: a gradient that nothing has written becomes -0,
    /// which is neutral in every sum. Returns for each gradient whether something has written it, 1 or 0. Until
    /// [`end_sum`](Self::end_sum) the values mean nothing.
    pub fn begin_sum(&mut self) -> Vec<f32> {
        let written = |(tensor, holds): (&mut Tensor, &mut Holds)| {
            let is_written = *holds == Holds::Sum;
            if !is_written {
                tensor.data_mut().fill(-0.0);
                *holds = Holds::Stale;
            }
            f32::from(u8::from(is_written))
        };
        self.tensors.iter_mut().zip(&mut self.holds).map(written).collect()
    }

    /// Takes the values as sums; `written` has for each gradient whether something has written one of those that were
    /// summed. The others are zeros.
    pub fn end_sum(&mut self, written: impl Iterator<Item = bool>) {
        for ((tensor, holds), is_written) in self.tensors.iter_mut().zip(&mut self.holds).zip(written) {
            *holds = if is_written { Holds::Sum } else { Holds::Zeros };
            if !is_written {
                tensor.clear();
            }
        }
    }

    /// Number of values of all gradients.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tensors.iter().map(Tensor::data_len).sum()
    }

    /// The values of all gradients on the CPU, one after another, cut into runs of these lengths; each run in as many
    /// slices as gradients it is of.
    pub fn runs_mut(&mut self, lengths: &[usize]) -> Vec<Vec<&mut [f32]>> {
        let mut tensors = self.tensors.iter_mut().map(Tensor::data_mut);
        let mut left: &mut [f32] = &mut [];
        let run = |&length: &usize| {
            let (mut missing, mut slices) = (length, Vec::new());
            while missing > 0 {
                if left.is_empty() {
                    let Some(next) = tensors.next() else { break };
                    left = next;
                }
                let end = missing.min(left.len());
                let (slice, others) = std::mem::take(&mut left).split_at_mut(end);
                left = others;
                missing -= slice.len();
                slices.push(slice);
            }
            slices
        };
        lengths.iter().map(run).collect()
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
    fn sums_of_values_are_sums_of_gradients_bit_for_bit() {
        sums_are_equal::<f32>();
        sums_are_equal::<half::bf16>();
    }

    fn sums_are_equal<N: Number>() {
        let mut parameters = Parameters::new();
        let cpu = &Device::Cpu;
        let [a, b, c] = ["a", "b", "c"].map(|name| parameters.add(name, Tensor::zeros(cpu, 1, 2)));
        let made = |id: ParamId, values: [f32; 2]| {
            let mut gradients = Gradients::new(cpu, &parameters);
            gradients.get_mut(id).data_mut().copy_from_slice(&values);
            gradients.get_mut(c).data_mut().copy_from_slice(&[0.1, -0.0]);
            gradients
        };
        let (mut one, other) = (made(a, [-0.0, 1.001]), made(c, [0.2, -0.0]));
        let (mut summed, mut added) = (one.clone(), other.clone());
        // One that was written in an earlier step only.
        summed.get_mut(b).data_mut().fill(7.0);
        summed.start_over();
        summed.get_mut(a).data_mut().copy_from_slice(&[-0.0, 1.001]);
        summed.get_mut(c).data_mut().copy_from_slice(&[0.1, -0.0]);
        let written = [&mut summed, &mut added].map(Gradients::begin_sum);
        assert_eq!((&written[0][..], &written[1][..]), (&[1.0, 0.0, 1.0][..], &[0.0, 0.0, 1.0][..]));
        let lengths = [1, 2, 0, 3];
        let runs = summed.runs_mut(&lengths);
        let cut: Vec<Vec<usize>> =
            runs.iter().map(|run| run.iter().map(|slice| slice.len()).collect()).collect();
        assert_eq!(cut, [vec![1], vec![1, 1], vec![], vec![1, 2]]);
        for (to, from) in runs.into_iter().flatten().zip(added.runs_mut(&lengths).into_iter().flatten()) {
            add_rounded::<N>(to, from);
        }
        summed.end_sum(written[0].iter().zip(&written[1]).map(|(x, y)| x + y > 0.0));
        one.add::<N>(&other);
        for id in [a, b, c] {
            let bits = |gradients: &Gradients| {
                gradients.get(id).data().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits(&summed), bits(&one));
        }
        assert!(summed.overwrites(b) && !summed.overwrites(a));
    }
}
