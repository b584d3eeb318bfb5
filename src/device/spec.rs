//! [`DeviceSpec`]: which device somebody wants, as it is written in settings.

use std::fmt;
use std::str::FromStr;

/// Which device is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceSpec {
    /// What serves best of what there is.
    #[default]
    Auto,
    /// The CPU, whatever else there is.
    Cpu,
    /// The NVIDIA GPU of this number, in the driver's order from 0.
    Cuda(usize),
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("cuda:").filter(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        match (text, digits.map(str::parse)) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(Ok(number))) => Ok(Self::Cuda(number)),
            _ => Err(format!("{text:?} is no device: write auto, cpu, or cuda:N, for example cuda:0")),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_all_else_refused() {
        for spec in [DeviceSpec::Auto, DeviceSpec::Cpu, DeviceSpec::Cuda(0), DeviceSpec::Cuda(17)] {
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
        for text in [
            "",
            "gpu",
            "cuda",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:x",
            "CPU",
            "cuda:99999999999999999999999",
        ] {
            let error = text.parse::<DeviceSpec>().unwrap_err();
            assert!(error.contains(&format!("{text:?}")) && error.contains("cuda:0"), "{error}");
        }
    }
}
