#!/usr/bin/env bash
# Makes the certificates beside this file anew: each signs itself, is for localhost, and valid from 2020 to 2120; `past`
# to 2021.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/ca.cnf" <<END
[ca]
default_ca = own
[own]
database = $work/index.txt
serial = $work/serial
new_certs_dir = $work
default_md = sha256
policy = any
x509_extensions = server
[any]
commonName = supplied
[server]
subjectAltName = DNS:localhost, IP:127.0.0.1
basicConstraints = critical, CA:FALSE
END
for name in one two past; do
    case $name in past) end=20210101000000Z ;; *) end=21200101000000Z ;; esac
    openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$name.key"
    openssl req -new -key "$name.key" -subj /CN=localhost -out "$work/$name.csr"
    : >"$work/index.txt"
    echo 01 >"$work/serial"
    openssl ca -batch -config "$work/ca.cnf" -selfsign -keyfile "$name.key" -in "$work/$name.csr" -notext \
        -startdate 20200101000000Z -enddate "$end" -out "$name.crt"
done
