//! Operations that read and write rows by index.

use std::time::Instant;

use super::indices::draw;
use super::inputs::{Inputs, Named};
use super::points::Point;
use super::work::{About, Before, Cost, OnTape, Output, Work};
use crate::event::{EdgeId, EventTime, NodeId};
use crate::model::{Interactions, NodeMemory, Touched};
use crate::nn::{Places, SlotRows, TimeEncoder};

/// `out[i] = table[index[i]]`.
pub fn gather_rows(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (rows, table, cols) = (point.number("rows")?, point.number("table_rows")?, point.cols()?);
    let index = draw(point.text("indices")?, rows, table, 0)?;
    let inputs = Inputs::default().learned("table", [table, cols]).numbers("index", index);
    let costs = (
        Cost::moving(2 * rows * cols + rows, 0),
        Cost::moving(rows * cols + rows + table * cols, rows * cols),
    );
    Ok(OnTape::boxed(inputs, [rows, cols], costs, |tape, named| {
        let table = tape.param(named.param("table")?);
        Ok(tape.gather(table, named.numbers("index")?))
    }))
}

/// `out[i] = [node_table[node[i]] ; edge_table[edge[i]] ; cos(dt[i] * w + b)]`.
pub fn gather_concat_time(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let rows = point.number("rows")?;
    let (nodes, edges) = (point.number("node_table_rows")?, point.number("edge_table_rows")?);
    let (n, e, t) = (point.number("node_cols")?, point.number("edge_cols")?, point.number("time_cols")?);
    let how = point.text("indices")?;
    let inputs = Inputs::default()
        .learned("node_table", [nodes, n])
        .given("edge_table", [edges, e])
        .learned("w", [1, t])
        .learned("b", [1, t])
        .numbers("node", draw(how, rows, nodes, 1)?)
        .numbers("edge", draw(how, rows, edges, 2)?)
        .deltas("dt", rows);
    let costs = (
        Cost::moving(rows * (2 * (n + e) + t + 3), 2 * rows * t),
        Cost::moving(rows * (n + t + 2) + nodes * n, rows * n + 4 * rows * t),
    );
    Ok(OnTape::boxed(inputs, [rows, n + e + t], costs, |tape, named| {
        let nodes = tape.param(named.param("node_table")?);
        Ok(tape.slot_rows(SlotRows {
            nodes,
            node: named.numbers("node")?.into(),
            edges: Some((named.tensor("edge_table")?, Places::Host(named.numbers("edge")?))),
            deltas: named.floats("dt")?.into(),
            time: &TimeEncoder::Trained { w: named.param("w")?, b: named.param("b")? },
        }))
    }))
}

/// The last row for each node wins: what a batch leaves in the memory of nodes.
struct ScatterLast {
    about: About,
    named: Named,
    nodes: Vec<NodeId>,
    times: Vec<EventTime>,
    edges: Vec<EdgeId>,
    touched: Touched,
    memory: NodeMemory,
}

/// `out[index[i]] = x[i]`, the last of several wins.
pub fn scatter_last(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (e, rows, cols) = (point.number("e")?, point.number("rows")?, point.cols()?);
    let index = draw(point.text("indices")?, e, rows, 0)?;
    let nodes: Vec<NodeId> = index.iter().copied().map(NodeId).collect();
    let mut distinct = nodes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let costs = (Cost::moving(nodes.len() + 2 * distinct.len() * cols, 0), None);
    let inputs = Inputs::default().given("x", [e, cols]).numbers("index", index);
    let named = Named::new(&inputs);
    let (touched, memory) = (Touched::default(), NodeMemory::new(cols));
    let times = (0..).map(EventTime).take(e).collect();
    let edges = (0..).map(EdgeId).take(e).collect();
    let about = About { inputs, shape: vec![rows, cols], costs };
    Ok(Box::new(ScatterLast { about, named, nodes, times, edges, touched, memory }))
}

impl Work for ScatterLast {
    fn forward(&mut self, before: Before<'_>) -> anyhow::Result<f64> {
        let x = self.named.tensor("x")?;
        before();
        let started = Instant::now();
        self.touched.build(&Interactions {
            src: &self.nodes,
            dst: &self.nodes,
            times: &self.times,
            edges: &self.edges,
        });
        for (&node, &last) in self.touched.nodes().iter().zip(self.touched.last_events()) {
            self.memory.write(node, x.row(last as usize), self.times[last as usize]);
        }
        Ok(started.elapsed().as_secs_f64())
    }

    fn outputs(&mut self) -> anyhow::Result<Vec<Output>> {
        self.forward(&mut || {})?;
        let shape = self.about.shape.clone();
        let mut values = vec![0.0; shape.iter().product()];
        for (node, row) in (0..).map(NodeId).zip(values.chunks_exact_mut(shape[1].max(1))) {
            self.memory.row_into(node, row);
        }
        Ok(vec![Output { name: "out".to_owned(), shape, values }])
    }

    fn about(&self) -> &About {
        &self.about
    }
}
