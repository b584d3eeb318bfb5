//! [`Layout`]: where rows lie in a buffer, for layers that read and write parts of longer rows.

use crate::device::cuda::error::CudaError;
use crate::device::cuda::memory::CudaBuffer;

/// Where rows lie in a buffer, in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where the first one begins.
    pub first: usize,
    /// From the beginning of a row to that of the next.
    pub stride: usize,
    /// From the beginning of a part to that of the next, where there are several.
    pub step: usize,
}

/// Rows that are read.
pub type Matrix<'a> = (&'a CudaBuffer<f32>, Layout);

/// Rows that are written.
pub type MatrixMut<'a> = (&'a mut CudaBuffer<f32>, Layout);

impl Layout {
    /// Rows of `columns` values without anything between them, from the beginning on.
    #[must_use]
    pub fn dense(columns: usize) -> Self {
        Self { first: 0, stride: columns, step: 0 }
    }

    /// The same from value `first` on.
    #[must_use]
    pub fn at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// The same for parts that begin `step` values apart.
    #[must_use]
    pub fn parts(self, step: usize) -> Self {
        Self { step, ..self }
    }

    /// How many values a buffer has at least that holds all parts of so many rows and columns.
    ///
    /// # Errors
    /// More than memory can have.
    pub(super) fn end(
        self,
        operation: &'static str,
        what: &str,
        [rows, columns, parts]: [usize; 3],
    ) -> Result<usize, CudaError> {
        if rows == 0 || columns == 0 || parts == 0 {
            return Ok(0);
        }
        let (before, above) = (self.step.checked_mul(parts - 1), self.stride.checked_mul(rows - 1));
        let end = before.zip(above).and_then(|(before, above)| {
            before.checked_add(above)?.checked_add(self.first)?.checked_add(columns)
        });
        end.ok_or_else(|| {
            let mismatch =
                format!("{what}: {rows} rows of {columns} values, {self:?}, are beyond all memory");
            CudaError::Arguments { operation, mismatch }
        })
    }

    /// The same, of rows that are written and so must not overlap.
    ///
    /// # Errors
    /// Rows that overlap, or more than memory can have.
    pub(super) fn end_apart(
        self,
        operation: &'static str,
        what: &str,
        sizes: [usize; 3],
    ) -> Result<usize, CudaError> {
        if sizes[0] > 1 && self.stride < sizes[1] {
            let mismatch = format!("{what}: rows of {} values, {} apart, overlap", sizes[1], self.stride);
            return Err(CudaError::Arguments { operation, mismatch });
        }
        self.end(operation, what, sizes)
    }
}

/// What happens with a result and what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// It is added.
    pub add: bool,
    /// Of what comes out, negative values are cleared.
    pub relu: bool,
}

impl Put {
    /// In the place of what is there.
    pub const REPLACE: Self = Self { add: false, relu: false };
    /// Added to what is there.
    pub const ADD: Self = Self { add: true, relu: false };

    /// Cleared of negative values.
    #[must_use]
    pub fn rectified(self) -> Self {
        Self { relu: true, ..self }
    }

    /// As kernels have it.
    pub(super) fn bits(self) -> u32 {
        u32::from(self.add) | u32::from(self.relu) << 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_needs_its_columns_alone() {
        let end = |layout: Layout, sizes| layout.end("a test", "rows", sizes).unwrap();
        assert_eq!(end(Layout::dense(3), [4, 3, 1]), 12);
        assert_eq!(end(Layout { first: 2, stride: 10, step: 3 }, [4, 3, 2]), 2 + 3 + 30 + 3);
        assert_eq!(end(Layout { first: 9, stride: 10, step: 3 }, [0, 3, 2]), 0);
        let far = Layout { first: 0, stride: usize::MAX / 2, step: 0 };
        assert!(far.end("a test", "rows", [4, 1, 1]).unwrap_err().to_string().contains("beyond all memory"));
        let near = Layout { first: 0, stride: 2, step: 0 };
        assert!(near.end_apart("a test", "rows", [2, 3, 1]).unwrap_err().to_string().contains("overlap"));
        assert_eq!(near.end_apart("a test", "rows", [1, 3, 1]).unwrap(), 3);
    }
}
