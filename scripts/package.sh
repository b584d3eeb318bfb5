#!/usr/bin/env bash
# Packs the daemon for Debian and its descendants: target/package/evergraph_VERSION_ARCHITECTURE.deb.
#
#   scripts/package.sh                       build, strip and pack
#   scripts/package.sh --binary FILE --out FOLDER      pack a binary that is there; both by absolute paths
#
# In it: the daemon, its settings, its systemd unit, completions of shells, its bill of materials, and for monitoring the
# dashboards, the alerts and their pages. It needs dpkg-dev, which finds the libraries that the binary needs, and what
# scripts/sbom.sh needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log() { printf 'package: %s\n' "$*" >&2; }
die() { log "error: $*"; exit 1; }

binary='' out=target/package
while [ "$#" -gt 0 ]; do
    case "$1" in
        --binary) binary=${2:?--binary needs a file} ;;
        --out) out=${2:?--out needs a folder} ;;
        *) die "unknown option $1" ;;
    esac
    shift 2
done
command -v dpkg-shlibdeps >/dev/null || die "dpkg-shlibdeps is missing; scripts/setup.sh package installs it"
if [ -z "$binary" ]; then
    cargo build --release --locked --bin evergraph
    binary=${CARGO_TARGET_DIR:-target}/release/evergraph
fi

version=$(sed -n '/^\[package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# What comes before a release sorts before it.
version=${version/-/\~}
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root="$work/root"

put() { install -D -m "$1" "$2" "$root/$3"; }
put 755 "$binary" usr/bin/evergraph
strip --strip-unneeded "$root/usr/bin/evergraph"
put 644 deploy/evergraph.toml etc/evergraph/evergraph.toml
put 644 deploy/evergraph.service usr/lib/systemd/system/evergraph.service
put 644 deploy/evergraph-backup.service usr/lib/systemd/system/evergraph-backup.service
put 644 deploy/evergraph-backup.timer usr/lib/systemd/system/evergraph-backup.timer
put 644 deploy/evergraph.service.d/gpu.conf usr/share/doc/evergraph/gpu.conf
put 644 deploy/evergraph.service.d/secrets.conf usr/share/doc/evergraph/secrets.conf
scripts/sbom.sh "$work/sbom.json"
put 644 "$work/sbom.json" usr/share/doc/evergraph/sbom.cdx.json
put 644 README.md usr/share/doc/evergraph/README.md
cat NOTICE LICENSE console/vendor/preact.LICENSE console/vendor/uplot.LICENSE >"$work/copyright"
put 644 "$work/copyright" usr/share/doc/evergraph/copyright
put 644 deploy/alerts.yml usr/share/evergraph/alerts.yml
for file in dashboards/*.json; do put 644 "$file" "usr/share/evergraph/$file"; done
for file in docs/*.md docs/runbook/*.md docs/images/*.svg; do put 644 "$file" "usr/share/doc/evergraph/$file"; done
completion() {
    mkdir -p "$root/$(dirname "$2")"
    "$root/usr/bin/evergraph" completions "$1" >"$root/$2"
    chmod 644 "$root/$2"
}
completion bash usr/share/bash-completion/completions/evergraph
completion zsh usr/share/zsh/vendor-completions/_evergraph
completion fish usr/share/fish/vendor_completions.d/evergraph.fish

# dpkg-shlibdeps wants to stand in a source package.
mkdir -p "$work/source/debian"
echo 'Source: evergraph' >"$work/source/debian/control"
depends=$(cd "$work/source" && dpkg-shlibdeps -O "$root/usr/bin/evergraph" | sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || die "dpkg-shlibdeps names no library"
size=$(du -sk "$root" | cut -f 1)

mkdir -p "$root/DEBIAN"
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@DEPENDS@/$depends/" -e "s/@SIZE@/$size/" \
    deploy/debian/control >"$root/DEBIAN/control"
install -m 644 deploy/debian/conffiles "$root/DEBIAN/conffiles"
install -m 755 deploy/debian/{preinst,postinst,prerm,postrm} "$root/DEBIAN/"
find "$root" -type d -exec chmod 755 {} +

mkdir -p "$out"
package="$out/evergraph_${version}_$architecture.deb"
dpkg-deb --root-owner-group --build "$root" "$package" >&2
install -m 644 "$work/sbom.json" "${package%.deb}.cdx.json"
log "$package has $(($(stat -c %s "$package") / 1024)) KiB"
echo "$package"
