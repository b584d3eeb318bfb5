//! Facts about this machine, which are recorded with every measurement.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use serde_json::{Value, json};

/// CPU, cores, threads used, memory and our version. An unknown fact is null.
#[must_use]
pub fn facts(threads: usize) -> Value {
    json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": available_parallelism().ok().map(usize::from),
        "threads": threads,
        "memory_bytes": memory_bytes(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Most memory that this process ever had resident.
#[must_use]
pub fn peak_resident_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM")
}

/// Seconds that all threads of this process have computed.
#[must_use]
pub fn cpu_seconds() -> Option<f64> {
    /// Parts of a second in which the kernel reports times to programs, on every architecture that this runs on.
    const TICKS: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The second value is the name of the program, in parentheses, which may hold anything.
    let (_, values) = text.rsplit_once(')')?;
    let ticks = |place: usize| values.split_whitespace().nth(place)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

/// Speed and width of the link of the device at `bus`, now and at most, as the kernel reports them under `devices`. A
/// GPU without work lowers its speed.
#[must_use]
pub fn pci_link(devices: &Path, bus: &str) -> Option<String> {
    let read = |name: &str| {
        let text = fs::read_to_string(devices.join(bus).join(name)).ok()?;
        Some(text.trim().to_owned())
    };
    let (speed, width) = (read("current_link_speed")?, read("current_link_width")?);
    let (speed_max, width_max) = (read("max_link_speed")?, read("max_link_width")?);
    Some(format!("link {speed} x{width}, at most {speed_max} x{width_max}"))
}

fn memory_bytes() -> Option<u64> {
    kibibytes("/proc/meminfo", "MemTotal")
}

/// A size that the kernel reports, in bytes.
fn kibibytes(path: &str, name: &str) -> Option<u64> {
    let text = field(path, name)?;
    text.strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

/// The value of the first line `name : value` of a file of the kernel.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_reported_as_the_kernel_reports_it() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("0000:65:00.0");
        fs::create_dir(&device).unwrap();
        for (name, text) in [
            ("current_link_speed", "2.5 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
            ("max_link_speed", "32.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
        ] {
            assert_eq!(pci_link(folder.path(), "0000:65:00.0"), None);
            fs::write(device.join(name), text).unwrap();
        }
        let link = pci_link(folder.path(), "0000:65:00.0").unwrap();
        assert_eq!(link, "link 2.5 GT/s PCIe x16, at most 32.0 GT/s PCIe x16");
    }

    #[test]
    fn memory_and_cores_are_reported_on_linux() {
        let facts = facts(3);
        assert_eq!(facts["threads"], 3);
        assert!(facts["cores"].as_u64().unwrap() >= 1);
        assert!(facts["memory_bytes"].as_u64().unwrap() > 1 << 20);
        assert!(peak_resident_bytes().unwrap() > 1 << 20);
        let (before, mut sum) = (cpu_seconds().unwrap(), 0_u64);
        while cpu_seconds().unwrap() < before + 0.02 {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
