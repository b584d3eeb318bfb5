//! Text of a bounded length that a serializer writes.

use std::io;

/// Text so far.
pub(super) struct Text {
    bytes: Vec<u8>,
    /// Bytes that may still come; `None` after one too many.
    left: Option<usize>,
}

impl Text {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), left: Some(bytes_max) }
    }

    /// The text; `None` if it would have been too long.
    pub fn finish(self) -> Option<Vec<u8>> {
        self.left.map(|_| self.bytes)
    }
}

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.and_then(|left| left.checked_sub(bytes.len()));
        if self.left.is_none() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
