#!/usr/bin/env bash
# Docker for scripts/compose.sh and scripts/chart.sh where there is no engine, or where no registry of images can be
# reached. Debian, as root.
#
#   scripts/docker.sh start     an engine, unless one responds; its data are in .cache/docker
#   scripts/docker.sh plugins   Docker's plugins compose and buildx, unless they are there: built by Go, for this user
#   scripts/docker.sh images    stand-ins for the images that deploy/ names, those that are not there and cannot be
#                               pulled: of packages of Debian, Maven Central and the Rust of this machine. Grafana has
#                               none. Only in an engine that `start` started: they have the names of the originals.
#   scripts/docker.sh stop      stops the engine that `start` started, and removes its data
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/process.sh

readonly HOME_OF_ALL="$PWD/.cache/docker"
readonly COMPOSE_OLDEST=2.23.1 COMPOSE_VERSION=v2.40.3 BUILDX_VERSION=v0.29.1
readonly DEBIAN=bookworm MIRROR=http://deb.debian.org/debian

log() { printf 'docker: %s\n' "$*" >&2; }
die() { log "error: $*"; exit 1; }

start() {
    ! docker info >/dev/null 2>&1 || return 0
    [ -z "${DOCKER_HOST:-}" ] || die "the engine of DOCKER_HOST does not respond"
    [ "$(id -u)" = 0 ] || die "no engine responds, and only root can start one"
    command -v dockerd >/dev/null || {
        log "installing Debian's docker.io"
        apt-get -qq update >&2 && apt-get -qq -y install --no-install-recommends docker.io iptables >&2
    }
    [ ! -d /run/systemd/system ] || die "an engine is installed and does not respond: systemctl start docker"
    mkdir -p "$HOME_OF_ALL"
    setsid nohup dockerd --data-root "$HOME_OF_ALL/data" >"$HOME_OF_ALL/dockerd.log" 2>&1 </dev/null &
    note_process $! "$HOME_OF_ALL/dockerd.pid"
    for _ in $(seq 60); do
        ! docker info >/dev/null 2>&1 || return 0
        sleep 0.5
    done
    tail -n 5 "$HOME_OF_ALL/dockerd.log" >&2
    kill $! 2>/dev/null || true
    die "the engine does not start; its log is $HOME_OF_ALL/dockerd.log"
}

# Prints the id of the engine that `start` started, if it runs.
own() { running_pid "$HOME_OF_ALL/dockerd.pid"; }

stop() {
    local pid
    if pid=$(own); then
        kill "$pid"
        for _ in $(seq 150); do own >/dev/null || break; sleep 0.2; done
        ! own >/dev/null || die "the engine does not end"
        # Others take its bridge for a network: Open MPI does.
        ip link delete docker0 2>/dev/null || true
    fi
    rm -rf "$HOME_OF_ALL/data"
}

# plugin NAME MODULE VERSION FOLDER VARIABLE: modules that replace others cannot be installed by `go install`.
plugin() {
    command -v go >/dev/null || die "there is no docker $1, and no Go to build it"
    log "building Docker's plugin $1 $3 (some minutes, once)"
    local work module
    work=$(mktemp -d)
    module=$(go mod download -json "$2@$3" | sed -n 's/.*"Dir": "\(.*\)",*/\1/p')
    cp -r "$module" "$work/source"
    chmod -R u+w "$work/source"
    (cd "$work/source" && go build -trimpath -ldflags "-s -w -X $2/$5=$3" -o "$work/plugin" "./$4") >&2
    install -D -m 755 "$work/plugin" "$HOME/.docker/cli-plugins/docker-$1"
    rm -rf "$work"
}

