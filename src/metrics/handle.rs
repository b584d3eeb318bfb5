//! How a metric's handle is made from its description and registered, whatever its type.

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::MetricInfo;

/// Name, help and labels of a metric about to be registered.
pub(super) struct Spec<'a> {
    pub registry: &'a Registry,
    pub info: MetricInfo,
    pub buckets: &'a [f64],
}

/// A handle that can be made from its description. Fails only on a name that is malformed or taken,
/// which no input can cause.
pub(super) trait Handle: Collector + Clone + 'static {
    fn create(spec: &Spec<'_>) -> prometheus::Result<Self>;

    fn register(spec: &Spec<'_>) -> prometheus::Result<Self> {
        let handle = Self::create(spec)?;
        spec.registry.register(Box::new(handle.clone()))?;
        Ok(handle)
    }
}

macro_rules! plain_handle {
    ($($scalar:ident $vector:ident),*) => { $(
        impl Handle for $scalar {
            fn create(spec: &Spec<'_>) -> prometheus::Result<Self> {
                Self::with_opts(Opts::new(spec.info.name, spec.info.help))
            }
        }
        impl Handle for $vector {
            fn create(spec: &Spec<'_>) -> prometheus::Result<Self> {
                Self::new(Opts::new(spec.info.name, spec.info.help), spec.info.labels)
            }
        }
    )* };
}
plain_handle!(IntCounter IntCounterVec, IntGauge IntGaugeVec, Gauge GaugeVec);

impl Handle for Histogram {
    fn create(spec: &Spec<'_>) -> prometheus::Result<Self> {
        let options = HistogramOpts::new(spec.info.name, spec.info.help);
        Self::with_opts(options.buckets(spec.buckets.to_vec()))
    }
}

impl Handle for HistogramVec {
    fn create(spec: &Spec<'_>) -> prometheus::Result<Self> {
        let options = HistogramOpts::new(spec.info.name, spec.info.help);
        Self::new(options.buckets(spec.buckets.to_vec()), spec.info.labels)
    }
}
