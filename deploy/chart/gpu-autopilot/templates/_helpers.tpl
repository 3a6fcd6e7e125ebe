{{- define "gpu-autopilot.labels" -}}
app.kubernetes.io/name: gpu-autopilot
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "gpu-autopilot.selector" -}}
app.kubernetes.io/name: gpu-autopilot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The kinds of instructions that are on, as a list. */}}
{{- define "gpu-autopilot.acts" -}}
{{- $on := list }}
{{- range $kind, $is := .Values.act }}{{ if $is }}{{ $on = append $on $kind }}{{ end }}{{ end }}
{{- $on | sortAlpha | toJson }}
{{- end }}

{{/* The settings of the service. */}}
{{- define "gpu-autopilot.settings" -}}
{{- $kubernetes := dict "in_cluster" true "namespace" .Release.Namespace "policy_object" .Values.policy.name "kill_map" "gpu-autopilot-kill-switch" "recommendations" (int .Values.recommendations) }}
{{- with include "gpu-autopilot.acts" . | fromJsonArray }}{{ $_ := set $kubernetes "act" true }}{{ $_ := set $kubernetes "act_kinds" . }}{{ end }}
{{- if gt (int .Values.replicas) 1 }}{{ $_ := set $kubernetes "lease" (dict "name" "gpu-autopilot") }}{{ end }}
{{- $settings := dict "state" "/var/lib/gpu-autopilot" "kubernetes" $kubernetes }}
{{- $_ := set $settings "http" (dict "listen" "0.0.0.0:9470") }}
{{- $_ := set $settings "metrics" (dict "listen" "0.0.0.0:9471" "open" true) }}
{{- $_ := set $settings "log" (dict "format" "json") }}
{{- if .Values.prometheus.url }}{{ $_ := set $settings "collectors" (dict "prometheus" (dict "url" .Values.prometheus.url)) }}{{ end }}
{{- mustMergeOverwrite $settings (deepCopy .Values.settings) | toYaml }}
{{- end }}
