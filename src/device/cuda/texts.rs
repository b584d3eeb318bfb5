//! The texts of the kernels: those of `kernels/`, which are compiled into the program, or those of a folder, so that a
//! kernel can be changed on a machine without Rust. A file is compiled as it stands, with the `.cuh` files that it
//! includes as headers by their names.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use super::error::CudaError;
use super::{distinct, graph, layers, rows, sample};

/// The kernels that a launcher calls.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Their names.
    pub names: &'static [&'static str],
    /// Bytes of each of their parameters.
    pub parameters: &'static [usize],
}

/// One file of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name in `kernels/`.
    pub file: &'static str,
    /// What stands in it.
    pub text: &'static str,
    /// What launchers call of it; nothing is loaded of a file without.
    pub entries: &'static [Entry],
}

impl Source {
    /// Name, and bytes of each parameter, of every kernel that launchers call.
    pub fn kernels(&self) -> impl Iterator<Item = (&'static str, &'static [usize])> {
        self.entries.iter().flat_map(|entry| entry.names.iter().map(|name| (*name, entry.parameters)))
    }
}

macro_rules! texts {
    ($($file:literal => $entries:expr),* $(,)?) => {
        &[$(Source {
            file: $file,
            text: include_str!(concat!("../../../kernels/", $file)),
            entries: $entries,
        }),*]
    };
}

macro_rules! headers {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("../../../kernels/", $file)))),*]
    };
}

/// Every `.cu` file of `kernels/`.
pub const SOURCES: &[Source] = texts! {
    "adam.cu" => layers::adam::ENTRIES,
    "attention.cu" => layers::attention::ENTRIES,
    "distinct.cu" => distinct::ENTRIES,
    "elementwise.cu" => layers::elementwise::ENTRIES,
    "gather_rows.cu" => rows::ENTRIES,
    "gru.cu" => layers::gru::ENTRIES,
    "ingest.cu" => graph::ENTRIES,
    "joined.cu" => layers::joined::ENTRIES,
    "layer_norm.cu" => layers::layer_norm::ENTRIES,
    "linear.cu" => layers::linear::ENTRIES,
    "loss.cu" => layers::loss::ENTRIES,
    "mixing.cu" => layers::mixing::ENTRIES,
    "pieces.cu" => layers::pieces::ENTRIES,
    "reduce.cu" => layers::reduce::ENTRIES,
    "sample.cu" => sample::ENTRIES,
    "slot_rows.cu" => layers::slot_rows::ENTRIES,
    "time_encoding.cu" => layers::time_encoding::ENTRIES,
};

/// Every `.cuh` file of `kernels/`, by name.
pub const HEADERS: &[(&str, &str)] = headers! {
    "attention.cuh",
    "distinct.cuh",
    "graph.cuh",
    "ingest.cuh",
    "joined.cuh",
    "linear.cuh",
    "mask.cuh",
    "math.cuh",
    "pieces.cuh",
    "portable.cuh",
    "rng.cuh",
    "rows.cuh",
    "sample.cuh",
    "sums.cuh",
    "tables.cuh",
    "team.cuh",
    "tensors.cuh",
};

/// The texts of all files: those compiled in, or those of a folder.
#[derive(Clone, Debug)]
pub struct Texts {
    /// By name, each with what stands in it.
    files: HashMap<&'static str, Cow<'static, str>>,
}

impl Default for Texts {
    fn default() -> Self {
        let sources = SOURCES.iter().map(|source| (source.file, source.text));
        let all = sources.chain(HEADERS.iter().copied());
        Self { files: all.map(|(name, text)| (name, Cow::Borrowed(text))).collect() }
    }
}

impl Texts {
    /// The files of `folder` in place of those compiled in, for tests and benchmarks.
    ///
    /// # Errors
    /// [`CudaError::Absent`] with the file that cannot be read.
    pub fn of_folder(folder: &Path) -> Result<Self, CudaError> {
        let mut texts = Self::default();
        for (name, text) in &mut texts.files {
            let path = folder.join(name);
            let read = std::fs::read_to_string(&path).map_err(|error| CudaError::Absent {
                operation: "reading kernels",
                missing: format!("{}: {error}; the folder needs every file of kernels/", path.display()),
            })?;
            *text = Cow::Owned(read);
        }
        Ok(texts)
    }

    pub(super) fn get(&self, name: &str) -> &str {
        self.files.get(name).map_or("", |text| text)
    }

    /// The headers that `file` includes, directly or through others, each with its text, by name.
    pub(super) fn headers(&self, file: &str) -> Vec<(&'static str, &str)> {
        let (mut names, mut open) = (BTreeSet::new(), vec![file]);
        while let Some(text) = open.pop().map(|name| self.get(name)) {
            let included = text.lines().filter_map(|line| line.trim().strip_prefix("#include \""));
            for name in included.filter_map(|rest| rest.split('"').next()) {
                let known = HEADERS.iter().find(|(header, _)| *header == name);
                if let Some((header, _)) = known.filter(|(header, _)| names.insert(*header)) {
                    open.push(header);
                }
            }
        }
        names.into_iter().map(|name| (name, self.get(name))).collect()
    }

    /// The fingerprint of each file of kernels.
    #[must_use]
    pub fn fingerprints(&self) -> BTreeMap<&'static str, String> {
        SOURCES.iter().map(|source| (source.file, self.fingerprint(source))).collect()
    }

    /// 128 bits of the text of `source` and of the headers that it includes, in hexadecimal digits: what has to be the
    /// same for a kernel to be the one that was verified.
    #[must_use]
    pub fn fingerprint(&self, source: &Source) -> String {
        let own = [(source.file, self.get(source.file))];
        let mut all = Vec::new();
        for (name, text) in own.into_iter().chain(self.headers(source.file)) {
            for part in [name, text] {
                all.extend_from_slice(&(part.len() as u64).to_le_bytes());
                all.extend_from_slice(part.as_bytes());
            }
        }
        format!("{:032x}", xxh3_128(&all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_changes_with_the_text_and_with_each_header_that_it_includes_and_with_no_other() {
        let texts = Texts::default();
        let source = SOURCES.iter().find(|source| source.file == "sample.cu").unwrap();
        let included: Vec<&str> = texts.headers(source.file).iter().map(|(name, _)| *name).collect();
        assert!(included.contains(&"sample.cuh") && included.contains(&"portable.cuh"), "{included:?}");
        for name in SOURCES.iter().map(|source| source.file).chain(HEADERS.iter().map(|(name, _)| *name)) {
            let mut changed = texts.clone();
            changed.files.get_mut(name).unwrap().to_mut().push(' ');
            let same = changed.fingerprint(source) == texts.fingerprint(source);
            assert_eq!(same, name != source.file && !included.contains(&name), "{name}");
        }
    }

    #[test]
    fn texts_of_a_folder_take_the_place_of_those_compiled_in() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Texts::of_folder(folder.path()).unwrap_err().to_string();
        assert!(missing.contains("every file of kernels/"), "{missing}");
        for (name, text) in &Texts::default().files {
            std::fs::write(folder.path().join(name), text.as_bytes()).unwrap();
        }
        let source = &SOURCES[0];
        let same = Texts::of_folder(folder.path()).unwrap();
        assert_eq!(same.fingerprint(source), Texts::default().fingerprint(source));
        std::fs::write(folder.path().join(source.file), "another text").unwrap();
        assert_eq!(Texts::of_folder(folder.path()).unwrap().get(source.file), "another text");
    }
}
