//! Structs and numbers that kernels and launchers share: the twins in Rust have the layout that a C++
//! compiler reports for the kernels' text.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use evergraph::device::cuda::{SOURCES, twins};

use super::compile;

const PREAMBLE: &str = r#"
#include <cstddef>
#include <type_traits>

template <class T> static char kind() {
    using E = typename std::remove_all_extents<T>::type;
    return std::is_pointer<E>::value          ? 'p'
           : std::is_floating_point<E>::value ? 'f'
           : std::is_class<E>::value          ? 's'
           : std::is_signed<E>::value         ? 'i'
                                              : 'u';
}
#define STRUCT(S) std::printf("%s %zu\n", #S, sizeof(S));
#define FIELD(S, F) std::printf("%s.%s %zu %zu %c\n", #S, #F, offsetof(S, F), sizeof(S::F), kind<decltype(S::F)>());
#define NUMBER(N) std::printf("%s = %llu\n", #N, (unsigned long long)(N));
"#;

/// A program that prints what the compiler makes of everything that has a twin.
fn program(folder: &Path) -> String {
    let mut text = format!("#include \"{}\"\n", folder.join("tests/it/kernels_host/emulator.hpp").display());
    for source in SOURCES {
        writeln!(text, "#include \"{}\"", folder.join("kernels").join(source.file).display()).unwrap();
    }
    text += PREAMBLE;
    text += "int main() {\n";
    for twin in twins::all() {
        writeln!(text, "STRUCT({})", twin.name).unwrap();
        for (field, ..) in twin.fields {
            writeln!(text, "FIELD({}, {field})", twin.name).unwrap();
        }
    }
    for (name, _) in twins::CONSTANTS {
        writeln!(text, "NUMBER({name})").unwrap();
    }
    text + "}\n"
}

#[test]
fn a_twin_has_the_bytes_of_its_struct() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("twins.cpp");
    std::fs::write(&source, program(Path::new(env!("CARGO_MANIFEST_DIR")))).unwrap();
    let program = folder.path().join("twins");
    compile(&source, &program);
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let message = String::from_utf8(output.stdout).unwrap();
    let mut expected = Vec::new();
    for twin in twins::all() {
        expected.push(format!("{} {}", twin.name, twin.bytes));
        for (field, offset, bytes, kind) in twin.fields {
            expected.push(format!("{}.{field} {offset} {bytes} {kind}", twin.name));
        }
        let named: usize = twin.fields.iter().map(|(_, _, bytes, _)| bytes).sum();
        assert_eq!(named, twin.bytes, "{}: every byte is a field", twin.name);
    }
    expected.extend(twins::CONSTANTS.iter().map(|(name, value)| format!("{name} = {value}")));
    assert_eq!(message.lines().collect::<Vec<_>>(), expected);
}
