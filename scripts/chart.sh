#!/usr/bin/env bash
# The Helm chart in the cluster of scripts/cluster.sh: installs a leader with two replicas, and a broker for them, and
# checks that events are learned, that the three give the same embeddings, that no read of the replicas fails while the
# leader is replaced or killed, or the release upgraded, or the replicas drained, that an upgrade with invalid settings
# changes nothing, that volumes outlive the release, and that the plain manifests take them over. Removes its namespace at
# the end.
#
#   scripts/chart.sh     as root; the cluster has to have the images evergraph:local and that of the broker in
#                        deploy/compose.yaml
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Never the cluster that kubectl would take by itself: nodes are drained here.
export KUBECONFIG="$PWD/.cache/cluster/admin.conf" PATH="$PWD/.cache/tools/bin:$PWD/.cache/cluster/bin:$PATH"

readonly NAMESPACE=evergraph CHART=deploy/helm/evergraph EVENTS=2000
readonly DAEMONS=(evergraph-0 evergraph-replica-0 evergraph-replica-1)
readonly KEYS='read reader 0123456789abcdef0123456789abcdef
write writer fedcba9876543210fedcba9876543210'

log() { printf 'chart: %s\n' "$*" >&2; }
die() {
    log "error: $*"
    kube get pods,events >&2 || true
    kube logs evergraph-0 --tail 20 >&2 || true
    exit 1
}
kube() { kubectl --namespace "$NAMESPACE" "$@"; }

broker() {
    local image
    image=$(sed -n 's/^ *image: \(.*kafka.*\)/\1/p' deploy/compose.yaml | head -n 1)
    kube apply -f - >&2 <<YAML
apiVersion: v1
kind: Service
metadata: {name: kafka}
spec:
  selector: {app: kafka}
  ports: [{port: 9092}]
---
apiVersion: v1
kind: Pod
metadata: {name: kafka, labels: {app: kafka}}
spec:
  # Kubernetes sets KAFKA_PORT and the like, which the broker would read as settings.
  enableServiceLinks: false
  containers:
    - name: kafka
      image: $image
      env:
        - {name: KAFKA_NODE_ID, value: "1"}
        - {name: KAFKA_PROCESS_ROLES, value: "broker,controller"}
        - {name: KAFKA_CONTROLLER_QUORUM_VOTERS, value: "1@localhost:9093"}
        - {name: KAFKA_CONTROLLER_LISTENER_NAMES, value: CONTROLLER}
        - {name: KAFKA_LISTENERS, value: "INSIDE://:9092,CONTROLLER://:9093"}
        - {name: KAFKA_ADVERTISED_LISTENERS, value: "INSIDE://kafka:9092"}
        - {name: KAFKA_LISTENER_SECURITY_PROTOCOL_MAP, value: "INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"}
        - {name: KAFKA_INTER_BROKER_LISTENER_NAME, value: INSIDE}
        - {name: KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR, value: "1"}
        - {name: KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR, value: "1"}
        - {name: KAFKA_TRANSACTION_STATE_LOG_MIN_ISR, value: "1"}
        - {name: KAFKA_LOG_DIRS, value: /var/lib/kafka/data}
      readinessProbe: {tcpSocket: {port: 9092}, periodSeconds: 1}
YAML
    kube wait --for condition=Ready pod/kafka --timeout 120s >&2 || die "the broker does not start"
}

# release COMMAND FLAG...: helm, with the values of this check.
release() {
    helm "$1" evergraph "$CHART" --namespace "$NAMESPACE" --set image.tag=local --set keysSecret=evergraph-keys \
        --set readReplicas.count=2 --set resources.requests.cpu=100m --set resources.requests.memory=256Mi \
        --set preStopSleepSeconds=2 --set-file config="$work/config.toml" --wait --timeout 2m "${@:2}" >"$work/helm" 2>&1
}

# Addresses of a pod and of a service.
pod() { kube get pod "$1" -o jsonpath='{.status.podIP}:8080'; }
service() { kube get service "$1" -o jsonpath='{.spec.clusterIP}:8080'; }

ask() { curl -sS --fail-with-body --max-time 10 -H 'content-type: application/json' "$@"; }
reading() { ask -H 'authorization: Bearer 0123456789abcdef0123456789abcdef' "$@"; }

