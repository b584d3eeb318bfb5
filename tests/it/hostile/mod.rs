//! What comes from outside and is broken, on purpose or not: every decoder is fed valid samples that were damaged,
//! and has to refuse them with an error that names the place, or to take them for what they then are.
//!
//! The samples stand under `tests/corpora/<decoder>`; files whose name begins with `good` are taken as they are, those
//! that begin with `bad` are refused as they are, and what once broke a decoder is added there. Damage follows from a
//! seed and a number alone: `EVERGRAPH_FUZZ_CASES` says how many cases each decoder gets (`make fuzz` takes more),
//! `EVERGRAPH_FUZZ_SEED` which. A case that fails is named with both and kept in a file.

mod events;
mod memory;
mod records;
mod settings;
mod tokens;
mod walk;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use evergraph::device::rng;

/// Cases of each decoder where the environment does not say.
const CASES: usize = 400;
/// Longest damaged input.
const BYTES_MAX: usize = 1 << 20;

/// Bytes that mean something to one decoder or another.
const BYTES: &[u8] = b"\0\x01\x7f\x80\xff\"'\\\n\r,:;=[]{}#.-+eE0";
/// Numbers as text at which something overflows, rounds or is not a number.
const NUMBERS: &[&str] = &[
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "4611686018427387905",
    "1e999",
    "1e39",
    "1e-400",
    "-0",
    "0.1",
    "NaN",
    "inf",
    "00",
    "340282350000000000000000000000000000000",
];
/// The same as bytes, little-endian.
const WORDS: &[u64] =
    &[0, 1, 255, 1 << 16, 1 << 30, 1 << 31, u32::MAX as u64, 1 << 40, 1 << 62, 1 << 63, u64::MAX];

/// How often, and from which seed.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Random numbers in order, all of which follow from a key.
pub struct Dice {
    prefix: u64,
    drawn: u64,
}

impl Dice {
    /// The numbers of one case of one decoder.
    pub fn of(decoder: &str, case: usize) -> Self {
        let name = decoder.bytes().fold(0, |hash, byte| rng::absorb(hash, u64::from(byte)));
        Self { prefix: rng::prefix([setting("EVERGRAPH_FUZZ_SEED", 1) as u64, name, case as u64]), drawn: 0 }
    }

    pub fn word(&mut self) -> u64 {
        self.drawn += 1;
        rng::draw(self.prefix, self.drawn)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        rng::scale(self.word(), u32::try_from(n).unwrap()) as usize
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// A range of `0..length`, mostly a short one.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length);
        let most = if self.below(4) == 0 { length } else { 16 };
        start..length.min(start + 1 + self.below(most))
    }
}

/// The samples of one decoder.
pub struct Corpus {
    decoder: &'static str,
    samples: Vec<(String, Vec<u8>)>,
    /// Words that mean something to the decoder.
    words: &'static [&'static str],
}

