{{- /*
What the operator may do with jobs and their parts: in every namespace by a ClusterRole, or in each that is named by a
Role. docs/rbac.md gives the reason of every verb; a test compares the two.
*/}}
{{- define "heterotrain.jobRules" -}}
- apiGroups: [heterotrain.dev]
  resources: [heterotrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [heterotrain.dev]
  resources: [heterotrainingjobs/status]
  verbs: [patch]
- apiGroups: [heterotrain.dev]
  resources: [heterotrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# Of each job, for its workers alone. It can create them, and read none.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- if and .Values.networkPolicy.enabled .Values.networkPolicy.workers }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch]
{{- end }}
{{- with .Values.rbac.prometheusSecrets }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- end }}

{{- define "heterotrain.nodeRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get]
{{- end }}
