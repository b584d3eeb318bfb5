#!/usr/bin/env bash
# The console in console/: the libraries it is served with, and what its tests need.
#
#   scripts/console.sh vendor   writes console/vendor anew: preact, htm and uPlot, by npm, with their licenses
#   scripts/console.sh axe      axe-core, which judges accessibility in tests, to .cache/tools/axe, by pip; 0.6 MB, once
#
# The libraries are in the repository, so that a build needs neither npm nor a network. axe-core is not: it is five
# times as large as the whole console, tests alone use it, and its license asks more of whoever passes it on.
# Two changes are made to the libraries. Names of packages in imports become paths, since the Content-Security-Policy
# of the console allows no import map, and links to source maps, which are not served, go. uPlot gets an export.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Versions, and the checksums that the registry states for them.
readonly PACKAGES=(
    "preact 11.2.0 sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg=="
    "htm 3.1.1 sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ=="
    "uplot 1.6.32 sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
)
readonly VENDOR="$PWD/console/vendor" AXE="$PWD/.cache/tools/axe" AXE_WANTED="$PWD/scripts/console-axe.txt"
export PIP_RETRIES="${PIP_RETRIES:-10}"

die() { printf 'console.sh: error: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# unpack NAME VERSION INTEGRITY FOLDER: the package, if it has its checksum, as FOLDER/NAME.
unpack() {
    local name=$1 version=$2 integrity=$3 folder=$4 archive found
    (cd "$folder" && npm pack --silent "$name@$version" >/dev/null) || die "npm could not fetch $name $version"
    archive="$folder/$name-$version.tgz"
    found="sha512-$(openssl dgst -sha512 -binary "$archive" | base64 -w 0)"
    [ "$found" = "$integrity" ] || die "$name $version has the checksum $found, expected $integrity"
    mkdir "$folder/$name"
    tar -xzf "$archive" -C "$folder/$name" --strip-components=1
}

vendor() {
    command -v npm >/dev/null || die "npm is needed to fetch packages"
    local work package name version integrity
    work=$(mktemp -d)
    rm -rf "$VENDOR"
    mkdir -p "$VENDOR"
    for package in "${PACKAGES[@]}"; do
        read -r name version integrity <<<"$package"
        unpack "$name" "$version" "$integrity" "$work"
        cp "$work/$name/LICENSE" "$VENDOR/$name.LICENSE"
    done
    local without_map='/^\/\/# sourceMappingURL=/d'
    sed "$without_map" "$work/preact/dist/preact.mjs" >"$VENDOR/preact.js"
    sed -e "$without_map" -e 's/from"preact"/from".\/preact.js"/' "$work/preact/hooks/dist/hooks.mjs" \
        >"$VENDOR/hooks.js"
    cp "$work/htm/dist/htm.mjs" "$VENDOR/htm.js"
    { cat "$work/uplot/dist/uPlot.iife.min.js" && echo 'export default uPlot;'; } >"$VENDOR/uplot.js"
    rm -rf "$work"
    (cd "$VENDOR" && LC_ALL=C sha256sum -- *.js *.LICENSE >SHA256SUMS)
}

axe() {
    ! { cmp -s "$AXE_WANTED" "$AXE/installed" && [ -s "$AXE/axe_playwright_python/axe.min.js" ]; } || return 0
    printf 'console.sh: installing axe-core to %s (0.6 MB)\n' "$AXE" >&2
    rm -rf "$AXE"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
        --only-binary=:all: --require-hashes --target "$AXE" -r "$AXE_WANTED" >&2
    cp "$AXE_WANTED" "$AXE/installed"
}

case "${1:-}" in
    vendor | axe) "$1" ;;
    -h | --help) usage ;;
    *) usage >&2 && exit 2 ;;
esac
