#!/usr/bin/env bash
# The Helm chart and the plain manifests that are rendered from it.
#
#   scripts/kubernetes.sh render   writes deploy/kubernetes/evergraph.yaml from the chart with ci/keys.yaml
#   scripts/kubernetes.sh check    fails unless the manifests are what the chart renders, the chart passes
#                                  `helm lint --strict`, all that it renders with the values of ci/ fits the schemas of
#                                  Kubernetes, read replicas change nothing of their leader but its role, and values that
#                                  leave the daemon open by mistake are refused
#
# helm and kubernetes-validate come from scripts/setup.sh kubernetes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PATH="$PWD/.cache/tools/bin:$PATH"
readonly CHART=deploy/helm/evergraph MANIFESTS=deploy/kubernetes/evergraph.yaml
# The oldest Kubernetes that the chart takes, and the newest that there is a schema for.
readonly OLDEST=1.30 NEWEST=1.37

die() { printf 'kubernetes: error: %s\n' "$*" >&2; exit 1; }

# helm prints every link that it follows on standard error; that is shown only if it fails.
quietly() {
    local errors
    errors=$(mktemp)
    "$@" 2>"$errors" || { cat "$errors" >&2; rm -f "$errors"; return 1; }
    rm -f "$errors"
}

rendered() {
    quietly helm template evergraph "$CHART" --namespace evergraph "$@"
}

# Without what only Helm reads.
manifests() {
    cat <<'HEAD'
# Rendered from deploy/helm/evergraph with ci/keys.yaml by scripts/kubernetes.sh; change the chart, not this file.
# Settings are in the ConfigMap; the image has to be one that the cluster can pull. The file keys lists who may read and
# push; docs/security.md describes it.
#   kubectl create namespace evergraph
#   kubectl --namespace evergraph create secret generic evergraph-keys --from-file=keys
#   kubectl apply -f deploy/kubernetes/evergraph.yaml
HEAD
    rendered --no-hooks -f "$CHART/ci/keys.yaml" | sed -e '/helm.sh\/chart:/d' -e '/managed-by: Helm/d' -e '/^# Source:/d'
}

# The kinds of the Prometheus operator have no schema in Kubernetes itself: they are left out here.
validate() {
    local version
    rendered -f "$1" --set serviceMonitor.enabled=false --set prometheusRule.enabled=false >"$work/plain.yaml"
    for version in "$OLDEST" "$NEWEST"; do
        kubernetes-validate --strict --quiet --no-warn --kubernetes-version "$version" "$work/plain.yaml" ||
            die "what $CHART renders with $1 does not fit Kubernetes $version"
    done
}

# The alerts that the chart brings are those of deploy/alerts.yml, with full addresses of their runbook pages.
rules_are_the_alerts() {
    local asked
    asked='{{ with $externalLabels.runbook_docs }}{{ . }}{{ else }}file:///usr/share/doc/evergraph/docs{{ end }}'
    rendered -f "$1" --show-only templates/prometheusrule.yaml |
        python3 -c 'import sys; text = sys.stdin.read(); print(text[text.index("\nspec:\n") + 7:])' |
        sed -e 's/^  //' -e "s#runbook_url: '$2/#runbook_url: '$asked/#" -e '/./,$!d' >"$work/rules.yml"
    diff -B "$work/rules.yml" deploy/alerts.yml || die "the chart's PrometheusRule is not deploy/alerts.yml"
}

