//! Properties of a compiled kernel: the sizes of its parameters, from the cubin, and what it takes of the GPU,
//! from the compiler's log. By these a launcher and a kernel are compared without a GPU.
//!
//! A cubin is a little-endian ELF64 file. The section `.nv.info.KERNEL` is a list of attributes, each a byte of form, a
//! byte of kind and 16 bits that are a value, or, in form 4, the length of what follows. Kind 0x17 describes one
//! parameter: its ordinal at byte 4, its offset at byte 6, and its size in the bits from 18 on of the word at byte 8.
//! NVIDIA does not document this. Every length is checked; where a file has no such list, its parameters are unknown.

/// Form of an attribute that is followed by as many bytes as its value.
const SIZED: u8 = 4;
/// Kind of an attribute that describes a parameter.
const PARAMETER: u8 = 0x17;

/// What one kernel takes of the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The kernel's name.
    pub kernel: String,
    /// Registers of each thread.
    pub registers: u32,
    /// Bytes of stack of each thread, spills and local arrays.
    pub stack_bytes: u32,
    /// Bytes of registers that one thread writes to memory for lack of room, and reads again.
    pub spill_store_bytes: u32,
    /// The same, read.
    pub spill_load_bytes: u32,
}

/// Registers and spills of every kernel that a compiler's log lists.
#[must_use]
pub fn usage(log: &str) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(Usage { kernel, ..Usage::default() });
        }
        let Some(last) = found.last_mut() else { continue };
        for (unit, field) in [
            (" registers", &mut last.registers),
            (" bytes stack frame", &mut last.stack_bytes),
            (" bytes spill stores", &mut last.spill_store_bytes),
            (" bytes spill loads", &mut last.spill_load_bytes),
        ] {
            let before = line.split_once(unit).map(|(before, _)| before);
            let number = before.and_then(|text| text.rsplit(' ').next()?.parse().ok());
            *field = number.unwrap_or(*field);
        }
    }
    found
}

/// Bytes of each parameter of `kernel`, in order; empty where the file does not list them, or has no such kernel.
///
/// # Errors
/// Reports what is wrong: no ELF file, a list that does not end where it should.
pub fn parameter_bytes(cubin: &[u8], kernel: &str) -> Result<Vec<usize>, String> {
    let Some(info) = section_of(cubin, &format!(".nv.info.{kernel}"))? else { return Ok(Vec::new()) };
    let mut parameters: Vec<(u64, usize)> = Vec::new();
    let mut at = 0;
    while at < info.len() as u64 {
        let head = word(info, at, 4)?;
        let (form, kind, value) = (head as u8, (head >> 8) as u8, head >> 16);
        at += 4;
        if form != SIZED {
            continue;
        }
        let end = at + value;
        bytes(info, at, value)?;
        if kind == PARAMETER {
            let ordinal = word(info, at + 4, 2)?;
            parameters.push((ordinal, (word(info, at + 8, 4)? >> 18) as usize));
        }
        at = end;
    }
    parameters.sort_unstable();
    Ok(parameters.into_iter().map(|(_, bytes)| bytes).collect())
}

/// The bytes of the section of this name, if there is one.
fn section_of<'a>(elf: &'a [u8], wanted: &str) -> Result<Option<&'a [u8]>, String> {
    // Magic, 64 bits, little-endian.
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return Err("it is no cubin".into());
    }
    let table = word(elf, 0x28, 8)?;
    let entry_bytes = word(elf, 0x3a, 2)?;
    let (entries, names) = (word(elf, 0x3c, 2)?, word(elf, 0x3e, 2)?);
    let header = |index: u64| table.checked_add(index * entry_bytes).ok_or_else(too_short);
    let body = |index: u64| -> Result<&'a [u8], String> {
        let at = header(index)?;
        bytes(elf, word(elf, at.saturating_add(0x18), 8)?, word(elf, at.saturating_add(0x20), 8)?)
    };
    let names = body(names)?;
    for index in 0..entries {
        let at = header(index)?;
        let start = word(elf, at, 4)?;
        let name = bytes(names, start, (names.len() as u64).saturating_sub(start))?;
        if name.split(|byte| *byte == 0).next() == Some(wanted.as_bytes()) {
            return body(index).map(Some);
        }
    }
    Ok(None)
}

/// A little-endian number of `len` bytes, 8 at most.
fn word(of: &[u8], at: u64, len: u64) -> Result<u64, String> {
    let part = bytes(of, at, len)?;
    Ok(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn bytes(of: &[u8], at: u64, len: u64) -> Result<&[u8], String> {
    let range =
        at.checked_add(len).and_then(|end| Some(usize::try_from(at).ok()?..usize::try_from(end).ok()?));
    range.and_then(|range| of.get(range)).ok_or_else(too_short)
}

fn too_short() -> String {
    "it ends where more was announced".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_ptxas_is_read() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Compiling entry function 'a' for 'sm_90'\n\
                   ptxas info    : Function properties for a\n\
                   ptxas         .     824 bytes stack frame, 1140 bytes spill stores, 1188 bytes spill loads\n\
                   ptxas info    : Used 32 registers, used 0 barriers, 824 bytes cumulative stack size\n\
                   ptxas info    : Compiling entry function 'b' for 'sm_90'\n\
                   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                   ptxas info    : Used 10 registers, used 1 barriers\n";
        let a = Usage {
            kernel: "a".into(),
            registers: 32,
            stack_bytes: 824,
            spill_store_bytes: 1140,
            spill_load_bytes: 1188,
        };
        let b = Usage { kernel: "b".into(), registers: 10, ..Usage::default() };
        assert_eq!(usage(log), [a, b]);
        assert!(usage("").is_empty());
    }

    #[test]
    fn what_is_no_cubin_is_refused() {
        assert_eq!(parameter_bytes(b"", "a").unwrap_err(), "it is no cubin");
        assert_eq!(parameter_bytes(b"#include", "a").unwrap_err(), "it is no cubin");
        let mut cut = b"\x7fELF\x02\x01".to_vec();
        assert_eq!(parameter_bytes(&cut, "a").unwrap_err(), "it ends where more was announced");
        // A header whose table of sections is far away.
        cut.resize(64, 0xff);
        assert!(parameter_bytes(&cut, "a").is_err());
    }
}
