//! Points as files, for other implementations: inputs that are not generated, and samples of the results.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::inputs::{Data, Input, SEED};
use super::points::Point;
use super::work::{Output, Work};

/// Elements of a result that are written at most.
const SAMPLES: usize = 65_536;

/// Writes a point's files into `folder` and returns its entry; `number` keeps the files of points apart.
///
/// # Errors
/// The point cannot be computed, or a file cannot be written.
pub fn write(folder: &Path, number: usize, point: &Point, work: &mut dyn Work) -> anyhow::Result<Value> {
    let mut inputs = Map::new();
    for input in &work.about().inputs.list {
        inputs.insert(input.name.to_owned(), write_input(folder, number, input)?);
    }
    let mut outputs = Map::new();
    for output in work.outputs()? {
        outputs.insert(output.name.clone(), write_output(folder, number, &output)?);
    }
    Ok(json!({
        "id": point.id(),
        "op": point.op,
        "params": point.params_json(),
        "cache": point.cache.name(),
        "inputs": inputs,
        "outputs": outputs,
    }))
}

/// Writes the list of all points.
///
/// # Errors
/// The file cannot be written.
pub fn finish(folder: &Path, points: &[Value]) -> anyhow::Result<()> {
    let path = folder.join("cases.json");
    let text = serde_json::to_string_pretty(&json!({ "seed": SEED, "points": points }))?;
    fs::write(&path, text).with_context(|| format!("--cases {}", path.display()))
}

fn write_input(folder: &Path, number: usize, input: &Input) -> anyhow::Result<Value> {
    let file = |kind: &str, bytes: &[u8]| -> anyhow::Result<Value> {
        let name = format!("{number:03}.{}.{kind}.bin", input.name);
        put(folder, &name, bytes)?;
        Ok(json!({ "kind": kind, "shape": input.shape, "file": name }))
    };
    match &input.data {
        Data::Values { stream, low, high } => Ok(json!({
            "kind": "values",
            "shape": input.shape,
            "stream": stream,
            "low": low,
            "high": high,
            "gradient": input.gradient,
        })),
        Data::U32(numbers) => file("u32", bytemuck::cast_slice(numbers)),
        Data::F32(floats) => file("f32", bytemuck::cast_slice(floats)),
    }
}

fn write_output(folder: &Path, number: usize, output: &Output) -> anyhow::Result<Value> {
    let values = &output.values;
    let stride = values.len().div_ceil(SAMPLES).max(1);
    let samples: Vec<f32> = values.iter().copied().step_by(stride).collect();
    let name = format!("{number:03}.{}.f32.bin", output.name);
    put(folder, &name, bytemuck::cast_slice(&samples))?;
    Ok(json!({
        "shape": output.shape,
        "stride": stride,
        "count": samples.len(),
        "file": name,
        "sum": values.iter().map(|v| f64::from(*v)).sum::<f64>(),
    }))
}

fn put(folder: &Path, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let path = folder.join(name);
    fs::write(&path, bytes).with_context(|| format!("--cases {}", path.display()))
}
