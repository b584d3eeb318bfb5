//! [`Kernels`]: the kernels that a GPU runs, built from their [texts](super::texts) and loaded.
//!
//! What a launcher passes is declared as [`Entry::parameters`], and compared with the machine code before it is used: a
//! kernel whose parameters changed is refused instead of called. Where the machine code does not list them, that is
//! reported, and the launchers are trusted. Files that are not in the cache are compiled side by side.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::Ptx;
use parking_lot::Mutex;

use super::cache::{CubinCache, Origin};
use super::cubin;
use super::error::{CudaError, During};
use super::nvrtc::{self, Compiled};
use super::texts::{HEADERS, SOURCES, Source, Texts};

/// What kernels are compiled for on a GPU of this compute capability.
pub(in crate::device) fn architecture(major: i32, minor: i32) -> String {
    format!("sm_{major}{minor}")
}

/// Machine code, and what is to be reported about it.
struct Built {
    cubin: Vec<u8>,
    from_cache: bool,
    warnings: Vec<String>,
}

impl Source {
    /// Its machine code for `architecture`, e.g. `sm_90`. Needs NVRTC, no GPU.
    ///
    /// # Errors
    /// [`CudaError::Absent`] without NVRTC; [`CudaError::Kernel`] with the compiler's log, or when the parameters are
    /// not those that launchers pass.
    pub fn compile(&self, architecture: &str) -> Result<Compiled, CudaError> {
        let compiled = nvrtc::compile(self.file, self.text, HEADERS, architecture)?;
        self.compare(&compiled.cubin, architecture)?;
        Ok(compiled)
    }

    /// Its machine code from `texts`, from `cache` where that has it.
    fn build(&self, texts: &Texts, cache: Option<&CubinCache>, target: &Target) -> Result<Built, CudaError> {
        let Target { architecture, compiler, driver } = target;
        let (text, headers) = (texts.get(self.file), texts.headers(self.file));
        let (file, headers) = (self.file, headers.as_slice());
        let origin = Origin { file, text, headers, architecture, compiler: *compiler, driver: *driver };
        let kept = cache.and_then(|cache| cache.get(&origin));
        if let Some(cubin) = kept
            && let Ok(warning) = self.compare(&cubin, architecture)
        {
            return Ok(Built { cubin, from_cache: true, warnings: warning.into_iter().collect() });
        }
        let cubin = nvrtc::compile(file, text, headers, architecture)?.cubin;
        let mut warnings: Vec<String> = self.compare(&cubin, architecture)?.into_iter().collect();
        warnings.extend(cache.and_then(|cache| cache.put(&origin, &cubin).err()));
        Ok(Built { cubin, from_cache: false, warnings })
    }

    /// Compares the parameters in the machine code with those that launchers pass; a warning where it lists none.
    fn compare(&self, cubin: &[u8], architecture: &str) -> Result<Option<String>, CudaError> {
        let mut unlisted = Vec::new();
        for (name, parameters) in self.kernels() {
            let found = cubin::parameter_bytes(cubin, name);
            let problem = match found {
                Ok(found) if found == parameters => continue,
                Ok(found) if found.is_empty() => {
                    unlisted.push(name);
                    continue;
                }
                Ok(found) => format!("{name} takes {found:?} bytes, launchers pass {parameters:?}"),
                Err(problem) => format!("{name}: {problem}"),
            };
            let (file, architecture) = (self.file.to_owned(), architecture.to_owned());
            return Err(CudaError::Kernel { file, architecture, log: problem });
        }
        let warning = || {
            let (file, names) = (self.file, unlisted.join(", "));
            format!("kernels/{file}: its machine code lists no parameters of {names}; they were not compared")
        };
        Ok((!unlisted.is_empty()).then(warning))
    }
}

/// What kernels are compiled for, and by what.
pub(super) struct Target {
    /// Such as `sm_90`.
    pub architecture: String,
    /// Version of NVRTC, (major, minor).
    pub compiler: (i32, i32),
    /// The newest CUDA that the driver supports, `1000 * major + 10 * minor`.
    pub driver: i32,
}

/// A kernel that can be launched.
pub(super) struct Kernel {
    /// Bytes of each of its parameters.
    pub parameters: &'static [usize],
    /// None on a simulated GPU, which finds a kernel by its name.
    pub function: Option<CudaFunction>,
    /// How often it was asked for.
    pub launches: AtomicU64,
}

