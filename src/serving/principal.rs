//! Principal components: rows of many values drawn in the plane, so that as much of their variance as possible is kept.
//!
//! The two axes are the leading eigenvectors of the covariance, by orthogonal iteration from fixed vectors. Sums are in
//! double precision and in the order of the rows, and each axis points to where its largest entry is positive, so the
//! same rows always have the same places.

use crate::device::rng::unit_f32;

/// Rounds of the iteration. Axes that are still mixed by then hold nearly the same variance, and either will do.
const ROUNDS: usize = 200;

/// The change of an axis in a round below which it stands.
const STILL: f64 = 1e-12;

/// What is left of a vector without its part along an axis, as a share of the vector, where that is rounding alone.
const NOTHING: f64 = 1e-12;

/// Numbers the random vectors that the iteration begins with.
const START: u64 = 0x706c_616e_6531;

/// Rows in the plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Plane {
    /// One place for each row.
    pub places: Vec<[f32; 2]>,
    /// Share of the variance that each axis holds; 0 where the rows do not differ.
    pub explained: [f64; 2],
}

/// Projects `rows`, all of one length, on their two principal axes.
#[must_use]
pub fn plane(rows: &[Vec<f32>]) -> Plane {
    let width = rows.iter().map(Vec::len).min().unwrap_or_default();
    let mean = mean(rows, width);
    let covariance = Covariance::of(rows, &mean);
    let variance: f64 = (0..width).map(|i| covariance.row(i).get(i).copied().unwrap_or_default()).sum();
    let axes = covariance.axes();
    let place = |row: &Vec<f32>| axes.each_ref().map(|(axis, _)| project(row, &mean, axis));
    let share = |held: f64| if variance > 0.0 { (held / variance).clamp(0.0, 1.0) } else { 0.0 };
    Plane {
        places: rows.iter().map(place).collect(),
        explained: axes.each_ref().map(|(_, held)| share(*held)),
    }
}

