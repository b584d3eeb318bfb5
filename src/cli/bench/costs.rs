//! [`Costs`]: what training takes besides time.

use crate::cli::machine;
use crate::device::cuda::EnergyMeter;

/// What training takes besides time, counted from its beginning.
pub(super) struct Costs {
    meter: Option<EnergyMeter>,
    cpu_seconds: Option<f64>,
    joules: Option<f64>,
}

impl Costs {
    /// From now on; the energy is what `meter` counts.
    pub fn begin(meter: Option<EnergyMeter>) -> Self {
        let joules = meter.as_ref().and_then(EnergyMeter::joules);
        Self { meter, cpu_seconds: machine::cpu_seconds(), joules }
    }

    /// Seconds of the CPU and joules of the GPU until now, for a million of so many events.
    pub fn per_million(&self, events: usize) -> [Option<f64>; 2] {
        let joules = self.meter.as_ref().and_then(EnergyMeter::joules);
        let spent = [machine::cpu_seconds().zip(self.cpu_seconds), joules.zip(self.joules)];
        spent.map(|ends| ends.map(|(end, begin)| (end - begin) * 1e6 / events.max(1) as f64))
    }
}
