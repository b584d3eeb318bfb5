//! Rows by index. The scatter-add of the backward is turned around: [`Users`] lists, for every row, who read it,
//! in order; then each row sums its users, so that the result does not depend on threads.

use rayon::prelude::*;

use super::piece_rows;

/// For every row, the places that read it, ascending.
pub struct Users {
    /// The places of row `r` are `places[starts[r]..starts[r + 1]]`.
    starts: Vec<u32>,
    places: Vec<u32>,
}

impl Users {
    /// Inverts `index` (place to row); `u32::MAX` reads nothing. By counting, in linear time.
    pub fn new(index: &[u32], rows: usize) -> Self {
        let mut starts = vec![0u32; rows + 2];
        let read = |row: &&u32| **row != u32::MAX;
        // Counted two places further, `starts[r + 1]` is the write position of row r and ends as its end.
        index.iter().filter(read).for_each(|row| starts[*row as usize + 2] += 1);
        for r in 2..starts.len() {
            starts[r] += starts[r - 1];
        }
        let mut places = vec![0u32; starts.last().map_or(0, |n| *n as usize)];
        for (place, row) in index.iter().enumerate().filter(|(_, row)| **row != u32::MAX) {
            let at = &mut starts[*row as usize + 1];
            places[*at as usize] = place as u32;
            *at += 1;
        }
        Self { starts, places }
    }

    fn of(&self, row: usize) -> &[u32] {
        &self.places[self.starts[row] as usize..self.starts[row + 1] as usize]
    }
}

/// `out[i] = x[index[i]]`, rows of `cols`.
pub fn gather(out: &mut [f32], x: &[f32], cols: usize, index: &[u32]) {
    if cols == 0 {
        return;
    }
    let rows = piece_rows(cols);
    out.par_chunks_mut(rows * cols).zip(index.par_chunks(rows)).for_each(|(out, index)| {
        for (o, i) in out.chunks_exact_mut(cols).zip(index) {
            o.copy_from_slice(&x[*i as usize * cols..][..cols]);
        }
    });
}

/// `out[i] = x[index[i]]` (fresh) or `out[i] += x[index[i]]`.
pub fn gather_add(out: &mut [f32], x: &[f32], cols: usize, index: &[u32], fresh: bool) {
    if cols == 0 {
        return;
    }
    for (o, i) in out.chunks_exact_mut(cols).zip(index) {
        super::elementwise::accumulate(o, &x[*i as usize * cols..][..cols], fresh);
    }
}

/// `out[index[i]] = x[i]`.
pub fn put_rows(out: &mut [f32], cols: usize, index: &[u32], x: &[f32]) {
    if cols == 0 {
        return;
    }
    for (x, i) in x.chunks_exact(cols).zip(index) {
        out[*i as usize * cols..][..cols].copy_from_slice(x);
    }
}

/// `out[index[i]] = 0`.
pub fn clear_rows(out: &mut [f32], cols: usize, index: &[u32]) {
    for i in index {
        out[*i as usize * cols..][..cols].fill(0.0);
    }
}

/// `dx[r] (+)= sum over users p of r of d[p]`: rows of `cols` in `dx`, rows `stride` apart in `d`. Fresh rows
/// without users become zero.
pub fn scatter_add(dx: &mut [f32], cols: usize, fresh: bool, users: &Users, d: &[f32], stride: usize) {
    if cols == 0 {
        return;
    }
    let rows = piece_rows(cols);
    dx.par_chunks_mut(rows * cols).enumerate().for_each(|(piece, dx)| {
        for (r, sum) in dx.chunks_exact_mut(cols).enumerate() {
            let mut places = users.of(piece * rows + r).iter().map(|p| &d[*p as usize * stride..][..cols]);
            if fresh {
                match places.next() {
                    Some(first) => sum.copy_from_slice(first),
                    None => sum.fill(0.0),
                }
            }
            for place in places {
                sum.iter_mut().zip(place).for_each(|(s, v)| *s += v);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_listed_in_order() {
        let users = Users::new(&[2, 0, u32::MAX, 2, 2], 4);
        assert_eq!(users.of(0), &[1]);
        assert!(users.of(1).is_empty());
        assert_eq!(users.of(2), &[0, 3, 4]);
        assert!(users.of(3).is_empty());
    }
}
