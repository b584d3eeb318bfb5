#!/usr/bin/env bash
# Writes the bill of materials of the daemon: every crate that is compiled into it, with version, checksum and license,
# as CycloneDX in JSON. The same sources give the same bytes on every machine.
#
#   scripts/sbom.sh FILE
#
# cargo-cyclonedx comes from scripts/setup.sh package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PATH="$PWD/.cache/tools/bin:$PATH"
die() { printf 'sbom: error: %s\n' "$*" >&2; exit 1; }

out=${1:?usage: scripts/sbom.sh FILE}
command -v cargo-cyclonedx >/dev/null || die "cargo-cyclonedx is missing; scripts/setup.sh package installs it"
# What Cargo.lock names is what is built; a lock that does not fit Cargo.toml is an error here.
cargo metadata --locked --format-version 1 >/dev/null

# The tool writes beside Cargo.toml and takes a name without its ending.
name=.evergraph-sbom-$$
trap 'rm -f "$name.json"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} cargo cyclonedx --quiet --format json --spec-version 1.5 \
    --override-filename "$name"
mkdir -p "$(dirname "$out")"
# References hold the folder of the sources, which is another one on every machine. Cargo leaves the package's name out
# where the folder has the same name.
sed -E "s|path\+file://$PWD#(evergraph@)?|path+file:///evergraph#evergraph@|g" "$name.json" >"$out"
if grep -q "$PWD" "$out"; then die "$out names a folder of this machine"; fi
