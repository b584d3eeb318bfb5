//! Text of a kernel to machine code of one architecture, by NVRTC. Needs the library and no GPU.
//!
//! cudarc's own wrapper gives PTX only and no headers, so the calls are made here: headers go in by name, the result is
//! a cubin, and the program's log comes back with registers, stack and spills as ptxas reports them.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::sys;

use super::error::CudaError;

/// Beside the architecture. Line numbers cost no time on the GPU and name the line in what its tools report.
pub(super) const OPTIONS: [&str; 3] = ["--std=c++17", "-lineinfo", "--ptxas-options=-v"];

/// What came of a text.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code: an ELF file for one architecture.
    pub cubin: Vec<u8>,
    /// Warnings, and registers and spills of each kernel; see [`usage`](super::usage).
    pub log: String,
}

/// The library's version, (major, minor).
///
/// # Errors
/// [`CudaError::Absent`] without the library.
pub fn version() -> Result<(i32, i32), CudaError> {
    require()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present; both pointers are to live integers.
    let outcome = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    match outcome {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok((major, minor)),
        other => Err(CudaError::Absent {
            operation: "asking NVRTC for its version",
            missing: format!("the library returns {other:?}; install it again"),
        }),
    }
}

/// Whether the library is there; cudarc would panic without it.
fn require() -> Result<(), CudaError> {
    // SAFETY: loading a library runs its initializers; these are NVIDIA's own, from the system's library path.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    Err(CudaError::Absent {
        operation: "compiling kernels",
        missing: "the library libnvrtc.so is not found; install NVRTC 13, or 12 for a driver of CUDA 12 \
                  (nvidia-cuda-nvrtc of PyPI, or cuda-nvrtc of the distribution) and put its folder on \
                  LD_LIBRARY_PATH"
            .into(),
    })
}

/// Compiles `text`, which may include `headers` by their names, for `architecture`, e.g. `sm_90`.
///
/// # Errors
/// [`CudaError::Absent`] without the library, [`CudaError::Kernel`] with the compiler's log if the text is wrong.
pub(super) fn compile(
    file: &str,
    text: &str,
    headers: &[(&str, &str)],
    architecture: &str,
) -> Result<Compiled, CudaError> {
    require()?;
    let refused =
        |log: String| CudaError::Kernel { file: file.into(), architecture: architecture.into(), log };
    let plain = |text: &str| CString::new(text).map_err(|_| refused("a text holds a zero byte".into()));
    let (name, source) = (plain(file)?, plain(text)?);
    let header_names = headers.iter().map(|(name, _)| plain(name)).collect::<Result<Vec<_>, _>>()?;
    let header_texts = headers.iter().map(|(_, text)| plain(text)).collect::<Result<Vec<_>, _>>()?;
    let options = OPTIONS.iter().map(|&option| option.to_owned());
    let options = options.chain([format!("--gpu-architecture={architecture}")]);
    let options = options.map(|option| plain(&option)).collect::<Result<Vec<_>, _>>()?;

    let program = Program::new(&name, &source, &header_names, &header_texts)
        .map_err(|code| refused(format!("NVRTC takes no program: {code:?}")))?;
    let outcome = program.compile(&options);
    let log = program.log();
    outcome.map_err(|code| refused(format!("{code:?}\n{log}")))?;
    let cubin = program.cubin().map_err(|code| refused(format!("no machine code: {code:?}")))?;
    Ok(Compiled { cubin, log })
}

fn checked(code: sys::nvrtcResult) -> Result<(), sys::nvrtcResult> {
    if code == sys::nvrtcResult::NVRTC_SUCCESS { Ok(()) } else { Err(code) }
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn count(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

/// A program of NVRTC, which keeps copies of its texts.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(
        name: &CStr,
        source: &CStr,
        header_names: &[CString],
        header_texts: &[CString],
    ) -> Result<Self, sys::nvrtcResult> {
        let mut program = ptr::null_mut();
        let (names, texts) = (pointers(header_names), pointers(header_texts));
        // SAFETY: the library is present (`require` came first). All strings end with a zero and outlive the call, and
        // both lists have as many pointers as their count.
        checked(unsafe {
            sys::nvrtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                count(names.len().min(texts.len())),
                texts.as_ptr(),
                names.as_ptr(),
            )
        })?;
        Ok(Self(program))
    }

    fn compile(&self, options: &[CString]) -> Result<(), sys::nvrtcResult> {
        let options = pointers(options);
        // SAFETY: the program lives; the strings behind `options` outlive the call.
        checked(unsafe { sys::nvrtcCompileProgram(self.0, count(options.len()), options.as_ptr()) })
    }

    /// The compiler's message; empty if there is none.
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program lives; the pointer is to a live integer.
        if checked(unsafe { sys::nvrtcGetProgramLogSize(self.0, &raw mut bytes) }).is_err() {
            return String::new();
        }
        let mut text = vec![0_u8; bytes];
        // SAFETY: the program lives, and `text` has the size that it asked for.
        if checked(unsafe { sys::nvrtcGetProgramLog(self.0, text.as_mut_ptr().cast()) }).is_err() {
            return String::new();
        }
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, sys::nvrtcResult> {
        let mut bytes = 0;
        // SAFETY: the program lives; the pointer is to a live integer.
        checked(unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut bytes) })?;
        let mut cubin = vec![0_u8; bytes];
        // SAFETY: the program lives, and `cubin` has the size that it asked for.
        checked(unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was made by NVRTC and is destroyed once. A failure would leak it, and no more.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}
