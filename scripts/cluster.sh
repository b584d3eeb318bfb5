#!/usr/bin/env bash
# A Kubernetes cluster of one node on this machine, for scripts/chart.sh: etcd and containerd from Debian, Kubernetes and
# CoreDNS built by Go. Debian, as root, where neither a node of another cluster nor a DNS server runs.
#
#   scripts/cluster.sh up                starts it and waits until its node is ready; KUBECONFIG is
#                                        .cache/cluster/admin.conf
#   scripts/cluster.sh import IMAGE...   imports images from the Docker engine
#   scripts/cluster.sh volumes           makes volumes whose claims are gone anew
#   scripts/cluster.sh down              stops it and removes its state
#
# It keeps its programs and credentials in .cache/cluster and its state in /var/lib/evergraph-cluster. What `down` leaves
# are packages of Debian and empty folders of Kubernetes and CNI under /var.
# Services have addresses (kube-proxy) and names (CoreDNS). Volumes are folders of this machine. What it does not do:
# enforce network policies, and measure what autoscalers ask for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/process.sh

readonly ALL="$PWD/.cache/cluster"
readonly BIN="$ALL/bin" RUN="$ALL/run" STATE=/var/lib/evergraph-cluster
readonly KUBERNETES=1.34.2 COREDNS=v1.12.4
readonly SERVICES=10.96.0 DNS=10.96.0.10 PODS=10.244.0
readonly SOCKET="$STATE/containerd.sock" API=https://127.0.0.1:6443
export KUBECONFIG="$ALL/admin.conf" PATH="$BIN:$PATH"

log() { printf 'cluster: %s\n' "$*" >&2; }
die() { log "error: $*"; exit 1; }

# until_done WHAT COMMAND...
until_done() {
    local what=$1
    shift
    for _ in $(seq 240); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.5
    done
    die "$what: not within two minutes; the logs are in $RUN"
}

# --- Programs ----------------------------------------------------------------------------------------

packages() {
    local missing=() program package
    while read -r program package; do
        [ -e "$program" ] || command -v "$program" >/dev/null || missing+=("$package")
    done <<'NEEDED'
etcd etcd-server
containerd containerd
/usr/lib/cni/ptp containernetworking-plugins
conntrack conntrack
iptables iptables
openssl openssl
NEEDED
    [ "${#missing[@]}" = 0 ] || {
        log "installing by apt-get: ${missing[*]}"
        apt-get -qq update >&2
        apt-get -qq -y install --no-install-recommends "${missing[@]}" >&2
    }
}

# A copy of a module's source in $1, to be built there: modules that replace others cannot be built from elsewhere.
source_of() {
    local module
    module=$(go mod download -json "$2" | sed -n 's/.*"Dir": "\(.*\)",*/\1/p')
    cp -r "$module" "$1"
    chmod -R u+w "$1"
}