plugins() {
    local found
    found=$(docker compose version --short 2>/dev/null || echo 0)
    [ "$(printf '%s\n' "${found#v}" "$COMPOSE_OLDEST" | sort -V | head -n 1)" = "$COMPOSE_OLDEST" ] ||
        plugin compose github.com/docker/compose/v2 "$COMPOSE_VERSION" cmd internal.Version
    docker buildx version >/dev/null 2>&1 ||
        plugin buildx github.com/docker/buildx "$BUILDX_VERSION" cmd/buildx version.Version
}

has() { docker image inspect "$1" >/dev/null 2>&1; }

# image NAME FILE FOLDER
image() {
    own >/dev/null || die "$1 cannot be pulled, and a stand-in under its name is made only in an engine of this script"
    log "making a stand-in for $1"
    docker build --quiet --tag "$1" --file "scripts/docker/$2.Dockerfile" "$3" >&2
}

debian() {
    ! has "evergraph-debian:$DEBIAN" || return 0
    command -v debootstrap >/dev/null || apt-get -qq -y install --no-install-recommends debootstrap >&2
    log "unpacking Debian $DEBIAN"
    debootstrap --variant=minbase "$DEBIAN" "$work/debian" "$MIRROR" >"$work/debootstrap.log" ||
        { tail -n 5 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
    tar -C "$work/debian" -c . | docker import - "evergraph-debian:$DEBIAN" >/dev/null
}

kafka() {
    debian
    local version libs tools="kafka-topics.sh kafka-broker-api-versions.sh" tool
    version=$(sed -n 's/^KAFKA_VERSION=//p' scripts/kafka.sh)
    libs=$(KAFKA_BROKER=kafka scripts/kafka.sh path)
    mkdir -p "$work/kafka/bin"
    cp -r "$libs" "$work/kafka/libs"
    (cd "$work/kafka" && mvn -B -q dependency:copy -DoutputDirectory=libs \
        -Dartifact="org.apache.kafka:kafka-tools:$version") >&2
    install -m 755 scripts/docker/kafka-run.sh "$work/kafka/bin/run.sh"
    for tool in $tools; do ln -s run.sh "$work/kafka/bin/$tool"; done
    image "$1" kafka "$work/kafka"
}

prometheus() {
    debian
    mkdir -p "$work/prometheus"
    image "$1" prometheus "$work/prometheus"
}

rust() {
    debian
    local wanted=${1#rust:}
    case "$(rustc --version)" in
        "rustc ${wanted%%-*}"*) ;;
        *) die "$1 would be made of $(rustc --version)" ;;
    esac
    mkdir -p "$work/rust"
    cp -r "$(rustc --print sysroot)" "$work/rust/toolchain"
    cp -L /etc/ssl/certs/ca-certificates.crt "$work/rust/certificates"
    image "$1" rust "$work/rust"
}

cc() {
    local packages=(base-files ca-certificates gcc-12-base libc6 libgcc-s1 libgomp1 libssl3 libstdc++6 netbase tzdata)
    local root="$work/cc/root" package
    debian
    mkdir -p "$work/packages" "$root"
    docker run --rm --volume "$work/packages:/packages" --workdir /packages "evergraph-debian:$DEBIAN" sh -c \
        'apt-get -qq update && apt-get -qq -o APT::Sandbox::User=root download "$@"' sh "${packages[@]}" >&2
    for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$root"; done
    echo 'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >"$root/etc/passwd"
    echo 'nonroot:x:65532:' >"$root/etc/group"
    mkdir -p "$root/home/nonroot" "$root/etc/ssl/certs"
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    image "$1" cc "$work/cc"
}

images() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    local name
    for name in $(sed -n 's/^ARG B[A-Z]*_IMAGE=//p' deploy/Dockerfile) $(sed -n 's/^ *image: //p' deploy/compose.yaml); do
        ! has "$name" || continue
        [ "$name" != evergraph:local ] || continue
        ! docker pull --quiet "$name" >/dev/null 2>"$work/pull" || continue
        log "$(tail -n 1 "$work/pull")"
        case $name in
            rust:*) rust "$name" ;;
            gcr.io/distroless/cc-debian12:*) cc "$name" ;;
            apache/kafka:*) kafka "$name" ;;
            prom/prometheus:*) prometheus "$name" ;;
            *) log "warning: $name is left out" ;;
        esac
    done
}

case "${1:-}" in
    start | plugins | images | stop) "$1" ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
