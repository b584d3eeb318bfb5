//! The reference training step on burn's `flex` backend: 600 events as 1,800 targets with 10 neighbors each, a memory
//! table with gradient, attention of two heads, link predictor, AdamW over everything. Prints what it took as JSON.
//!
//! Holds the step and its clock; knows nothing of Evergraph's data: the values are random, shapes and work are equal.
//! Attention is computed in two ways, as a product of matrices and as a product with a sum; the faster one counts.

use std::error::Error;
use std::time::Instant;

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::{relu, softmax};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EVENTS: usize = 600;
const TARGETS: usize = 3 * EVENTS;
const FANOUT: usize = 10;
const NODES: usize = 10_000;
const MEMORY: usize = 100;
const TIME: usize = 100;
const EDGE: usize = 172;
const HEADS: usize = 2;
const HEAD: usize = 100;
const MODEL: usize = HEADS * HEAD;
const SLOT: usize = MEMORY + EDGE + TIME;

fn weight(from: usize, to: usize, device: &Device) -> Param<Tensor<2>> {
    Param::from_tensor(Tensor::random([from, to], Distribution::Uniform(-0.1, 0.1), device))
}

#[derive(Module, Debug)]
struct Linear {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

impl Linear {
    fn new(from: usize, to: usize, device: &Device) -> Self {
        let bias = Param::from_tensor(Tensor::random([to], Distribution::Uniform(-0.1, 0.1), device));
        Self { weight: weight(from, to, device), bias }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val()) + self.bias.val().unsqueeze()
    }
}

#[derive(Module, Debug)]
struct Net {
    memory: Param<Tensor<2>>,
    time_weight: Param<Tensor<1>>,
    time_bias: Param<Tensor<1>>,
    query: Param<Tensor<2>>,
    key: Param<Tensor<2>>,
    value: Param<Tensor<2>>,
    output: Linear,
    merge_1: Linear,
    merge_2: Linear,
    link_1: Linear,
    link_2: Linear,
}

/// What one step reads: ids of the targets and of their neighbors, ages and features of the edges between.
struct Batch {
    targets: Tensor<1, Int>,
    neighbors: Tensor<1, Int>,
    ages: Tensor<2>,
    edges: Tensor<2>,
    wanted: Tensor<2>,
}

#[derive(Clone, Copy)]
enum Attention {
    MatrixProduct,
    ProductAndSum,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |from, to| Linear::new(from, to, device);
        let frequencies: Vec<f32> =
            (0..TIME).map(|i| 10f32.powf(-9.0 * i as f32 / (TIME - 1) as f32)).collect();
        Self {
            memory: Param::from_tensor(Tensor::random(
                [NODES, MEMORY],
                Distribution::Uniform(-1.0, 1.0),
                device,
            )),
            time_weight: Param::from_tensor(Tensor::from_floats(frequencies.as_slice(), device)),
            time_bias: Param::from_tensor(Tensor::zeros([TIME], device)),
            query: weight(MEMORY + TIME, MODEL, device),
            key: weight(SLOT, MODEL, device),
            value: weight(SLOT, MODEL, device),
            output: linear(MODEL, MODEL),
            merge_1: linear(MODEL + MEMORY, 100),
            merge_2: linear(100, 100),
            link_1: linear(200, 100),
            link_2: linear(100, 1),
        }
    }

    fn encode(&self, ages: Tensor<2>) -> Tensor<2> {
        (ages * self.time_weight.val().unsqueeze() + self.time_bias.val().unsqueeze()).cos()
    }

    fn attend(&self, query: Tensor<2>, key: Tensor<2>, value: Tensor<2>, way: Attention) -> Tensor<2> {
        let scale = 1.0 / (HEAD as f64).sqrt();
        let query = query.reshape([TARGETS, 1, HEADS, HEAD]);
        let key = key.reshape([TARGETS, FANOUT, HEADS, HEAD]);
        let value = value.reshape([TARGETS, FANOUT, HEADS, HEAD]);
        match way {
            Attention::MatrixProduct => {
                let [query, key, value] = [query, key, value].map(|x| x.swap_dims(1, 2));
                let weights = softmax(query.matmul(key.swap_dims(2, 3)).mul_scalar(scale), 3);
                weights.matmul(value).reshape([TARGETS, MODEL])
            }
            Attention::ProductAndSum => {
                let weights = softmax((key * query).sum_dim(3).mul_scalar(scale), 1);
                (value * weights).sum_dim(1).reshape([TARGETS, MODEL])
            }
        }
    }

    fn loss(&self, batch: &Batch, way: Attention) -> Tensor<1> {
        let memory = self.memory.val();
        let own = memory.clone().select(0, batch.targets.clone());
        let now = self.encode(batch.ages.zeros_like().narrow(0, 0, TARGETS));
        let slots = vec![
            memory.select(0, batch.neighbors.clone()),
            batch.edges.clone(),
            self.encode(batch.ages.clone()),
        ];
        let slots = Tensor::cat(slots, 1);
        let query = Tensor::cat(vec![own.clone(), now], 1).matmul(self.query.val());
        let (key, value) = (slots.clone().matmul(self.key.val()), slots.matmul(self.value.val()));
        let found = self.attend(query, key, value, way);
        let merged = Tensor::cat(vec![self.output.forward(found), own], 1);
        let embedded = self.merge_2.forward(relu(self.merge_1.forward(merged)));
        let part = |number: usize| embedded.clone().narrow(0, number * EVENTS, EVENTS);
        let [source, destination, negative] = [part(0), part(1), part(2)];
        let pairs = Tensor::cat(
            vec![Tensor::cat(vec![source.clone(), destination], 1), Tensor::cat(vec![source, negative], 1)],
            0,
        );
        let logits = self.link_2.forward(relu(self.link_1.forward(pairs)));
        let losses =
            relu(logits.clone()) - logits.clone() * batch.wanted.clone() + logits.abs().neg().exp().log1p();
        losses.mean()
    }
}

