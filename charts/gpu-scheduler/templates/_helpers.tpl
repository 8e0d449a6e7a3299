{{- define "gpu-scheduler.name" -}}
{{- if eq .Release.Name "gpu-scheduler" -}}gpu-scheduler{{- else -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}-gpu-scheduler{{- end -}}
{{- end -}}

{{- define "gpu-scheduler.labels" -}}
app.kubernetes.io/name: gpu-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "gpu-scheduler.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The user name of a service account of this release, by its component. */ -}}
{{- define "gpu-scheduler.user" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ include "gpu-scheduler.name" .root }}-{{ .component }}
{{- end -}}

{{- /* Whether GPUs are given by Dynamic Resource Allocation: yes or no. */ -}}
{{- define "gpu-scheduler.dra" -}}
{{- /* `helm template` believes that every cluster serves every API. */ -}}
{{- $has := and (.Capabilities.APIVersions.Has "resource.k8s.io/v1") (semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $wanted := ternary $has .Values.agent.dra (eq (toString .Values.agent.dra) "auto") -}}
{{- ternary "yes" "no" (and .Values.agent.enabled $wanted) -}}
{{- end -}}

{{- /* Pods that comply with the Pod Security level restricted. */ -}}
{{- define "gpu-scheduler.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- define "gpu-scheduler.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Replicas on different nodes where possible. */ -}}
{{- define "gpu-scheduler.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      app.kubernetes.io/name: gpu-scheduler
      app.kubernetes.io/instance: {{ .root.Release.Name }}
      app.kubernetes.io/component: {{ .component }}
{{- end -}}
