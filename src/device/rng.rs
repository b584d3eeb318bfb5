//! Counter-based random numbers: a number is a pure function of its key, so it does not matter which
//! thread, device or order asks for it.
//!
//! A key is four 64-bit words. Each word is absorbed into a 64-bit state by one step of SplitMix64:
//! `absorb(state, word) = mix(state + (word + 1) * GOLDEN)`, starting from [`START`], where `mix` is
//! SplitMix64's output function. For a fixed prefix of three words the numbers with last word 0, 1,
//! 2, … are therefore exactly the SplitMix64 sequence seeded with the prefix's state, which passes the
//! usual statistical batteries; and the prefix can be computed once ([`prefix`]) and many numbers drawn
//! from it ([`draw`]). All of it is 64-bit multiplies, shifts and adds: the same on a GPU.
//!
//! Knows nothing of what the words of a key mean, and keeps no state.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The state before the first word of a key: any constant will do but 0, which `mix` leaves as it is.
pub const START: u64 = 0x243F_6A88_85A3_08D3;

/// SplitMix64's output function: a bijection of the 64-bit integers.
#[inline(always)]
const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The state after one more word of a key.
#[inline(always)]
#[must_use]
pub const fn absorb(state: u64, word: u64) -> u64 {
    mix(state.wrapping_add(word.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// The random number that follows from a [`prefix`] and the last word of a key.
#[inline(always)]
#[must_use]
pub const fn draw(prefix: u64, last: u64) -> u64 {
    absorb(prefix, last)
}

/// The state after the first three words of a key: `draw(prefix([a, b, c]), d)` is
/// `random_u64([a, b, c, d])`.
#[inline]
#[must_use]
pub const fn prefix(words: [u64; 3]) -> u64 {
    absorb(absorb(absorb(START, words[0]), words[1]), words[2])
}

/// A random number, uniform over all 64-bit integers, that depends on nothing but `key`.
#[inline]
#[must_use]
pub const fn random_u64(key: [u64; 4]) -> u64 {
    draw(prefix([key[0], key[1], key[2]]), key[3])
}

/// `random` scaled to `0..n` by multiply and shift; 0 if `n` is 0. No value is favoured by more than
/// n / 2^64 of its share.
#[inline(always)]
#[must_use]
#[allow(clippy::cast_possible_truncation)]
pub const fn scale(random: u64, n: u32) -> u32 {
    // (random * n) >> 64 in halves, which vectors can do: neither product nor sum exceeds 64 bits.
    let (high, low, n) = (random >> 32, random & 0xFFFF_FFFF, n as u64);
    ((high * n + ((low * n) >> 32)) >> 32) as u32
}

/// A random integer in `0..n`; 0 if `n` is 0.
#[inline]
#[must_use]
pub const fn below(key: [u64; 4], n: u32) -> u32 {
    scale(random_u64(key), n)
}

/// A random number in `[0, 1)`: a multiple of 2^-24, each equally likely.
#[inline]
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn unit_f32(key: [u64; 4]) -> f32 {
    (random_u64(key) >> 40) as f32 * (1.0 / 16_777_216.0)
}

/// A random number of the standard normal distribution, by Box and Muller's transform of the two
/// halves of one 64-bit number; always finite, of magnitude below 6.7.
#[must_use]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
pub fn normal_f32(key: [u64; 4]) -> f32 {
    let random = random_u64(key);
    let radius = ((random >> 32) as f64 + 1.0) / 4_294_967_296.0;
    let angle = (random & 0xFFFF_FFFF) as f64 / 4_294_967_296.0;
    ((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // The published SplitMix64 sequence for seed 0 and for seed 1234567.
        assert_eq!(
            [draw(0, 0), draw(0, 1), draw(0, 2)],
            [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]
        );
        assert_eq!(
            [draw(1_234_567, 0), draw(1_234_567, 1)],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        // Computed by another implementation of the module's description.
        for (key, expected) in [
            ([0; 4], 0x4534_183A_9817_A9A3),
            ([1, 2, 3, 4], 0x9490_76E1_E3EF_A0D0),
            ([u64::MAX; 4], 0x9A04_B598_3ED5_A094),
        ] {
            assert_eq!(random_u64(key), expected);
            assert_eq!(draw(prefix([key[0], key[1], key[2]]), key[3]), expected);
        }
    }

    #[test]
    fn every_word_of_the_key_changes_about_half_of_the_bits() {
        for word in 0..4 {
            let mut flipped = 0;
            for i in 0..1_000_u64 {
                let mut key = [i, i / 7, i % 13, i * i];
                let before = random_u64(key);
                key[word] ^= 1 << (i % 64);
                flipped += (before ^ random_u64(key)).count_ones();
            }
            let mean = f64::from(flipped) / 1_000.0;
            assert!((mean - 32.0).abs() < 1.0, "word {word}: {mean} bits of 64 change");
        }
    }

    #[test]
    fn below_is_uniform_along_every_word() {
        for word in 0..4 {
            let mut counts = [0_f64; 10];
            for i in 0..100_000 {
                let mut key = [11, 22, 33, 44];
                key[word] = i;
                counts[below(key, 10) as usize] += 1.0;
            }
            let chi_square: f64 = counts.iter().map(|count| (count - 10_000.0).powi(2) / 10_000.0).sum();
            // 9 degrees of freedom: 33.7 is exceeded once in ten thousand.
            assert!(chi_square < 33.7, "word {word}: {chi_square} {counts:?}");
        }
        assert_eq!(below([1, 2, 3, 4], 0), 0);
        assert_eq!(below([1, 2, 3, 4], 1), 0);
    }

    #[test]
    fn floats_have_their_moments() {
        let n = 200_000_u64;
        let moments = |f: &dyn Fn([u64; 4]) -> f32| {
            let values = (0..n).map(|i| f64::from(f([7, 0, 0, i])));
            let (sum, squares) = values.fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
            (sum / n as f64, squares / n as f64)
        };
        let (mean, square) = moments(&unit_f32);
        assert!((mean - 0.5).abs() < 0.003 && (square - 1.0 / 3.0).abs() < 0.003, "{mean} {square}");
        let (mean, square) = moments(&normal_f32);
        assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.015, "{mean} {square}");
        assert!((0..n).all(|i| (0.0..1.0).contains(&unit_f32([i, 1, 2, 3]))));
    }
}
