{{- define "evergraph.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What belongs to the release has the name "evergraph.fullname"; what belongs to its daemon or to the replicas of that,
"evergraph.part". */}}
{{- define "evergraph.part" -}}
{{- if .Replica }}
{{- printf "%s-replica" (include "evergraph.fullname" . | trunc 44 | trimSuffix "-") }}
{{- else }}
{{- include "evergraph.fullname" . }}
{{- end }}
{{- end }}

{{- define "evergraph.hasReplicas" -}}
{{- with .Values.readReplicas }}
{{- if or .autoscaling.enabled (gt (int .count) 0) }}true{{ end }}
{{- end }}
{{- end }}

{{- /* Of (list . "template"): the template with Replica set and the values of the replicas; nothing if there are none. */}}
{{- define "evergraph.ofReplicas" -}}
{{- $root := index . 0 }}
{{- if include "evergraph.hasReplicas" $root }}
{{- $values := include "evergraph.replicaValues" $root | fromYaml }}
{{- include (index . 1) (dict "Replica" true "Values" $values "Release" $root.Release "Chart" $root.Chart) }}
{{- end }}
{{- end }}

{{- define "evergraph.replicaValues" -}}
{{- $own := .Values.readReplicas }}
{{- $values := .Values | toYaml | fromYaml }}
{{- range list "service" "nodeSelector" "tolerations" "affinity" }}
{{- $_ := set $values . (get $own .) }}
{{- end }}
{{- $_ := set $values "resources" ($own.resources | default .Values.resources) }}
{{- $_ := set $values "persistence" (dict
  "size" ($own.persistence.size | default .Values.persistence.size)
  "storageClassName" ($own.persistence.storageClassName | default .Values.persistence.storageClassName)
  "accessModes" .Values.persistence.accessModes) }}
{{- $_ := set $values "gpu" (dict "enabled" false) }}
{{- $_ := set $values.podDisruptionBudget "maxUnavailable" 1 }}
{{- toYaml $values }}
{{- end }}

{{- define "evergraph.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}{{ if .Replica }}-replica{{ end }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "evergraph.labels" -}}
{{ include "evergraph.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: evergraph
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* What is not allowed, or was forgotten; included where everything is rendered. */}}
{{- define "evergraph.validate" -}}
{{- if not (or .Values.keysSecret .Values.allowAnonymous) }}
{{- fail "keysSecret is empty: name a Secret whose entry keys lists who may read and push (docs/security.md), or set allowAnonymous: true" }}
{{- end }}
{{- if and .Values.keysSecret .Values.allowAnonymous }}
{{- fail "keysSecret and allowAnonymous contradict each other: set one of them" }}
{{- end }}
{{- with .Values.readReplicas }}
{{- if .autoscaling.enabled }}
{{- if gt (int .autoscaling.min) (int .autoscaling.max) }}
{{- fail "readReplicas.autoscaling.min is more than max" }}
{{- end }}
{{- if not (dig "requests" "cpu" "" (.resources | default $.Values.resources)) }}
{{- fail "readReplicas.autoscaling needs resources.requests.cpu, of which it counts the load" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "evergraph.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "evergraph.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "evergraph.fullname" .) }}
{{- end }}

{{- /* extraEnv, and what the role decides instead of it: delivering changes and anomalies, and training, are the
leader's. */}}
{{- define "evergraph.env" -}}
{{- $role := dict }}
{{- if .Replica }}
{{- $role = dict "CLUSTER__ROLE" "replica" "FEED__TOPIC" "" "ANOMALIES__TOPIC" "" "DEVICE__USE" "cpu" }}
{{- else if include "evergraph.hasReplicas" . }}
{{- $scheme := empty .Values.tlsSecret | ternary "http" "https" }}
{{- $host := printf "%s.%s.svc" (include "evergraph.fullname" .) .Release.Namespace }}
{{- $here := printf "%s://%s:%d" $scheme $host (int .Values.service.port) }}
{{- $role = dict "CLUSTER__ROLE" "leader" "CLUSTER__ADVERTISE" (.Values.readReplicas.advertise | default $here) }}
{{- end }}
{{- $env := list }}
{{- range .Values.extraEnv }}
{{- if not (hasKey $role (trimPrefix "EVERGRAPH__" .name)) }}
{{- $env = append $env . }}
{{- end }}
{{- end }}
{{- range $key, $value := $role }}
{{- $env = append $env (dict "name" (print "EVERGRAPH__" $key) "value" $value) }}
{{- end }}
{{- with $env }}
{{- toYaml . }}
{{- end }}
{{- end }}
