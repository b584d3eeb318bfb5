//! The binary: hands the arguments to the library and turns what comes back into an exit code.

use std::process::ExitCode;

/// Training allocates and frees large buffers; the default allocator gives each back to the kernel.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    evergraph::cli::main()
}
