//! A simulated GPU: `simulated.cpp` as a process of its own, with memory and kernels, behind pipes.
//! So launchers and everything above them run as on a GPU, with the same arguments, under checks of addresses.

use std::io::{BufReader, BufWriter, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use evergraph::device::cuda::Simulator;

use crate::kernels_host::compile;

/// A process that simulates a GPU, until it is dropped.
pub struct Simulated(Mutex<Pipes>);

struct Pipes {
    process: Child,
    to: Option<BufWriter<ChildStdin>>,
    from: BufReader<ChildStdout>,
}

impl Simulated {
    /// A fresh GPU.
    pub fn start() -> Arc<Self> {
        let setting = std::env::var_os("EVERGRAPH_GPU");
        assert!(setting.is_none(), "EVERGRAPH_GPU={setting:?}, and a test of the GPU simulates one");
        static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
        let program = PROGRAM.get_or_init(|| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gpu/simulated.cpp");
            let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulated");
            compile(&source, &program);
            program
        });
        let mut process = Command::new(program)
            // Coroutines have stacks of their own, which the leak check does not know.
            .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = Some(BufWriter::new(process.stdin.take().unwrap()));
        let from = BufReader::new(process.stdout.take().unwrap());
        Arc::new(Self(Mutex::new(Pipes { process, to, from })))
    }

    /// Requests `what` with its `parts`; `response` reads what follows where it worked.
    fn request<R>(
        &self,
        what: u8,
        parts: &[Part<'_>],
        response: impl FnOnce(&mut dyn Read) -> std::io::Result<R>,
    ) -> Result<R, String> {
        let mut pipes = self.0.lock().map_err(|_| "a test panicked while it used the GPU".to_owned())?;
        pipes
            .request(what, parts, response)
            .unwrap_or_else(|error| Err(format!("the simulated GPU ended: {error}")))
    }
}

/// A part of a request.
enum Part<'a> {
    Number(u64),
    /// With their length in front.
    Text(&'a [u8]),
    Bytes(&'a [u8]),
}

impl Pipes {
    fn request<R>(
        &mut self,
        what: u8,
        parts: &[Part<'_>],
        response: impl FnOnce(&mut dyn Read) -> std::io::Result<R>,
    ) -> std::io::Result<Result<R, String>> {
        let to = self.to.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        to.write_all(&[what])?;
        for part in parts {
            match part {
                Part::Number(number) => to.write_all(&number.to_le_bytes())?,
                Part::Text(text) => {
                    to.write_all(&(text.len() as u64).to_le_bytes())?;
                    to.write_all(text)?;
                }
                Part::Bytes(bytes) => to.write_all(bytes)?,
            }
        }
        to.flush()?;
        let mut works = [0];
        self.from.read_exact(&mut works)?;
        if works == [0] {
            return response(&mut self.from).map(Ok);
        }
        let mut words = vec![0; number(&mut self.from)? as usize];
        self.from.read_exact(&mut words)?;
        Ok(Err(String::from_utf8_lossy(&words).into_owned()))
    }
}

fn number(from: &mut dyn Read) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

impl Drop for Pipes {
    fn drop(&mut self) {
        // Nothing more comes, so it ends.
        self.to = None;
        let _ = self.process.wait();
    }
}

impl Simulator for Simulated {
    fn allocate(&self, bytes: usize) -> Result<u64, String> {
        self.request(b'a', &[Part::Number(bytes as u64)], number)
    }

    fn free(&self, address: u64) -> Result<(), String> {
        self.request(b'd', &[Part::Number(address)], |_| Ok(()))
    }

    fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<(), String> {
        let numbers = [address, byte.into(), bytes as u64].map(Part::Number);
        self.request(b's', &numbers, |_| Ok(()))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        let parts = [Part::Number(address), Part::Number(bytes.len() as u64), Part::Bytes(bytes)];
        self.request(b'w', &parts, |_| Ok(()))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        let numbers = [address, bytes.len() as u64].map(Part::Number);
        self.request(b'r', &numbers, |from| from.read_exact(bytes))
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), String> {
        self.request(b'c', &[from, to, bytes as u64].map(Part::Number), |_| Ok(()))
    }

    fn map(&self, memory: BorrowedFd<'_>, bytes: usize) -> Result<u64, String> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        self.request(b'm', &[Part::Number(bytes as u64), Part::Text(path.as_bytes())], number)
    }

    fn launch(&self, kernel: &str, blocks: u32, threads: u32, arguments: &[&[u8]]) -> Result<(), String> {
        let mut parts = vec![
            Part::Text(kernel.as_bytes()),
            Part::Number(blocks.into()),
            Part::Number(threads.into()),
            Part::Number(arguments.len() as u64),
        ];
        parts.extend(arguments.iter().map(|argument| Part::Text(argument)));
        self.request(b'l', &parts, |_| Ok(()))
    }
}
