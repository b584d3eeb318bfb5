//! The binary: hands the arguments to the library.

fn main() {}
