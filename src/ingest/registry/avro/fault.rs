//! Why bytes are no value: because of them, or because of whoever reads them.

use std::fmt::{self, Display};

/// Why there is no value.
#[derive(Debug)]
pub(super) enum Fault {
    /// The bytes are not what the schema describes.
    Bytes(String),
    /// Whoever reads takes no such value.
    Value(String),
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Bytes(why) | Self::Value(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for Fault {}

impl serde::de::Error for Fault {
    fn custom<T: Display>(why: T) -> Self {
        Self::Value(why.to_string())
    }
}

/// That the bytes are not what the schema describes.
pub(super) fn fault(why: impl Display) -> Fault {
    Fault::Bytes(why.to_string())
}
