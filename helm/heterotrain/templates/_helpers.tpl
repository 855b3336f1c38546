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

{{- /* What this chart says of an object goes before what the administrator says of all. */}}
{{- define "heterotrain.labels" -}}
{{ toYaml (merge (include "heterotrain.ownLabels" . | fromYaml) .Values.commonLabels) }}
{{- end }}

{{- define "heterotrain.podLabels" -}}
{{ toYaml (merge (include "heterotrain.ownLabels" . | fromYaml) .Values.podLabels .Values.commonLabels) }}
{{- end }}

{{- define "heterotrain.ownLabels" -}}
{{ include "heterotrain.selectorLabels" . }}
app.kubernetes.io/part-of: heterotrain
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "heterotrain.testLabels" -}}
{{- $own := dict "app.kubernetes.io/component" "test" "app.kubernetes.io/instance" .Release.Name }}
{{- toYaml (merge $own (dict "app.kubernetes.io/name" (include "heterotrain.name" .)) .Values.commonLabels) }}
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

{{- /* That of the values, and among several replicas a node for each. */}}
{{- define "heterotrain.affinity" -}}
{{- $affinity := deepCopy .Values.affinity }}
{{- if and .Values.antiAffinity (gt (int .Values.replicas) 1) (not (hasKey $affinity "podAntiAffinity")) }}
{{- $labels := dict "matchLabels" (include "heterotrain.selectorLabels" . | fromYaml) }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $labels }}
{{- if eq .Values.antiAffinity "hard" }}
{{- $_ := set $affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) }}
{{- else }}
{{- $weighed := dict "weight" 100 "podAffinityTerm" $term }}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $weighed)) }}
{{- end }}
{{- end }}
{{- with $affinity }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "heterotrain.topologySpreadConstraints" -}}
{{- $labels := dict "matchLabels" (include "heterotrain.selectorLabels" . | fromYaml) }}
{{- $all := list }}
{{- range .Values.topologySpreadConstraints }}
{{- $all = append $all (merge (deepCopy .) (dict "labelSelector" $labels)) }}
{{- end }}
{{- with $all }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- /* Who may read workers' metrics: the operator and those of the values. */}}
{{- define "heterotrain.metricsPeers" -}}
{{- $where := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) }}
{{- $who := dict "matchLabels" (include "heterotrain.selectorLabels" . | fromYaml) }}
{{- toJson (prepend .Values.networkPolicy.metricsFrom (dict "namespaceSelector" $where "podSelector" $who)) }}
{{- end }}
