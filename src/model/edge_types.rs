//! What kind of event an edge is: a learned row for each type, beside the features of the edge wherever a model reads
//! these.
//!
//! ```text
//! e'_ij = [T_k ; e_ij]        k: number of the edge's type        T: [known + 1, width], learned
//! ```
//! Types are numbered from 1 on in order of first appearance. T_0 stands for "none" and for every number above
//! `known`.
//!
//! The number of a type is the first value of an edge's stored row: below 2^16 it is exact in 32 bits. So a type is
//! kept, moved to disk, deleted and released as the features are, and a row that is not there is an edge without a
//! type. What a model does not read of a sample costs nothing: without `known` types there is neither table nor number.
//!
//! In a sample the rows of types stand behind the rows of neighbors ([`Hop::typed`]), each different pair of both once,
//! because the operations that read slots have gradients for these.

use hashbrown::HashMap;

use super::builder::{Builder, Fill, ModelError};
use super::{EMPTY_SLOT, Hop};
use crate::nn::{ParamId, Tape, Var};

/// Which types of edges a model distinguishes, and how wide a type's row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeTypes {
    /// How many types have a row of their own; 0: the model knows no types.
    pub known: usize,
    /// Width of a row; at least 1 if types are known, else 0.
    pub width: usize,
}

impl EdgeTypes {
    /// `known` types with rows of `width` values; nothing if none are known.
    #[must_use]
    pub fn new(known: usize, width: usize) -> Self {
        if known == 0 { Self::default() } else { Self { known, width } }
    }

    /// Values of an edge's stored row, given how many features it has.
    #[must_use]
    pub fn row_dim(self, features: usize) -> usize {
        features + usize::from(self.known > 0)
    }

    /// Whether the type with this number has a row of its own, or is none.
    #[must_use]
    pub fn knows(self, number: u16) -> bool {
        usize::from(number) <= self.known
    }

    /// An edge's stored row in `row`, in place of what was there: the number of its type, if types are known, and
    /// its `features`, zeros if it has none.
    pub fn put_row(self, number: u16, features: &[f32], dimension: usize, row: &mut Vec<f32>) {
        row.clear();
        if self.known > 0 {
            row.push(f32::from(number));
        }
        row.extend_from_slice(features);
        row.resize(self.row_dim(dimension), 0.0);
    }

    /// The table of types, if any are known. A type is one of many, so its values are as large as those of an input.
    pub(super) fn build(self, b: &mut Builder<'_>) -> Result<Option<ParamId>, ModelError> {
        let fill = Fill::Uniform { fan_in: 1 };
        (self.known > 0).then(|| b.add("edge_types", self.known + 1, self.width, fill)).transpose()
    }
}

/// The row of a table of `known` types for what a stored row begins with.
pub(super) fn number(stored: f32, known: usize) -> u32 {
    // What is not a number is 0, as what is no type.
    let number = stored as u32;
    if number as usize > known { 0 } else { number }
}

impl Hop {
    /// The table that the slots read: `table` itself without `types`; else each of its rows beside the row of the type
    /// of the edge by which it was met. The slots name the rows of the new table from then on.
    pub(super) fn typed(&mut self, tape: &mut Tape<'_>, table: Var, types: Option<ParamId>) -> Var {
        let Some(types) = types else { return table };
        self.readers = None;
        // Rows without values are all alike.
        let wide = tape.value(table).cols() > 0;
        let (mut rows, mut kinds, mut places) = (Vec::new(), Vec::new(), HashMap::new());
        for (slot, &kind) in self.neighbors.values_mut().iter_mut().zip(&self.types) {
            if *slot == EMPTY_SLOT {
                continue;
            }
            let row = if wide { *slot } else { 0 };
            *slot = *places.entry((row, kind)).or_insert_with(|| {
                rows.push(row);
                kinds.push(kind);
                // There are no more pairs than slots, which are counted in 32 bits.
                (rows.len() - 1) as u32
            });
        }
        let types = tape.param(types);
        let kinds = tape.gather(types, kinds);
        if !wide {
            return kinds;
        }
        let rows = tape.gather(table, rows);
        tape.concat(&[rows, kinds])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_row_holds_the_type_and_an_unknown_one_is_none() {
        let (types, mut row) = (EdgeTypes::new(2, 4), vec![9.0; 7]);
        for (kind, features, expected) in
            [(2, &[0.5, 1.5][..], [2.0, 0.5, 1.5]), (0, &[], [0.0; 3]), (65_535, &[], [65_535.0, 0.0, 0.0])]
        {
            types.put_row(kind, features, 2, &mut row);
            assert_eq!(row, expected);
        }
        assert_eq!([0, 1, 2, 3, 65_535].map(|kind| types.knows(kind)), [true, true, true, false, false]);
        let read =
            [0.0, 1.0, 2.0, 3.0, 65_535.0, -1.0, f32::NAN, f32::INFINITY].map(|value| number(value, 2));
        assert_eq!(read, [0, 1, 2, 0, 0, 0, 0, 0]);
        EdgeTypes::new(0, 4).put_row(2, &[0.5], 1, &mut row);
        assert_eq!((row, EdgeTypes::new(0, 4)), (vec![0.5], EdgeTypes::default()));
    }
}
