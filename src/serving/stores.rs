//! [`Stores`]: the shared stores that are rebuilt from the log. [`World`]: the part of them that one model pass sees.

use std::sync::Arc;

use crate::event::{EdgeId, EventTime, NodeId};
use crate::feature::FeatureStore;
use crate::graph::{GraphStore, GraphView, NodeDictionary, TypeNames};
use crate::model::{DeviceRows, FeatureRows, GatherError, Needs, Neighborhood};
use crate::sampler::DeviceSampler;

/// The graph, the names of its nodes and the feature rows. Clones share them; the appender alone writes.
#[derive(Clone)]
pub struct Stores {
    /// The graph.
    pub graph: Arc<GraphStore>,
    /// Names of its nodes.
    pub keys: Arc<NodeDictionary>,
    /// Feature rows by edge id.
    pub edge_features: Arc<FeatureStore>,
    /// Feature rows by node id.
    pub node_features: Arc<FeatureStore>,
    /// The names of edge types.
    pub types: Arc<TypeNames>,
    /// Whether a feature row of an edge begins with the number of its type.
    pub rows_have_types: bool,
}

impl Stores {
    /// These stores and an empty node dictionary.
    #[must_use]
    pub fn new(graph: GraphStore, edge_features: FeatureStore, node_features: FeatureStore) -> Self {
        Self {
            graph: Arc::new(graph),
            keys: Arc::new(NodeDictionary::new()),
            edge_features: Arc::new(edge_features),
            node_features: Arc::new(node_features),
            types: Arc::default(),
            rows_have_types: false,
        }
    }

    /// Features of an edge.
    #[must_use]
    pub fn edge_feature_dimension(&self) -> usize {
        self.edge_features.dimension() - usize::from(self.rows_have_types)
    }

    /// The stores, with the graph as of `view`.
    #[must_use]
    pub fn world<'a>(&'a self, view: GraphView<'a>) -> World<'a> {
        let view = view.with_rows_from(EdgeId(self.edge_features.first()));
        let (edge_features, node_features) = (&self.edge_features, &self.node_features);
        World { view, edge_features, node_features, sampler: None }
    }
}

/// What a pass of a model reads besides the model and its state.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// The graph, as far as the pass may see. Samples are strictly earlier than their seeds' times, so the
    /// view may hold the batch itself, and should: blind to earlier events of its own batch, the model
    /// loses some seven points of average precision (UCI messages, batches of 200).
    pub view: GraphView<'a>,
    /// Feature rows by edge id.
    pub edge_features: &'a FeatureStore,
    /// Feature rows by node id.
    pub node_features: &'a FeatureStore,
    /// Samples the graph on a GPU, where one is to.
    pub sampler: Option<&'a DeviceSampler>,
}

impl World<'_> {
    /// Samples the seeds of `neighborhood`: on a GPU if it can, else on the CPU, with the same result. On a GPU stays
    /// what a model there reads of it and the host does not: then no other device can go on with it.
    ///
    /// # Errors
    /// Edges that are on disk cannot be read.
    pub fn sample(&self, needs: &Needs, neighborhood: &mut Neighborhood) -> Result<(), GatherError> {
        let request = needs.sample_request();
        let (view, layers, host) = (self.view, needs.layers, needs.host_columns());
        Ok(neighborhood.sample_with(needs, |seeds, out| {
            let on_gpu =
                |sampler: &DeviceSampler| sampler.sample(view, seeds, (&request, layers), Some(host), out);
            if self.sampler.is_some_and(on_gpu) {
                return Ok(());
            }
            out.sample(view, seeds, &request, layers)
        })?)
    }

    /// Fetches the rows that were numbered, and those of `nodes`. Rows of edges that a GPU reads in place are only
    /// located.
    ///
    /// # Errors
    /// Rows cannot be read.
    pub fn fetch(
        &self,
        needs: &Needs,
        nodes: &[NodeId],
        rows: &mut FeatureRows,
        in_place: Option<&DeviceRows>,
    ) -> Result<(), GatherError> {
        match in_place {
            Some(in_place) => in_place.fetch(needs, self.edge_features, rows)?,
            None => {
                rows.set_version(self.edge_features.version());
                rows.fetch_edge_rows(needs, |ids, out| self.edge_features.gather(ids, out))?;
            }
        }
        rows.fetch_nodes(nodes, needs.node_feature_dim, |ids, out| self.node_features.gather(ids, out))?;
        Ok(())
    }

    /// Samples the seeds of `neighborhood` and gathers all that embedding them reads, with the messages that are
    /// `pending` by node, where memory is computed from those.
    ///
    /// # Errors
    /// Edges or rows cannot be read.
    pub fn gather(
        &self,
        needs: &Needs,
        neighborhood: &mut Neighborhood,
        (rows, in_place): (&mut FeatureRows, Option<&DeviceRows>),
        pending: Option<&dyn Fn(NodeId) -> Option<(EdgeId, EventTime)>>,
    ) -> Result<(), GatherError> {
        self.sample(needs, neighborhood)?;
        neighborhood.number(&[]);
        rows.clear();
        rows.keep_from(self.view.rows_from());
        let nodes = neighborhood.nodes().nodes();
        if needs.edge_row_dim > 0 {
            rows.number_sample(neighborhood);
        }
        if let Some(pending) = pending.filter(|_| needs.reads_messages()) {
            rows.index_messages((nodes, 0..nodes.len()), self.view.since(), pending);
        }
        self.fetch(needs, nodes, rows, in_place)
    }
}