#[allow(clippy::cast_precision_loss)]
fn mean(rows: &[Vec<f32>], width: usize) -> Vec<f64> {
    let mut mean = vec![0.0; width];
    for row in rows {
        mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    mean.iter_mut().for_each(|sum| *sum /= rows.len().max(1) as f64);
    mean
}

#[allow(clippy::cast_possible_truncation)]
fn project(row: &[f32], mean: &[f64], axis: &[f64]) -> f32 {
    row.iter().zip(mean).zip(axis).map(|((value, mean), axis)| (f64::from(*value) - mean) * axis).sum::<f64>()
        as f32
}

/// A symmetric matrix, row by row.
struct Covariance {
    width: usize,
    values: Vec<f64>,
}

impl Covariance {
    #[allow(clippy::cast_precision_loss)]
    fn of(rows: &[Vec<f32>], mean: &[f64]) -> Self {
        let width = mean.len();
        let (mut values, mut centered) = (vec![0.0; width * width], vec![0.0; width]);
        for row in rows {
            for ((value, mean), centered) in row.iter().zip(mean).zip(&mut centered) {
                *centered = f64::from(*value) - mean;
            }
            // From the diagonal on: the rest is the same.
            for (at, (sums, &one)) in values.chunks_exact_mut(width.max(1)).zip(&centered).enumerate() {
                sums.iter_mut().zip(&centered).skip(at).for_each(|(sum, other)| *sum += one * other);
            }
        }
        values.iter_mut().for_each(|sum| *sum /= rows.len().max(1) as f64);
        let mut covariance = Self { width, values };
        covariance.mirror();
        covariance
    }

    /// Copies what is above the diagonal below it.
    fn mirror(&mut self) {
        for (row, column) in (0..self.width).flat_map(|row| (0..row).map(move |column| (row, column))) {
            let above = self.row(column).get(row).copied().unwrap_or_default();
            if let Some(below) = self.values.get_mut(row * self.width + column) {
                *below = above;
            }
        }
    }

    fn row(&self, number: usize) -> &[f64] {
        self.values.get(number * self.width..(number + 1) * self.width).unwrap_or_default()
    }

    fn times(&self, vector: &[f64]) -> Vec<f64> {
        (0..self.width).map(|row| dot(self.row(row), vector)).collect()
    }

    /// The two leading axes and the variance along each, the larger one first.
    fn axes(&self) -> [(Vec<f64>, f64); 2] {
        let [mut first, mut second] = [0, 1].map(|number| self.start(number));
        for _ in 0..ROUNDS {
            let (mut one, mut other) = (self.times(&first), self.times(&second));
            normalize(&mut one);
            subtract(&mut other, &one);
            normalize(&mut other);
            let moved = distance(&one, &first) + distance(&other, &second);
            (first, second) = (one, other);
            if moved < STILL {
                break;
            }
        }
        let [first, second] = [first, second].map(|mut axis| {
            let held = dot(&self.times(&axis), &axis);
            orient(&mut axis);
            (axis, held)
        });
        if second.1 > first.1 { [second, first] } else { [first, second] }
    }

    /// A random vector: it has a part along every axis, whereas a unit vector has none along those of other blocks of
    /// the matrix, which the iteration could then never find.
    fn start(&self, number: u64) -> Vec<f64> {
        (0..self.width).map(|at| f64::from(unit_f32([START, number, at as u64, 0])) - 0.5).collect()
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn distance(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| (one - other).powi(2)).sum()
}

/// Gives it length 1; what is as good as zero becomes zero: there is no such axis.
fn normalize(vector: &mut [f64]) {
    let length = dot(vector, vector).sqrt();
    vector
        .iter_mut()
        .for_each(|value| *value = if length > f64::MIN_POSITIVE { *value / length } else { 0.0 });
}

/// Takes away the part along `axis`. Where nothing else was there, what remains is zero.
fn subtract(vector: &mut [f64], axis: &[f64]) {
    let whole = dot(vector, vector);
    // The second time takes what rounding left of it.
    for _ in 0..2 {
        let along = dot(vector, axis);
        vector.iter_mut().zip(axis).for_each(|(value, axis)| *value -= along * axis);
    }
    if dot(vector, vector) <= NOTHING.powi(2) * whole {
        vector.fill(0.0);
    }
}

fn orient(axis: &mut [f64]) {
    let largest = axis.iter().copied().max_by(|one, other| one.abs().total_cmp(&other.abs()));
    if largest.is_some_and(|largest| largest < 0.0) {
        axis.iter_mut().for_each(|value| *value = -*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 6;

    /// Rows whose variance is 9 along one direction, 4 along another, and little along the rest, turned and moved.
    fn rows(count: u64) -> (Vec<Vec<f32>>, [Vec<f64>; 2]) {
        let mut one = vec![1.0, 2.0, 0.0, -1.0, 0.5, 1.5];
        let mut other = vec![0.3, -1.0, 2.0, 0.7, 0.0, 1.0];
        normalize(&mut one);
        subtract(&mut other, &one);
        normalize(&mut other);
        // Evenly distributed in -1..1, with the variance 1/3.
        let drawn = |row: u64, lane: u64| f64::from(unit_f32([row, lane, 7, 0])) * 2.0 - 1.0;
        let row = |number: u64| -> Vec<f32> {
            (0..WIDTH)
                .map(|i| {
                    let noise = 0.01 * drawn(number, 9 + i as u64);
                    (5.0 + 3.0 * drawn(number, 1) * one[i] + 2.0 * drawn(number, 2) * other[i] + noise) as f32
                })
                .collect()
        };
        ((0..count).map(row).collect(), [one, other])
    }

    #[test]
    fn places_are_along_the_directions_of_largest_variance() {
        let (rows, axes) = rows(2_000);
        let Plane { places, explained } = plane(&rows);
        assert!((explained[0] - 9.0 / 13.0).abs() < 0.03, "{explained:?}");
        assert!((explained[1] - 4.0 / 13.0).abs() < 0.03, "{explained:?}");
        assert!(explained.iter().sum::<f64>() > 0.999, "the rest is noise: {explained:?}");
        let mean = mean(&rows, WIDTH);
        for (axis, number) in axes.iter().zip(0..2) {
            let along: Vec<f64> = rows.iter().map(|row| f64::from(project(row, &mean, axis))).collect();
            let found: Vec<f64> = places.iter().map(|place| f64::from(place[number])).collect();
            let cosine = dot(&along, &found) / (dot(&along, &along) * dot(&found, &found)).sqrt();
            assert!(cosine.abs() > 0.99, "axis {number}: {cosine}");
        }
    }

    #[test]
    fn the_leading_axes_are_found_in_any_block_and_come_in_order() {
        let explained = |width: usize, values: Vec<f64>| {
            assert_eq!(values.len(), width * width);
            let axes = Covariance { width, values }.axes();
            axes.map(|(_, held)| held)
        };
        // The largest diagonal entry is not the largest variance.
        let found = explained(3, vec![3.0, 0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 2.0, 2.0]);
        assert!((found[0] - 4.0).abs() < 1e-6 && (found[1] - 3.0).abs() < 1e-6, "{found:?}");
        // Three values that vary together hold 6, each of them 2.
        let mut blocks = vec![0.0; 25];
        (blocks[0], blocks[6]) = (3.0, 2.5);
        for (row, column) in (2..5).flat_map(|row| (2..5).map(move |column| (row, column))) {
            blocks[row * 5 + column] = 2.0;
        }
        let found = explained(5, blocks);
        assert!((found[0] - 6.0).abs() < 1e-6 && (found[1] - 3.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn rows_that_differ_in_one_direction_have_one_axis() {
        let rows: Vec<Vec<f32>> = [-2.0, 1.0, 4.0].map(|along| vec![along, 2.0 * along, -along]).to_vec();
        let Plane { places, explained } = plane(&rows);
        assert!((explained[0] - 1.0).abs() < 1e-9 && explained[1] < 1e-9, "{explained:?}");
        assert!(places.iter().all(|place| place[1].abs() < 1e-5), "{places:?}");
    }

    #[test]
    fn distances_between_rows_of_two_values_are_kept() {
        let rows: Vec<Vec<f32>> = vec![vec![0.0, 0.0], vec![3.0, 4.0], vec![-1.0, 7.0], vec![2.5, -6.0]];
        let Plane { places, explained } = plane(&rows);
        assert!((explained.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let apart = |one: &[f32], other: &[f32]| (one[0] - other[0]).hypot(one[1] - other[1]);
        for (i, j) in [(0, 1), (0, 2), (1, 3), (2, 3)] {
            assert!((apart(&rows[i], &rows[j]) - apart(&places[i], &places[j])).abs() < 1e-5);
        }
    }

    #[test]
    fn rows_that_do_not_differ_lie_in_one_place_and_none_have_none() {
        let same = plane(&[vec![1.0, 2.0, 3.0], vec![1.0, 2.0, 3.0]]);
        assert_eq!(same, Plane { places: vec![[0.0, 0.0]; 2], explained: [0.0, 0.0] });
        assert_eq!(plane(&[]), Plane { places: Vec::new(), explained: [0.0, 0.0] });
        let single = plane(&[vec![1.0], vec![3.0]]);
        assert_eq!(single.places, [[-1.0, 0.0], [1.0, 0.0]]);
        assert_eq!(plane(&rows(50).0), plane(&rows(50).0), "the same rows have the same places");
    }
}
