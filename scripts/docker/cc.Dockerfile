# What Debian's packages of glibc, libgcc, libstdc++ and OpenSSL unpack to, and nothing else; user 65532.
FROM scratch
COPY root /
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532
WORKDIR /home/nonroot