programs() {
    [ "$(cat "$BIN/versions" 2>/dev/null)" != "$KUBERNETES $COREDNS" ] || return 0
    command -v go >/dev/null || die "Kubernetes is built by Go, and there is none here"
    log "building Kubernetes $KUBERNETES and CoreDNS $COREDNS (five minutes, once)"
    local work part
    work=$(mktemp -d)
    mkdir -p "$BIN"
    source_of "$work/kubernetes" "k8s.io/kubernetes@v$KUBERNETES"
    (
        cd "$work/kubernetes"
        rm -rf vendor go.work go.work.sum
        # What is a folder in its repository is a module of its own on the proxy.
        sed -i -e '/=> \.\/staging/d' -e "s/^\(\tk8s.io\/[a-z-]*\) v0\.0\.0\$/\1 v0.${KUBERNETES#*.}/" go.mod
        for part in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
            GOFLAGS=-mod=mod CGO_ENABLED=0 go build -trimpath -o "$BIN/$part" \
                -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$KUBERNETES" "./cmd/$part"
        done
    ) >&2
    source_of "$work/coredns" "github.com/coredns/coredns@$COREDNS"
    (cd "$work/coredns" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$BIN/coredns" .) >&2
    printf '#include <unistd.h>\nint main(void) { for (;;) pause(); }\n' | gcc -static -Os -s -o "$BIN/pause" -x c -
    echo "$KUBERNETES $COREDNS" >"$BIN/versions"
    rm -rf "$work"
}

# --- Credentials -------------------------------------------------------------------------------------

# certificate NAME SUBJECT EXTENSIONS
certificate() {
    openssl req -new -newkey rsa:2048 -nodes -subj "$2" -keyout "$ALL/pki/$1.key" -out "$ALL/pki/$1.csr" 2>/dev/null
    openssl x509 -req -in "$ALL/pki/$1.csr" -days 30 -CA "$ALL/pki/ca.crt" -CAkey "$ALL/pki/ca.key" -CAcreateserial \
        -extfile <(printf '%s\n' "$3") -out "$ALL/pki/$1.crt" 2>/dev/null
}

credentials() {
    mkdir -p "$ALL/pki"
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=cluster -keyout "$ALL/pki/ca.key" \
        -out "$ALL/pki/ca.crt" 2>/dev/null
    certificate server /CN=kube-apiserver \
        "subjectAltName=DNS:kubernetes,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:$SERVICES.1,IP:$(address)"
    certificate admin /O=system:masters/CN=admin extendedKeyUsage=clientAuth
    openssl genrsa -out "$ALL/pki/accounts.key" 2048 2>/dev/null
    openssl rsa -in "$ALL/pki/accounts.key" -pubout -out "$ALL/pki/accounts.pub" 2>/dev/null
    kubectl config set-cluster here --server "$API" --certificate-authority "$ALL/pki/ca.crt" >/dev/null
    kubectl config set-credentials admin --client-certificate "$ALL/pki/admin.crt" \
        --client-key "$ALL/pki/admin.key" >/dev/null
    kubectl config set-context here --cluster here --user admin >/dev/null
    kubectl config use-context here >/dev/null
}

# This machine's own, by which pods reach the interface of the cluster.
address() { hostname -I | awk '{ print $1 }'; }

# --- Processes ---------------------------------------------------------------------------------------

# run NAME COMMAND...: in the background, until `down`.
run() {
    local name=$1
    shift
    setsid nohup "$@" >"$RUN/$name.log" 2>&1 </dev/null &
    note_process $! "$RUN/$name.pid"
}

# listens ADDRESS PORT
listens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

settings() {
    mkdir -p "$ALL/cni" "$STATE"
    cat >"$ALL/containerd.toml" <<TOML
version = 2
root = "$STATE/containerd"
state = "$STATE/containerd-state"
[grpc]
  address = "$SOCKET"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "evergraph-pause:local"
  # The machine may itself be a container.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$ALL/cni"
TOML
    # Routes, no bridge: what stays on a bridge would not pass the rules of services.
    cat >"$ALL/cni/10-pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$PODS.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "firewall", "backend": "iptables"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
    cat >"$ALL/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$SOCKET
cgroupDriver: cgroupfs
failSwapOn: false
clusterDNS: [$DNS]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $ALL/pki/ca.crt}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
localStorageCapacityIsolation: false
YAML
    cat >"$ALL/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: $KUBECONFIG}
clusterCIDR: $PODS.0/24
conntrack: {maxPerCore: 0, min: 0}
YAML
    cat >"$ALL/Corefile" <<COREFILE
.:53 {
    bind $(address)
    acl {
        allow net $PODS.0/24 $(address)/32
        block
    }
    kubernetes cluster.local {
        kubeconfig $KUBECONFIG
    }
    forward . /etc/resolv.conf
}
COREFILE
}

processes() {
    local pki="$ALL/pki"
    run etcd etcd --data-dir "$STATE/etcd" --listen-client-urls https://127.0.0.1:12379 \
        --advertise-client-urls https://127.0.0.1:12379 --listen-peer-urls http://127.0.0.1:12380 \
        --initial-advertise-peer-urls http://127.0.0.1:12380 --initial-cluster default=http://127.0.0.1:12380 \
        --client-cert-auth --trusted-ca-file "$pki/ca.crt" --cert-file "$pki/server.crt" --key-file "$pki/server.key"
    run containerd containerd --config "$ALL/containerd.toml"
    run apiserver kube-apiserver --etcd-servers https://127.0.0.1:12379 --etcd-cafile "$pki/ca.crt" \
        --etcd-certfile "$pki/admin.crt" --etcd-keyfile "$pki/admin.key" --service-cluster-ip-range "$SERVICES.0/24" \
        --client-ca-file "$pki/ca.crt" --tls-cert-file "$pki/server.crt" --tls-private-key-file "$pki/server.key" \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$pki/accounts.pub" \
        --service-account-signing-key-file "$pki/accounts.key" --authorization-mode RBAC \
        --kubelet-preferred-address-types InternalIP --kubelet-client-certificate "$pki/admin.crt" --kubelet-client-key "$pki/admin.key" --allow-privileged
    until_done "the API server" is_up
    run controllers kube-controller-manager --kubeconfig "$KUBECONFIG" --root-ca-file "$pki/ca.crt" \
        --service-account-private-key-file "$pki/accounts.key" --use-service-account-credentials --leader-elect=false
    run scheduler kube-scheduler --kubeconfig "$KUBECONFIG" --leader-elect=false
    until_done "the container runtime" ctr --address "$SOCKET" version
    pause_image
    run kubelet kubelet --kubeconfig "$KUBECONFIG" --config "$ALL/kubelet.yaml" --root-dir "$STATE/kubelet" \
        --hostname-override node
    until_done "the node" kubectl wait --for condition=Ready node/node --timeout 1s
    run proxy kube-proxy --config "$ALL/proxy.yaml" --hostname-override node
    names
}

