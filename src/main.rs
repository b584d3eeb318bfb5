//! The binary: hands the arguments to the library and turns what comes back into an exit code.

use std::process::ExitCode;

/// Training allocates and frees large buffers; the default allocator gives each back to the kernel. Version 2 of
/// mimalloc: version 3 asks for `align - 1` bytes more than it is asked for, so that a request as large as a size
/// class, as the graph's chunks are, lands in the next one and costs a sixth more.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    evergraph::cli::main()
}
