//! Index distributions as they occur: sequential, uniform, skewed, recent.

use crate::device::rng;

use super::inputs::SEED;

/// A prime that shares no divisor with the usual table sizes.
const STRIDE: u64 = 2_654_435_761;

/// `n` rows of a table of `rows`, distributed as `how` says. `purpose` keeps several lists of one point apart.
///
/// - `sequential`: 0, 1, 2, …, from the start again at the end
/// - `uniform`: any row
/// - `zipf`: row of rank r with a probability that falls as 1/r; ranks lie anywhere in the table
/// - `recency`: a front moves through the table once; rows a little behind it, exponentially fewer further back
///
/// # Errors
/// When `how` is none of these.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
pub fn draw(how: &str, n: usize, rows: usize, purpose: u64) -> anyhow::Result<Vec<u32>> {
    let table = rows.max(1) as u64;
    let unit = |i: u64| f64::from(rng::unit_f32([SEED, 1, purpose, i]));
    let one: Box<dyn Fn(u64) -> u64> = match how {
        "sequential" => Box::new(move |i| i % table),
        "uniform" => Box::new(move |i| u64::from(rng::below([SEED, 1, purpose, i], table as u32))),
        "zipf" => Box::new(move |i| {
            let rank = ((table as f64).powf(unit(i)) - 1.0) as u64;
            (rank * STRIDE) % table
        }),
        "recency" => Box::new(move |i| {
            let front = i * table / n as u64;
            let back = (-(1.0 - unit(i)).ln() * 1000.0) as u64;
            (front + table - back % table) % table
        }),
        _ => anyhow::bail!("indices={how}: one of sequential, uniform, zipf, recency"),
    };
    Ok((0..n as u64).map(|i| one(i) as u32).collect())
}

/// Group sizes around `mean`, from 0 to twice that, as offsets; they end at `groups * mean`.
pub fn offsets(groups: usize, mean: usize) -> Vec<u32> {
    let total = groups * mean;
    let mut offsets = vec![0_u32];
    let mut sum = 0;
    for g in 0..groups as u64 {
        sum += rng::below([SEED, 3, g, 0], 2 * mean as u32 + 1) as usize;
        offsets.push(sum.min(total) as u32);
    }
    if let Some(last) = offsets.last_mut() {
        *last = total as u32;
    }
    offsets
}

/// Occupied slots: `slots` for most groups, fewer for one in four, 0 for some.
pub fn counts(groups: usize, slots: usize) -> Vec<u32> {
    let one = |g: u64| match rng::below([SEED, 4, g, 0], 4) {
        0 => rng::below([SEED, 5, g, 0], slots as u32 + 1),
        _ => slots as u32,
    };
    (0..groups as u64).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distribution_stays_inside_and_is_what_it_says() {
        for how in ["sequential", "uniform", "zipf", "recency"] {
            let index = draw(how, 10_000, 1_000, 0).unwrap();
            assert!(index.iter().all(|row| *row < 1_000), "{how}");
            let mut seen = vec![0; 1_000];
            index.iter().for_each(|row| seen[*row as usize] += 1);
            let top = seen.iter().max().unwrap();
            assert!(if how == "zipf" { *top > 500 } else { *top < 60 }, "{how}: {top}");
        }
        assert!(draw("other", 1, 1, 0).unwrap_err().to_string().contains("indices=other"));
        let offsets = offsets(1_000, 10);
        assert_eq!((offsets.len(), offsets[1_000]), (1_001, 10_000));
        assert!(offsets.is_sorted());
    }
}
