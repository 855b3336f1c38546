{{- define "heterotrain.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "heterotrain.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "heterotrain.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "heterotrain.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* What belongs to no namespace is named after the release's, so that two installations do not collide. */}}
{{- define "heterotrain.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "heterotrain.fullname" .) }}
{{- end }}

{{- define "heterotrain.selectorLabels" -}}
app.kubernetes.io/name: {{ include "heterotrain.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "heterotrain.labels" -}}
{{ include "heterotrain.selectorLabels" . }}
app.kubernetes.io/part-of: heterotrain
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "heterotrain.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "heterotrain.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "heterotrain.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* Passes the restricted Pod Security Standard. */}}
{{- define "heterotrain.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "heterotrain.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
