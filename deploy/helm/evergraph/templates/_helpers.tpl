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

{{- define "evergraph.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
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
