//! Memory limits of a run for rows and for adjacency: `64MiB`, `25%` of the total, or no limit.

use std::str::FromStr;

/// A limit on memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// So many bytes.
    Bytes(u64),
    /// A share of the total, in `0.0..=1.0`.
    Share(f64),
}

impl Budget {
    /// In bytes, given the total.
    pub fn of(self, whole: impl FnOnce() -> anyhow::Result<u64>) -> anyhow::Result<u64> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Share(share) => Ok((whole()? as f64 * share) as u64),
        }
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no memory limit: write bytes such as 64MiB, or a share such as 25%");
        let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let scale = match unit.trim() {
            "%" if number <= 100.0 => return Ok(Self::Share(number / 100.0)),
            "" | "B" => 1.0,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            _ => return Err(wrong()),
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // not negative, and saturating
        Ok(Self::Bytes((number * scale) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_shares_are_read_and_other_words_refused() {
        let read = |text: &str| text.parse::<Budget>();
        assert_eq!(read("64MiB"), Ok(Budget::Bytes(64 << 20)));
        assert_eq!(read("1.5 kB"), Ok(Budget::Bytes(1_500)));
        assert_eq!((read("7"), read("0B")), (Ok(Budget::Bytes(7)), Ok(Budget::Bytes(0))));
        assert_eq!((read("25%"), read("100%")), (Ok(Budget::Share(0.25)), Ok(Budget::Share(1.0))));
        for text in ["", "%", "101%", "-3", "1..2", "5 MiBs", "much"] {
            assert!(read(text).unwrap_err().contains(text), "{text}");
        }
    }
}
