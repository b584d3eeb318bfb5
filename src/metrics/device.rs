//! The metrics of the requested GPU.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::MetricInfo;
use super::handle::{Handle, Spec};

group! {
    /// The requested GPU.
    DeviceMetrics, DEVICE;
    degraded: IntGauge = "device_degraded" "1 while a requested GPU cannot be used, else 0.";
    memory: IntGaugeVec ["kind"] = "device_memory_bytes"
        "GPU memory in bytes; kind is used, peak or budget; absent without a GPU.";
    row_cache_rows: IntCounterVec ["result"] = "device_row_cache_rows_total"
        "Edge rows read by training on a GPU; result is hit, miss (copied there and cached), bypassed (copied only) or \
         restored (copied before its batch, which then hits).";
    edge_rows: IntCounterVec ["place"] = "device_edge_rows_total"
        "Edge rows of batches on a GPU; place is gpu (cached or read in place), or cpu (gathered by the CPU).";
    bus: IntCounterVec ["kind"] = "device_bus_bytes_total"
        "Bytes between main memory and the GPU; kind is to_gpu, to_host or read_in_place (graph uploads, edge rows).";
    samples: IntCounterVec ["place"] = "device_samples_total"
        "Samples of neighbors that a GPU was to draw for training; place is gpu, or cpu where it could not.";
}