embeddings() {
    reading "$1/v1/embeddings" -d '{"nodes": ["user-1", "user-2", "item-3"], "at": 100000}' |
        python3 -c 'import json, sys
found = json.load(sys.stdin)["embeddings"]
assert len(found) == 3 and all(any(item["embedding"]) for item in found), found
print(found)'
}

position() {
    reading "$1/v1/nodes/user-1" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["freshness"]["applied_position"])'
}

push() {
    seq "$1" $(($1 + EVENTS - 1)) | awk 'BEGIN { printf "[" } NR > 1 { printf "," }
        { printf "{\"src\":\"user-%d\",\"dst\":\"item-%d\",\"ts\":%d}", $1 % 97, $1 % 31, $1 } END { print "]" }' \
        >"$work/events.json"
    ask -H 'authorization: Bearer fedcba9876543210fedcba9876543210' --retry 10 --retry-all-errors \
        "$(service evergraph)/v1/events" \
        -d @"$work/events.json" >/dev/null || die "events are refused"
}

# The same number through the broker.
produce() {
    { echo src,dst,ts; seq "$1" $(($1 + EVENTS - 1)) | awk '{ print "user-" $1 % 97 ",item-" $1 % 31 "," $1 }'; } \
        >"$work/events.csv"
    kube create configmap events --from-file="$work/events.csv" >&2
    kube apply -f - >&2 <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: producer}
spec:
  restartPolicy: Never
  containers:
    - name: producer
      image: evergraph:local
      args: [ingest, --events, /events/events.csv, --to, kafka, --brokers, "kafka:9092", --create-partitions, "2"]
      volumeMounts: [{name: events, mountPath: /events}]
  volumes: [{name: events, configMap: {name: events}}]
YAML
    kube wait --for jsonpath='{.status.phase}'=Succeeded pod/producer --timeout 60s >&2 ||
        die "the producer fails: $(kube logs producer)"
}

# until_at POSITION POD
until_at() {
    for _ in $(seq 240); do
        [ "$(position "$(pod "$2")" 2>/dev/null)" != "$1" ] || return 0
        sleep 0.5
    done
    die "$2 is at $(position "$(pod "$2")" 2>&1), and not at $1"
}

alike() {
    local daemon
    for daemon in "${DAEMONS[@]}"; do until_at "$1" "$daemon"; done
    embeddings "$(pod evergraph-0)" >"$work/leader" || die "the leader gives no embeddings"
    for daemon in "${DAEMONS[@]:1}"; do
        embeddings "$(pod "$daemon")" | cmp - "$work/leader" >&2 || die "$daemon and the leader respond differently"
    done
    log "at position $1 the leader and both replicas give the same embeddings"
}

# Reads through the service of the replicas until a file is there; prints how many reads failed, and of how many.
read_on() {
    local failed=0 count=0 replicas
    replicas=$(service evergraph-replica)
    while [ ! -e "$work/over" ]; do
        count=$((count + 1))
        embeddings "$replicas" >/dev/null 2>>"$work/failures" || failed=$((failed + 1))
    done
    echo "$failed $count"
}

# beside_reads WHAT COMMAND...: no read of the replicas fails meanwhile.
beside_reads() {
    local what=$1 reader failed count
    shift
    rm -f "$work/over"
    read_on >"$work/reads" &
    reader=$!
    "$@" >&2 || die "$what"
    touch "$work/over"
    wait "$reader"
    read -r failed count <"$work/reads"
    [ "$failed" = 0 ] && [ "$count" -gt 0 ] || die "$failed of $count reads failed: $what: $(tail -n 1 "$work/failures")"
    log "none of $count reads of the replicas failed: $what"
}

# Its process, from outside of the pod: it gets no time for anything.
kill_leader() {
    local id
    id=$(kube get pod evergraph-0 -o jsonpath='{.status.containerStatuses[0].containerID}')
    ctr --address /var/lib/evergraph-cluster/containerd.sock --namespace k8s.io tasks kill --signal KILL \
        "${id#containerd://}" || return 1
    kube wait --for jsonpath='{.status.containerStatuses[0].restartCount}'=1 pod/evergraph-0 --timeout 60s || return 1
    kube wait --for condition=Ready pod/evergraph-0 --timeout 120s
}