impl Corpus {
    /// Reads the files of `tests/corpora/<decoder>`.
    pub fn read(decoder: &'static str, words: &'static [&'static str]) -> Self {
        let folder = folder(decoder);
        let mut samples: Vec<_> = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect();
        samples.sort();
        assert!(samples.iter().any(|(name, _)| name.starts_with("good")), "{decoder} has no good sample");
        Self { decoder, samples, words }
    }

    /// Every sample as it is, then damaged ones, as many as the environment says over `share`. `decode` holds what
    /// came out against what must be, and says whether the input was taken.
    pub fn check(&self, share: usize, decode: impl Fn(&[u8]) -> bool) {
        for (name, bytes) in &self.samples {
            let taken = self.guarded(name, bytes, &decode);
            assert_eq!(taken, name.starts_with("good"), "{}/{name}: whether it was taken", self.decoder);
        }
        let cases = (setting("EVERGRAPH_FUZZ_CASES", CASES) / share).max(20);
        let mut taken = 0;
        for case in 0..cases {
            let bytes = self.damaged(&mut Dice::of(self.decoder, case));
            taken += usize::from(self.guarded(&format!("case {case}"), &bytes, &decode));
        }
        eprintln!("{}: {} samples, {cases} cases, {taken} taken", self.decoder, self.samples.len());
        assert!(taken < cases, "{}: damage is never noticed", self.decoder);
    }

    /// Decodes; where that panics, says which input it was and keeps it.
    fn guarded(&self, what: &str, bytes: &[u8], decode: &impl Fn(&[u8]) -> bool) -> bool {
        catch_unwind(AssertUnwindSafe(|| decode(bytes))).unwrap_or_else(|_| {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-{}", self.decoder));
            std::fs::write(&path, bytes).unwrap();
            let seed = setting("EVERGRAPH_FUZZ_SEED", 1);
            panic!("{} with {what} of seed {seed}; the input is {}", self.decoder, path.display());
        })
    }

    /// A sample with one to four damages.
    pub fn damaged(&self, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.sample(dice).to_vec();
        for _ in 0..1 + dice.below(4) {
            self.damage(dice, &mut bytes);
            bytes.truncate(BYTES_MAX);
        }
        bytes
    }

    fn sample(&self, dice: &mut Dice) -> &[u8] {
        &self.samples[dice.below(self.samples.len())].1
    }

    fn damage(&self, dice: &mut Dice, bytes: &mut Vec<u8>) {
        let at = dice.below(bytes.len() + 1);
        let range = dice.range(bytes.len());
        match dice.below(13) {
            0 => each(bytes, at..at + 1, |byte| *byte ^= 1 << dice.below(8)),
            1 => each(bytes, at..at + 1, |byte| *byte = BYTES[dice.below(BYTES.len())]),
            2 => {
                let word = WORDS[dice.below(WORDS.len())].wrapping_sub(dice.below(2) as u64).to_le_bytes();
                let mut word = word[..[2, 4, 8][dice.below(3)]].iter();
                each(bytes, at..at + 8, |byte| *byte = word.next().copied().unwrap_or(*byte));
            }
            3 => drop(bytes.drain(range)),
            4 => {
                let again = bytes[range].to_vec();
                drop(bytes.splice(at..at, again));
            }
            5 => {
                let noise: Vec<u8> = (0..1 + dice.below(16)).map(|_| dice.word() as u8).collect();
                drop(bytes.splice(at..at, noise));
            }
            6 => drop(bytes.splice(at..at, dice.pick(self.words).bytes())),
            7 => bytes.truncate(at),
            8 => {
                let other = self.sample(dice);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[dice.below(other.len() + 1)..]);
            }
            9 | 10 => replace_number(dice, bytes),
            11 => {
                let piece = bytes[range].to_vec();
                let most = if dice.below(4) == 0 { 40_000 } else { 100 };
                let times = 1 + dice.below(most);
                drop(bytes.splice(at..at, piece.repeat(times.min(BYTES_MAX / piece.len().max(1)))));
            }
            _ => {
                let deep = dice.pick(&["[", "{\"a\":", "a.", "(", "\"", "\\", "-----BEGIN "]);
                drop(bytes.splice(at..at, deep.repeat(1 + dice.below(50_000)).bytes()));
            }
        }
    }
}

/// The folder of a decoder's samples.
pub fn folder(decoder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora").join(decoder)
}

/// Changes the bytes of a range as far as they are there.
fn each(bytes: &mut [u8], range: std::ops::Range<usize>, change: impl FnMut(&mut u8)) {
    let end = range.end.min(bytes.len());
    bytes[range.start.min(end)..end].iter_mut().for_each(change);
}

/// Puts another number in the place of one that is written as text.
fn replace_number(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let starts: Vec<usize> =
        (0..bytes.len()).filter(|&at| is_digit(at) && (at == 0 || !is_digit(at - 1))).collect();
    if starts.is_empty() {
        return;
    }
    let start = starts[dice.below(starts.len())];
    let end = (start..).find(|&at| !is_digit(at)).unwrap_or(bytes.len());
    drop(bytes.splice(start..end, dice.pick(NUMBERS).bytes()));
}

/// A file with this content, whose name ends with `suffix`.
fn file(bytes: &[u8], suffix: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().prefix("hostile-").suffix(suffix).tempfile().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

#[test]
fn damage_follows_from_seed_and_number_and_is_of_every_kind() {
    let corpus = Corpus::read("event", &["null"]);
    let all = |decoder: &str| -> Vec<Vec<u8>> {
        (0..200).map(|case| corpus.damaged(&mut Dice::of(decoder, case))).collect()
    };
    let damaged = all("event");
    assert_eq!(damaged, all("event"));
    assert_ne!(damaged, all("body"));
    let has = |what: &dyn Fn(&[u8]) -> bool| damaged.iter().any(|bytes| what(bytes));
    assert!(has(&|bytes| bytes.len() > 10_000) && has(&|bytes| bytes.len() < 10));
    assert!(has(&|bytes| std::str::from_utf8(bytes).is_err()));
    assert!(has(&|bytes| bytes.windows(5).any(|part| part == b"1e999")));
}

#[test]
#[should_panic(expected = "a decoder that panics with bad-")]
fn a_decoder_that_panics_is_told_apart() {
    Corpus { decoder: "a decoder that panics", ..Corpus::read("event", &["x"]) }
        .check(1, |_| panic!("as it does"));
}