# The selector of a StatefulSet never changes, so with replicas the leader's objects are what they are without, but for its
# role; and no selector of the one part is that of the other.
replicas_stand_beside_their_leader() {
    rendered -f "$1" --set readReplicas.count=0 >"$work/alone.yaml"
    rendered -f "$1" >"$work/both.yaml"
    python3 - "$work/alone.yaml" "$work/both.yaml" <<'COMPARE' || die "see above: what $CHART renders with $1"
import re, sys

ROLE = ["CLUSTER__ROLE", "CLUSTER__ADVERTISE"]
REPLICA = {"CLUSTER__ROLE": "replica", "FEED__TOPIC": '""', "ANOMALIES__TOPIC": '""', "DEVICE__USE": "cpu"}

def objects(path):
    """Texts by kind and name, without hooks."""
    documents = [text.strip() for text in re.split(r"^---$", open(path).read(), flags=re.M)]
    kept = [text for text in documents if text and "helm.sh/hook" not in text]
    return {re.search(r"^kind: (.*)\nmetadata:\n  name: (.*)$", text, re.M).groups(): text for text in kept}

alone, both = map(objects, sys.argv[1:])
names = [re.findall(r"app.kubernetes.io/name: (.*)", text) for text in alone.values()]
(name,) = {found for inside in names for found in inside}
replicas = {key: text for key, text in both.items() if key not in alone}
variable = r"\n *- name: EVERGRAPH__(%s)\n *value: (.*)"
for key, text in alone.items():
    rest = re.sub(variable % "|".join(ROLE), "", both[key])
    assert rest == text, f"replicas change {key} of the leader:\n{rest}"
for kind in ["StatefulSet", "Service", "NetworkPolicy", "PodDisruptionBudget"]:
    assert any(found == kind for found, _ in replicas), f"replicas have no {kind}"
for key, text in replicas.items():
    parts = set(re.findall(r"app.kubernetes.io/name: (.*)", text))
    assert parts == {name + "-replica"}, f"{key} is not for replicas alone:\n{text}"
((_, replica),) = [found for found in replicas.items() if found[0][0] == "StatefulSet"]
((_, leader),) = [found for found in both.items() if found[0][0] == "StatefulSet" and found[0] in alone]
assert dict(re.findall(variable % "|".join(REPLICA), replica)) == REPLICA, f"not the role of a replica:\n{replica}"
assert dict(re.findall(variable % "CLUSTER__ROLE", leader)) == {"CLUSTER__ROLE": "leader"}, leader
assert "nvidia" in leader and "nvidia" not in replica, f"replicas use no GPU:\n{replica}"
for text in [leader, replica]:
    variables = re.findall(r"- name: (EVERGRAPH__.*)", text)
    assert len(variables) == len(set(variables)), f"a variable twice: {variables}"
COMPARE
}

# The chart refuses these values, and its message has the words.
refused() {
    local words=$1
    shift
    if helm template evergraph "$CHART" "$@" >"$work/refused" 2>&1; then die "the chart takes $*"; fi
    grep -q "$words" "$work/refused" || { cat "$work/refused" >&2; die "the chart refuses $* without \"$words\""; }
}

check() {
    local values
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    manifests >"$work/evergraph.yaml"
    diff -u "$MANIFESTS" "$work/evergraph.yaml" || die "$MANIFESTS is not what the chart renders: run $0 render"
    for values in "$CHART"/ci/*.yaml; do
        quietly helm lint --strict "$CHART" -f "$values" >"$work/lint" || { cat "$work/lint" >&2; die "$values"; }
        validate "$values"
        printf 'ok %s\n' "$values"
    done
    rules_are_the_alerts "$CHART/ci/everything.yaml" https://git.example/evergraph/docs
    replicas_stand_beside_their_leader "$CHART/ci/replicas.yaml"
    refused "keysSecret is empty"
    refused "contradict" --set keysSecret=k,allowAnonymous=true
    refused "runbookBaseUrl is empty" --set keysSecret=k,prometheusRule.enabled=true
    refused "min is more than max" \
        --set keysSecret=k,readReplicas.autoscaling.enabled=true,readReplicas.autoscaling.min=9
    refused "requests.cpu" --set keysSecret=k,readReplicas.autoscaling.enabled=true,resources.requests=null
}

case "${1:-}" in
    render) mkdir -p "$(dirname "$MANIFESTS")" && manifests >"$MANIFESTS" ;;
    check) check ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
