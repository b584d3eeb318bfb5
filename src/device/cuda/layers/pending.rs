//! wip
#![allow(missing_docs, unused_variables, clippy::all)]
pub fn mixing_fits(slots: usize, hidden: usize) -> Result<(), String> {
    if slots <= 32 && hidden <= 32 { Ok(()) } else { Err(format!("{slots} slots")) }
}