impl Batch {
    fn new(device: &Device) -> Self {
        let ids = |count: usize| {
            let spread = Distribution::Uniform(0.0, NODES as f64);
            Tensor::<1>::random([count], spread, device).int().clamp(0, NODES as i64 - 1)
        };
        let wanted: Vec<f32> = (0..2 * EVENTS).map(|pair| f32::from(u8::from(pair < EVENTS))).collect();
        Self {
            targets: ids(TARGETS),
            neighbors: ids(TARGETS * FANOUT),
            ages: Tensor::random([TARGETS * FANOUT, 1], Distribution::Uniform(0.0, 100.0), device),
            edges: Tensor::random([TARGETS * FANOUT, EDGE], Distribution::Uniform(-1.0, 1.0), device),
            wanted: Tensor::from_data(TensorData::new(wanted, [2 * EVENTS, 1]), device),
        }
    }
}

/// Seconds of one step: forward, backward, optimizer.
fn step(
    net: &mut Option<Net>,
    optimizer: &mut ModuleOptimizer,
    batch: &Batch,
    way: Attention,
) -> Result<f64, Box<dyn Error>> {
    let model = net.take().ok_or("the step before failed")?;
    let started = Instant::now();
    let loss = model.loss(batch, way);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    *net = Some(optimizer.step(1e-3, model, gradients));
    let seconds = started.elapsed().as_secs_f64();
    let loss: f32 = loss.into_scalar();
    if !loss.is_finite() {
        return Err(format!("the loss became {loss}").into());
    }
    Ok(seconds)
}

fn quantile(seconds: &mut [f64], share: f64) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[((seconds.len() - 1) as f64 * share).round() as usize]
}

fn measure(way: Attention, runs: usize) -> Result<Value, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let (mut net, batch) = (Some(Net::new(&device)), Batch::new(&Device::flex()));
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).with_epsilon(1e-8).init();
    let mut seconds = Vec::new();
    for run in 0..runs + 5 {
        let taken = step(&mut net, &mut optimizer, &batch, way)?;
        if run >= 5 {
            seconds.push(taken);
        }
    }
    Ok(json!({
        "op": "reference_step",
        "direction": "forward",
        "way": match way {
            Attention::MatrixProduct => "attention as a product of matrices",
            Attention::ProductAndSum => "attention as a product with a sum",
        },
        "seconds": quantile(&mut seconds, 0.5),
        "p95_seconds": quantile(&mut seconds, 0.95),
        "runs": runs,
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [threads, runs] = arguments.as_slice() else { return Err("usage: ops-burn THREADS RUNS".into()) };
    let (threads, runs): (usize, usize) = (threads.parse()?, runs.parse()?);
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    let mut rows = vec![measure(Attention::MatrixProduct, runs)?, measure(Attention::ProductAndSum, runs)?];
    rows.sort_by(|one, other| {
        one["seconds"].as_f64().unwrap_or(f64::MAX).total_cmp(&other["seconds"].as_f64().unwrap_or(f64::MAX))
    });
    rows.truncate(1);
    println!(
        "{}",
        json!({ "peer": "burn", "version": "0.22.1 flex", "threads": threads, "rows": rows })
    );
    Ok(())
}
