//! The kernels: their texts, which are compiled into the program, and [`Kernels`], what a GPU runs of them.
//!
//! A file of `kernels/` is compiled as it stands, with the `.cuh` files as headers by their names. What a launcher
//! passes is declared here as [`Entry::parameters`], and compared with the machine code before it is used: a kernel
//! whose parameters changed is refused instead of called.
//!
//! Loading onto a GPU is not verified on a GPU; compiling and comparing are tested.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::Ptx;

use super::cache::{CubinCache, Origin};
use super::error::{CudaError, During};
use super::nvrtc::{self, Compiled};
use super::{cubin, distinct, graph, layers, row_cache, rows, sample};

/// One kernel that a launcher calls.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Bytes of each of its parameters.
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
    "adam.cu" => layers::ADAM,
    "attention.cu" => layers::ATTENTION,
    "distinct.cu" => distinct::ENTRIES,
    "elementwise.cu" => layers::ELEMENTWISE,
    "gather_rows.cu" => rows::ENTRIES,
    "gru.cu" => layers::GRU,
    "ingest.cu" => graph::ENTRIES,
    "joined.cu" => layers::JOINED,
    "layer_norm.cu" => layers::LAYER_NORM,
    "linear.cu" => layers::LINEAR,
    "loss.cu" => layers::LOSS,
    "mixing.cu" => layers::MIXING,
    "pieces.cu" => layers::PIECES,
    "reduce.cu" => layers::REDUCE,
    "row_cache.cu" => row_cache::ENTRIES,
    "sample.cu" => sample::ENTRIES,
    "slot_rows.cu" => layers::SLOT_ROWS,
    "time_encoding.cu" => layers::TIME_ENCODING,
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
    "row_cache.cuh",
    "rows.cuh",
    "sample.cuh",
    "sums.cuh",
    "team.cuh",
    "tensors.cuh",
};

/// What kernels are compiled for on a GPU of this compute capability.
pub(in crate::device) fn architecture(major: i32, minor: i32) -> String {
    format!("sm_{major}{minor}")
}

impl Source {
    /// Its machine code for `architecture`, e.g. `sm_90`. Needs NVRTC, no GPU.
    ///
    /// # Errors
    /// [`CudaError::Absent`] without NVRTC; [`CudaError::Kernel`] with the compiler's words, or when the parameters are
    /// not those that launchers pass.
    pub fn compile(&self, architecture: &str) -> Result<Compiled, CudaError> {
        let compiled = nvrtc::compile(self.file, self.text, HEADERS, architecture)?;
        self.compare(&compiled.cubin, architecture)?;
        Ok(compiled)
    }

    fn compare(&self, cubin: &[u8], architecture: &str) -> Result<(), CudaError> {
        for entry in self.entries {
            let found = cubin::parameter_bytes(cubin, entry.name);
            let problem = match found {
                Ok(found) if found == entry.parameters => continue,
                Ok(found) => {
                    format!("{} takes {found:?} bytes, launchers pass {:?}", entry.name, entry.parameters)
                }
                Err(problem) => format!("{}: {problem}", entry.name),
            };
            let (file, architecture) = (self.file.to_owned(), architecture.to_owned());
            return Err(CudaError::Kernel { file, architecture, log: problem });
        }
        Ok(())
    }
}

/// The kernels on one GPU.
pub(super) struct Kernels {
    functions: HashMap<&'static str, (Entry, Option<CudaFunction>)>,
    cached: usize,
    compiled: usize,
    complaints: Vec<String>,
}

impl Kernels {
    /// Loads all kernels that have launchers, from `cache` where it has them.
    pub(super) fn load(
        context: &Arc<CudaContext>,
        architecture: &str,
        cache: Option<&CubinCache>,
        (compiler, driver): ((i32, i32), i32),
    ) -> Result<Self, CudaError> {
        let (mut functions, mut complaints) = (HashMap::new(), Vec::new());
        let (mut cached, mut compiled) = (0, 0);
        for source in SOURCES.iter().filter(|source| !source.entries.is_empty()) {
            let origin = Origin {
                file: source.file,
                text: source.text,
                headers: HEADERS,
                architecture,
                compiler,
                driver,
            };
            let kept = cache.and_then(|cache| cache.get(&origin));
            let kept = kept.filter(|cubin| source.compare(cubin, architecture).is_ok());
            let cubin = match kept {
                Some(cubin) => {
                    cached += 1;
                    cubin
                }
                None => {
                    compiled += 1;
                    let fresh = source.compile(architecture)?.cubin;
                    let put = cache.map_or(Ok(()), |cache| cache.put(&origin, &fresh));
                    complaints.extend(put.err());
                    fresh
                }
            };
            let loading = "loading kernels";
            let module =
                context.load_module(Ptx::from_binary(cubin)).during(loading, || source.file.into())?;
            for entry in source.entries {
                let function = module.load_function(entry.name).during(loading, || entry.name.into())?;
                functions.insert(entry.name, (*entry, Some(function)));
            }
        }
        Ok(Self { functions, cached, compiled, complaints })
    }

    /// All kernels that have launchers, of a simulated GPU.
    pub(super) fn simulated() -> Self {
        let entries = SOURCES.iter().flat_map(|source| source.entries);
        let functions = entries.map(|entry| (entry.name, (*entry, None))).collect();
        Self { functions, cached: 0, compiled: 0, complaints: Vec::new() }
    }

    /// The kernel of this name; its function where a GPU has loaded it.
    pub(super) fn get(&self, name: &'static str) -> Result<&(Entry, Option<CudaFunction>), CudaError> {
        self.functions.get(name).ok_or_else(|| CudaError::Absent {
            operation: "finding a kernel",
            missing: format!("{name} is not among the entries of its file"),
        })
    }

    pub(super) fn complaints(&self) -> &[String] {
        &self.complaints
    }
}

impl std::fmt::Display for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { functions, cached, compiled, .. } = self;
        write!(f, "{} kernels ({cached} files from the cache, {compiled} compiled)", functions.len())
    }
}
