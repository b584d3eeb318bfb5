//! The trainer against PyTorch: five batches with Adam, as `tests/golden/make_tgn.py` and `make_models.py` computed
//! them in 64 bits without folding or sharing anything. Scores, losses, the last gradients, the final weights,
//! the memory, published rows and embeddings are compared.

use std::collections::HashMap;

use evergraph::device::Device;
use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId};
use evergraph::feature::FeatureStore;
use evergraph::graph::{GraphOptions, GraphStore};
use evergraph::model::tgn::Aggregator;
use evergraph::model::{
    DysatOptions, EdgeTypes, GatOptions, GraphMixerOptions, GraphSageOptions, ModelOptions, TgatOptions,
    TgnOptions, Weights, probability,
};
use evergraph::nn::{Parameters, Tensor, TimeEncoder};
use evergraph::train::{Negatives, Positives, StepMode, Trainer, TrainerOptions, World};
use safetensors::SafeTensors;

const EVENTS: usize = 6;

/// The tensors of one case.
struct Golden {
    floats: HashMap<String, (Vec<usize>, Vec<f32>)>,
    integers: HashMap<String, Vec<i64>>,
}

impl Golden {
    fn read(file: &str, case: &str) -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
        let bytes = std::fs::read(format!("{folder}/{file}.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (mut floats, mut integers) = (HashMap::new(), HashMap::new());
        for (name, tensor) in file.iter() {
            let Some(name) = name.strip_prefix(case).and_then(|name| name.strip_prefix('.')) else {
                continue;
            };
            match tensor.dtype() {
                safetensors::Dtype::F32 => {
                    let values =
                        tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                    floats.insert(name.to_string(), (tensor.shape().to_vec(), values));
                }
                _ => {
                    let values =
                        tensor.data().as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
                    integers.insert(name.to_string(), values);
                }
            }
        }
        Self { floats, integers }
    }

    fn floats(&self, name: &str) -> &[f32] {
        &self.floats[name].1
    }

    fn nodes(&self, name: &str) -> Vec<NodeId> {
        self.integers[name].iter().map(|id| NodeId(u32::try_from(*id).unwrap())).collect()
    }

    fn times(&self, name: &str) -> Vec<EventTime> {
        self.integers[name].iter().map(|time| EventTime(*time)).collect()
    }

    /// The shape of a TGN.
    fn tgn(&self) -> ModelOptions {
        let shape: Vec<usize> = self.integers["shape"].iter().map(|n| usize::try_from(*n).unwrap()).collect();
        TgnOptions {
            memory_dim: shape[0],
            time_dim: shape[1],
            embedding_dim: shape[2],
            heads: shape[3],
            fanout: shape[4],
            edge_feature_dim: shape[5],
            node_feature_dim: shape[6],
            dropout: 0.0,
            ..TgnOptions::default()
        }
        .into()
    }

    /// A number of the case.
    fn number(&self, name: &str) -> usize {
        usize::try_from(self.integers[&format!("case.{name}")][0]).unwrap()
    }

    /// The model of the case, which may have features and types of edges.
    fn shaped(&self, options: impl Into<ModelOptions>) -> ModelOptions {
        let options = options.into().with_features(self.number("de"), self.number("dn"));
        if !self.integers.contains_key("case.types") {
            return options;
        }
        options.with_edge_types(EdgeTypes::new(self.number("types"), self.number("tw")))
    }

    fn aggregator(&self) -> Aggregator {
        if self.integers.contains_key("case.mean") { Aggregator::Mean } else { Aggregator::Last }
    }

    fn initial_weights(&self, options: ModelOptions) -> Weights {
        let mut parameters = Parameters::new();
        for (name, (shape, values)) in &self.floats {
            if let Some(name) = name.strip_prefix("initial.") {
                let tensor = Tensor::from_vec(&Device::Cpu, shape[0], shape[1], values.clone());
                parameters.add(name, tensor);
            }
        }
        Weights::new(options, &parameters, 1).unwrap()
    }

    fn features(&self, name: &str, dimension: usize) -> FeatureStore {
        let store = FeatureStore::new(dimension);
        for (i, row) in self.floats(name).chunks(dimension.max(1)).enumerate() {
            store.set(i as u64, row).unwrap();
        }
        store
    }
}

/// Largest difference over largest magnitude.
fn error(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    ours.iter().zip(theirs).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest.max(1e-12)
}

fn assert_close(what: &str, ours: &[f32], theirs: &[f32], tolerance: f32) {
    let error = error(ours, theirs);
    assert!(error < tolerance, "{what}: relative error {error:e}");
}

fn check(file: &str, case: &str, options: impl Fn(&Golden) -> ModelOptions) {
    let golden = Golden::read(file, case);
    let options = options(&golden).with_dropout(0.0);
    let needs = options.needs();
    let omega = golden.floats("omega");
    assert_eq!(TimeEncoder::frequencies(omega.len()), omega);
    let edge_features = golden.features("edge_features", needs.edge_row_dim);
    let node_features = golden.features("node_features", needs.node_feature_dim);
    let (src, dst, against) = (golden.nodes("src"), golden.nodes("dst"), golden.nodes("against"));
    let (times, graph) = (golden.times("time"), GraphStore::new(GraphOptions::default()));
    let mut batch = EdgeBatch::default();
    for i in 0..src.len() {
        batch.push_edge(src[i], dst[i], times[i]);
    }
    graph.apply(&batch).unwrap();
    let edges: Vec<EdgeId> = (0..src.len() as u64).map(EdgeId).collect();
    // The script computes every message in every batch.
    let trained = TrainerOptions { model: options, gradient_delay_batches: 0, ..TrainerOptions::default() };
    let mut trainer = Trainer::new(trained, &Device::Cpu).unwrap();
    trainer.set_weights(&golden.initial_weights(options)).unwrap();

    let world = |end: usize| World {
        view: graph.view_at(EdgeId(end as u64)),
        edge_features: &edge_features,
        node_features: &node_features,
        sampler: None,
    };
    for (b, start) in (0..src.len()).step_by(EVENTS).enumerate() {
        let range = start..start + EVENTS;
        let src = &src[range.clone()];
        let positives = Positives {
            src,
            dst: &dst[range.clone()],
            times: &times[range.clone()],
            edges: &edges[range.clone()],
        };
        let negatives = Negatives { src, dst: &against[range.clone()] };
        let report = trainer.step(&world(range.end), &positives, &negatives, StepMode::Train).unwrap();
        for (name, ours) in [("positive", &report.positive), ("negative", &report.negative)] {
            let theirs = &golden.floats(name)[range.clone()];
            let ours: Vec<f32> = ours.iter().copied().map(probability).collect();
            assert_close(&format!("{case} {name} scores of batch {b}"), &ours, theirs, 1e-5);
        }
        assert_close(&format!("{case} loss {b}"), &[report.loss], &[golden.floats("loss")[b]], 1e-5);
    }
    for (name, _) in trainer.model().parameters.iter() {
        let ours = trainer.gradients().get(trainer.model().parameters.find(name).unwrap()).data();
        let theirs = golden.floats(&format!("gradient.{name}"));
        // Rounding adds up from level to level.
        let tolerance = 1e-5 * (needs.layers * needs.layers) as f32;
        assert_close(&format!("{case} last gradient of {name}"), ours, theirs, tolerance);
    }
    // Adam divides a gradient by its own size, so where the true gradient is 0 (a slot column that is the
    // same in every slot has no effect on a softmax) rounding noise moves the weight.
    for (name, tensor) in trainer.model().parameters.iter() {
        assert_close(
            &format!("{case} final {name}"),
            tensor.data(),
            golden.floats(&format!("final.{name}")),
            1e-4,
        );
    }
    let nodes: Vec<NodeId> = (0..12).map(NodeId).collect();
    if needs.memory_dim > 0 {
        let mut memory = vec![0.0; nodes.len() * needs.memory_dim];
        for (node, row) in nodes.iter().zip(memory.chunks_mut(needs.memory_dim)) {
            trainer.state().memory.row_into(*node, row);
        }
        assert_close(&format!("{case} memory"), &memory, golden.floats("memory"), 1e-5);
        let mut published = vec![0.0; memory.len()];
        let publish = |node: NodeId, row: &[f32], _| {
            published[node.index() * row.len()..][..row.len()].copy_from_slice(row);
        };
        trainer.publish_rows(EventTime::MIN, &edge_features, &nodes, publish).unwrap();
        assert_close(&format!("{case} published rows"), &published, golden.floats("published"), 1e-5);
    }
    let later = EventTime(times.iter().max().unwrap().0 + 100);
    let embeddings = trainer.embeddings(&world(src.len()), &nodes, &vec![later; nodes.len()]).unwrap();
    assert_close(&format!("{case} embeddings"), &embeddings, golden.floats("embeddings"), 1e-5);
}

#[test]
fn tgn_without_features_as_pytorch() {
    check("tgn", "plain", Golden::tgn);
}

#[test]
fn tgn_with_edge_features_as_pytorch() {
    check("tgn", "edges", Golden::tgn);
}

#[test]
fn tgn_with_edge_and_node_features_as_pytorch() {
    check("tgn", "nodes", Golden::tgn);
}

#[test]
fn tgn_with_types_of_edges_and_with_means_of_messages_as_pytorch() {
    for case in ["tgn_types", "tgn_mean", "tgn_mean_types"] {
        check("models", case, |golden| {
            golden.shaped(TgnOptions {
                memory_dim: golden.number("dm"),
                time_dim: golden.number("dt"),
                embedding_dim: golden.number("d"),
                heads: golden.number("heads"),
                fanout: golden.number("k"),
                aggregator: golden.aggregator(),
                ..TgnOptions::default()
            })
        });
    }
}

#[test]
fn graphmixer_as_pytorch() {
    for case in ["graphmixer", "graphmixer_features", "graphmixer_types"] {
        check("models", case, |golden| {
            let options = GraphMixerOptions {
                embedding_dim: golden.number("d"),
                time_dim: golden.number("dt"),
                fanout: golden.number("k"),
                blocks: golden.number("blocks"),
                ..GraphMixerOptions::default()
            };
            golden.shaped(options)
        });
    }
}

#[test]
fn tgat_as_pytorch() {
    for case in ["tgat", "tgat_features", "tgat_types"] {
        check("models", case, |golden| {
            let options = TgatOptions {
                embedding_dim: golden.number("d"),
                time_dim: golden.number("dt"),
                heads: golden.number("heads"),
                fanout: golden.number("k"),
                layers: golden.number("layers"),
                ..TgatOptions::default()
            };
            golden.shaped(options)
        });
    }
}

#[test]
fn jodie_as_pytorch() {
    for case in ["jodie", "jodie_features", "jodie_types", "jodie_mean"] {
        check("models", case, |golden| {
            let options = TgnOptions {
                memory_dim: golden.number("dm"),
                embedding_dim: golden.number("d"),
                time_dim: golden.number("dt"),
                aggregator: golden.aggregator(),
                ..TgnOptions::jodie()
            };
            golden.shaped(options)
        });
    }
}

#[test]
fn graphsage_as_pytorch() {
    for case in ["graphsage", "graphsage_features", "graphsage_types"] {
        check("models", case, |golden| {
            let options = GraphSageOptions {
                embedding_dim: golden.number("d"),
                signature_dim: golden.number("dr"),
                fanout: golden.number("k"),
                layers: golden.number("layers"),
                ..GraphSageOptions::default()
            };
            golden.shaped(options)
        });
    }
}

#[test]
fn gat_as_pytorch() {
    for case in ["gat", "gat_features", "gat_types"] {
        check("models", case, |golden| {
            let options = GatOptions {
                embedding_dim: golden.number("d"),
                signature_dim: golden.number("dr"),
                heads: golden.number("heads"),
                fanout: golden.number("k"),
                layers: golden.number("layers"),
                ..GatOptions::default()
            };
            golden.shaped(options)
        });
    }
}

#[test]
fn dysat_as_pytorch() {
    for case in ["dysat", "dysat_features", "dysat_types"] {
        check("models", case, |golden| {
            let options = DysatOptions {
                embedding_dim: golden.number("d"),
                signature_dim: golden.number("dr"),
                time_dim: golden.number("dt"),
                heads: golden.number("heads"),
                fanout: golden.number("k"),
                snapshots: golden.number("snapshots"),
                snapshot_width: golden.number("width"),
                ..DysatOptions::default()
            };
            golden.shaped(options)
        });
    }
}
