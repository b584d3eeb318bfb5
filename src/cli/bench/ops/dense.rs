//! Operations on whole matrices: layers, cells, the optimizer.

use std::time::Instant;

use super::inputs::{Inputs, Named};
use super::points::Point;
use super::work::{About, Before, Cost, OnTape, Output, Work};
use crate::device::Device;
use crate::nn::{Adam, AdamOptions, Gradients, GruParams, TimeEncoder};

/// One GRU step.
pub fn gru_cell(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (m, i, h) = (point.number("rows")?, point.number("input")?, point.number("hidden")?);
    let inputs = Inputs::default()
        .learned("x", [m, i])
        .learned("h", [m, h])
        .small("w_ih", [3 * h, i], 0.1)
        .small("w_hh", [3 * h, h], 0.1)
        .small("b_ih", [1, 3 * h], 0.1)
        .small("b_hh", [1, 3 * h], 0.1);
    let weights = 3 * h * (i + h + 2);
    let (flops, gates) = (6 * m * h * (i + h), 30 * m * h);
    let costs = (
        Cost::computing(m * (i + 2 * h) + weights, flops + gates),
        Cost::computing(2 * m * (i + 2 * h) + 2 * weights, 2 * flops + gates),
    );
    Ok(OnTape::boxed(inputs, [m, h], costs, |tape, named| {
        let (x, h) = (tape.param(named.param("x")?), tape.param(named.param("h")?));
        let p = GruParams {
            w_ih: named.param("w_ih")?,
            w_hh: named.param("w_hh")?,
            b_ih: named.param("b_ih")?,
            b_hh: named.param("b_hh")?,
        };
        Ok(tape.gru_cell(x, h, &p))
    }))
}

/// `cos(dt * w + b)`.
pub fn time_encoding(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (m, c) = (point.number("rows")?, point.number("cols")?);
    let inputs = Inputs::default().learned("w", [1, c]).learned("b", [1, c]).deltas("dt", m);
    let costs = (Cost::moving(m * c + m + 2 * c, 2 * m * c), Cost::moving(m * c + m + 4 * c, 6 * m * c));
    Ok(OnTape::boxed(inputs, [m, c], costs, |tape, named| {
        let time = TimeEncoder::Trained { w: named.param("w")?, b: named.param("b")? };
        Ok(tape.time_encoding(&named.floats("dt")?, &time))
    }))
}

/// Layer normalisation of rows.
pub fn layer_norm(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (m, c) = (point.number("rows")?, point.number("cols")?);
    let inputs = Inputs::default().learned("x", [m, c]).learned("gamma", [1, c]).learned("beta", [1, c]);
    let costs = (Cost::moving(2 * m * c + 2 * c, 8 * m * c), Cost::moving(3 * m * c + 3 * c, 14 * m * c));
    Ok(OnTape::boxed(inputs, [m, c], costs, |tape, named| {
        let x = tape.param(named.param("x")?);
        Ok(tape.layer_norm(x, named.param("gamma")?, named.param("beta")?, 1e-5))
    }))
}

/// `x wᵀ + b`.
pub fn linear(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (m, k, n) = (point.number("m")?, point.number("k")?, point.number("n")?);
    let inputs = Inputs::default().learned("x", [m, k]).learned("w", [n, k]).learned("b", [1, n]);
    let costs = (
        Cost::computing(m * k + n * k + n + m * n, 2 * m * n * k),
        Cost::computing(2 * m * k + 2 * n * k + n + m * n, 4 * m * n * k),
    );
    Ok(OnTape::boxed(inputs, [m, n], costs, |tape, named| {
        let x = tape.param(named.param("x")?);
        Ok(tape.linear(x, named.param("w")?, Some(named.param("b")?)))
    }))
}

/// One step of the optimizer over one parameter.
struct AdamStep {
    about: About,
    named: Named,
    gradients: Gradients,
    adam: Adam,
    steps: usize,
}

/// Adam with torch's defaults, after `steps` steps with the same gradient.
pub fn adam(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (n, steps) = (point.number("n")?, point.number("steps")?);
    let inputs = Inputs::default().learned("param", [1, n]).given("grad", [1, n]);
    let named = Named::new(&inputs);
    let mut gradients = Gradients::new(&Device::Cpu, &named.parameters);
    let id = named.param("param")?;
    gradients.get_mut(id).data_mut().copy_from_slice(named.tensor("grad")?.data());
    let adam = Adam::new(&Device::Cpu, &named.parameters, AdamOptions::default());
    let about = About { inputs, shape: vec![1, n], costs: (Cost::moving(7 * n, 12 * n), None) };
    Ok(Box::new(AdamStep { about, named, gradients, adam, steps }))
}

impl Work for AdamStep {
    fn forward(&mut self, before: Before<'_>) -> anyhow::Result<f64> {
        before();
        let started = Instant::now();
        self.adam.step(&mut self.named.parameters, &self.gradients);
        Ok(started.elapsed().as_secs_f64())
    }

    fn outputs(&mut self) -> anyhow::Result<Vec<Output>> {
        self.named = Named::new(&self.about.inputs);
        self.adam = Adam::new(&Device::Cpu, &self.named.parameters, AdamOptions::default());
        for _ in 0..self.steps {
            self.forward(&mut || {})?;
        }
        let values = self.named.parameters.get(self.named.param("param")?).to_vec();
        Ok(vec![Output { name: "out".to_owned(), shape: self.about.shape.clone(), values }])
    }

    fn about(&self) -> &About {
        &self.about
    }
}