# The container that holds a pod's network: it waits for a signal.
pause_image() {
    local work
    work=$(mktemp -d)
    cp "$BIN/pause" "$work/pause"
    tar -C "$work" -c pause | docker import --change 'ENTRYPOINT ["/pause"]' - evergraph-pause:local >/dev/null
    rm -rf "$work"
    import evergraph-pause:local
}

import() { docker save "$@" | ctr --address "$SOCKET" --namespace k8s.io images import - >&2; }

# Names of services, by CoreDNS beside the pods: a service without a selector leads to it.
names() {
    run coredns coredns -conf "$ALL/Corefile"
    until_done "names of services" listens "$(address)" 53
    kubectl apply -f - <<YAML >/dev/null
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: $DNS
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-here, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: ["$(address)"], conditions: {ready: true}}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
YAML
}

# Folders of this machine as volumes, for claims that name no class.
volumes() {
    local number released
    released=$(kubectl get persistentvolumes \
        -o jsonpath='{range .items[?(@.status.phase=="Released")]}{.metadata.name}{" "}{end}')
    for number in $released; do
        kubectl delete persistentvolume "$number" >/dev/null
        rm -rf "$STATE/volumes/${number#volume-}"
    done
    for number in $(seq 6); do
        mkdir -p "$STATE/volumes/$number"
        cat <<YAML
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: volume-$number}
spec:
  capacity: {storage: 100Gi}
  accessModes: [ReadWriteOnce]
  local: {path: $STATE/volumes/$number}
  nodeAffinity:
    required:
      nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node]}]}]
YAML
    done | kubectl apply -f - >/dev/null
}

# Of this cluster, and of no other that kubectl knows.
is_up() { [ -s "$KUBECONFIG" ] && kubectl --server "$API" --request-timeout 5s get --raw /readyz >/dev/null 2>&1; }

up() {
    [ "$(id -u)" = 0 ] || die "a node of Kubernetes needs root"
    ! is_up || return 0
    down
    local port
    for port in 6443 10250 10256; do
        ! listens 127.0.0.1 "$port" || die "port $port is taken: another node of Kubernetes seems to run here"
    done
    ! listens "$(address)" 53 || die "port 53 is taken: another DNS server runs here"
    packages
    programs
    mkdir -p "$RUN"
    credentials
    settings
    processes
    volumes
    log "ready: export KUBECONFIG=$KUBECONFIG"
}

down() {
    local file
    ! is_up || kubectl delete pods --all --all-namespaces --timeout 60s >/dev/null 2>&1 || true
    # What watches goes before what is watched.
    for file in coredns proxy kubelet scheduler controllers apiserver; do stop_process "$file"; done
    if [ -S "$SOCKET" ]; then
        ctr --address "$SOCKET" --namespace k8s.io tasks list -q 2>/dev/null |
            xargs -r -n 1 ctr --address "$SOCKET" --namespace k8s.io tasks kill --signal KILL 2>/dev/null || true
        sleep 1
    fi
    for file in containerd etcd; do stop_process "$file"; done
    if [ -d "$STATE" ]; then
        # Mounts of pods, the innermost first.
        awk -v at="$STATE/" 'index($2, at) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount || true
        rm -rf "$STATE" /var/lib/cni/networks/pods
        kube-proxy --cleanup >/dev/null 2>&1 || true
    fi
    rm -rf "$ALL/pki" "$KUBECONFIG" "$RUN"
}

stop_process() {
    local pid
    pid=$(running_pid "$RUN/$1.pid") || return 0
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 50); do
        running_pid "$RUN/$1.pid" >/dev/null || return 0
        sleep 0.2
    done
    kill -KILL "$pid" 2>/dev/null || true
}

case "${1:-}" in
    up | down | volumes) "$1" ;;
    import) shift; import "$@" ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
