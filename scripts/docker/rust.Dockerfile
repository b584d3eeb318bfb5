# Debian with a C compiler, the Rust of this machine, and the certificates that this machine trusts.
FROM evergraph-debian:bookworm
# hadolint ignore=DL3008
RUN apt-get update -q \
    && apt-get install -yq --no-install-recommends ca-certificates gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY certificates /etc/ssl/certs/ca-certificates.crt
COPY toolchain /usr/local/rust
ENV PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/usr/local/cargo