impl Kernel {
    fn new(parameters: &'static [usize], function: Option<CudaFunction>) -> Self {
        Self { parameters, function, launches: AtomicU64::new(0) }
    }
}

/// The kernels on one GPU.
pub(super) struct Kernels {
    by_name: HashMap<&'static str, Kernel>,
    cached: usize,
    compiled: usize,
    warnings: Vec<String>,
}

impl Kernels {
    /// Loads all kernels that have launchers, from `cache` where it has them.
    pub(super) fn load(
        context: &Arc<CudaContext>,
        target: &Target,
        texts: &Texts,
        cache: Option<&CubinCache>,
    ) -> Result<Self, CudaError> {
        let mut kernels = Self { by_name: HashMap::new(), cached: 0, compiled: 0, warnings: Vec::new() };
        let sources: Vec<&Source> = SOURCES.iter().filter(|source| !source.entries.is_empty()).collect();
        for (source, built) in sources.iter().zip(build_all(&sources, texts, cache, target)) {
            let Built { cubin, from_cache, warnings } = built?;
            *(if from_cache { &mut kernels.cached } else { &mut kernels.compiled }) += 1;
            kernels.warnings.extend(warnings);
            let loading = "loading kernels";
            let module =
                context.load_module(Ptx::from_binary(cubin)).during(loading, || source.file.into())?;
            for (name, parameters) in source.kernels() {
                let function = module.load_function(name).during(loading, || name.into())?;
                kernels.by_name.insert(name, Kernel::new(parameters, Some(function)));
            }
        }
        Ok(kernels)
    }

    /// All kernels that have launchers, of a simulated GPU.
    pub(super) fn simulated() -> Self {
        let all = SOURCES.iter().flat_map(Source::kernels);
        let by_name = all.map(|(name, parameters)| (name, Kernel::new(parameters, None))).collect();
        Self { by_name, cached: 0, compiled: 0, warnings: Vec::new() }
    }

    /// The kernel of this name.
    pub(super) fn get(&self, name: &'static str) -> Result<&Kernel, CudaError> {
        self.by_name.get(name).ok_or_else(|| CudaError::Absent {
            operation: "finding a kernel",
            missing: format!("{name} is not among the entries of its file"),
        })
    }

    /// How often kernels of each file were launched.
    pub(super) fn launches(&self) -> Vec<(&'static str, u64)> {
        let of =
            |(name, _)| self.by_name.get(name).map_or(0, |kernel| kernel.launches.load(Ordering::Relaxed));
        SOURCES.iter().map(|source| (source.file, source.kernels().map(of).sum())).collect()
    }

    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Builds the sources on all cores: a compilation takes up to seconds, and none knows another.
fn build_all(
    sources: &[&Source],
    texts: &Texts,
    cache: Option<&CubinCache>,
    target: &Target,
) -> Vec<Result<Built, CudaError>> {
    let next = AtomicUsize::new(0);
    let built = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(sources.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(at) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < sources.len())
                {
                    let one = sources[at].build(texts, cache, target);
                    built.lock().push((at, one));
                }
            });
        }
    });
    let mut built = built.into_inner();
    built.sort_unstable_by_key(|(at, _)| *at);
    built.into_iter().map(|(_, one)| one).collect()
}

impl std::fmt::Display for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { by_name, cached, compiled, .. } = self;
        write!(f, "{} kernels ({cached} files from the cache, {compiled} compiled)", by_name.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_that_lists_no_parameters_is_reported_and_not_refused() {
        // An ELF file of two sections: none, and the table of names.
        let mut elf = vec![0_u8; 64 + 2 * 64 + 16];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[0x28] = 64;
        (elf[0x3a], elf[0x3c], elf[0x3e]) = (64, 2, 1);
        (elf[128 + 0x18], elf[128 + 0x20]) = (192, 16);
        let source = SOURCES.iter().find(|source| source.file == "adam.cu").unwrap();
        let warning = source.compare(&elf, "sm_90").unwrap().unwrap();
        assert!(warning.contains("adam.cu") && warning.contains("not compared"), "{warning}");
        assert!(source.compare(b"no machine code", "sm_90").is_err());
    }
}