restart_leader() {
    kube rollout restart statefulset/evergraph && kube rollout status statefulset/evergraph --timeout 4m
}

work=$(mktemp -d)
end() {
    jobs -p | xargs -r kill 2>/dev/null || true
    # A drain that failed half-way leaves the node closed.
    kubectl get nodes -o name | xargs -r kubectl uncordon >/dev/null 2>&1 || true
    helm uninstall evergraph --namespace "$NAMESPACE" >/dev/null 2>&1 || true
    kubectl delete namespace "$NAMESPACE" --timeout 120s >&2 || true
    # What is left in a volume is nobody's any more: cluster.sh makes them anew.
    scripts/cluster.sh volumes || true
    rm -rf "$work"
}
[ -s "$KUBECONFIG" ] || { log "error: there is no cluster: scripts/cluster.sh up"; exit 1; }
kubectl create namespace "$NAMESPACE" >&2
trap end EXIT
printf '[ingest.kafka]\nbrokers = "kafka:9092"\n' >"$work/config.toml"
printf '%s\n' "$KEYS" >"$work/keys"
kube create secret generic evergraph-keys --from-file=keys="$work/keys" >&2
broker
release install || { cat "$work/helm" >&2; die "the chart cannot be installed"; }
log "installed: $(kube get pods --no-headers | awk '{ printf "%s %s; ", $1, $2 }')"
produce 0
alike "$EVENTS"
beside_reads "the leader was replaced" restart_leader

beside_reads "the leader was killed" kill_leader
until_at "$EVENTS" evergraph-0
push "$EVENTS"
alike $((2 * EVENTS))

# What runs, apart from pods of jobs.
running() { kube get pods -l app.kubernetes.io/instance=evergraph -o jsonpath='{.items[*].metadata.uid}'; }
before=$(running)
cp "$work/config.toml" "$work/config.good"
{ cat "$work/config.good" && printf '\n[learner]\nlearning_rate = "fast"\n'; } >"$work/config.toml"
! release upgrade || die "an upgrade with invalid settings is accepted"
grep -q pre-upgrade "$work/helm" || die "an upgrade with invalid settings fails elsewhere: $(cat "$work/helm")"
[ "$before" = "$(running)" ] || die "an upgrade with invalid settings changed pods"
log "an upgrade with invalid settings changed nothing: $(kube logs job/evergraph-validate --container validate | tail -n 1)"
{ cat "$work/config.good" && printf '\n[learner]\nlearning_rate = 0.0005\n'; } >"$work/config.toml"
beside_reads "an upgrade with other settings" release upgrade
[ "$before" != "$(running)" ] || die "an upgrade with other settings changed nothing"
push $((2 * EVENTS))
alike $((3 * EVENTS))

node=$(kube get pod evergraph-replica-0 -o jsonpath='{.spec.nodeName}')
# There is no other node, so an evicted pod waits, and the next one must not go.
drain() {
    ! kubectl drain "$node" --pod-selector app.kubernetes.io/name=evergraph-replica --delete-emptydir-data \
        --timeout 20s >"$work/drain" 2>&1 || die "a drain took both replicas"
    local ready
    ready=$(kube get statefulset evergraph-replica -o jsonpath='{.status.readyReplicas}')
    [ "$ready" = 1 ] || die "a drain left ${ready:-no} replicas: $(cat "$work/drain")"
    kubectl uncordon "$node" && kube rollout status statefulset/evergraph-replica --timeout 2m
}
beside_reads "a drain evicted one replica, and not the other" drain

helm uninstall evergraph --namespace "$NAMESPACE" --wait >&2
sed 's/"evergraph:[^"]*"/"evergraph:local"/; s/cpu: "1"/cpu: 100m/' deploy/kubernetes/evergraph.yaml >"$work/plain.yaml"
kube apply -f "$work/plain.yaml" >&2
kube rollout status statefulset/evergraph --timeout 4m >&2 || die "the plain manifests do not start"
until_at $((3 * EVENTS)) evergraph-0
log "passed: the plain manifests go on with the volume of the release, at position $((3 * EVENTS))"
