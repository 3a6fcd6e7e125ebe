{{- define "gpu-autopilot.name" -}}
{{- .Values.nameOverride | default "gpu-autopilot" }}
{{- end }}

{{/* The name of every object but those that the service or the docs know by name. */}}
{{- define "gpu-autopilot.fullname" -}}
{{- .Values.fullnameOverride | default (include "gpu-autopilot.name" .) }}
{{- end }}

{{- define "gpu-autopilot.labels" -}}
app.kubernetes.io/name: {{ include "gpu-autopilot.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "gpu-autopilot.selector" -}}
app.kubernetes.io/name: {{ include "gpu-autopilot.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "gpu-autopilot.watchdog" -}}
app.kubernetes.io/name: {{ include "gpu-autopilot.name" . }}-watchdog
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "gpu-autopilot.account" -}}
{{- .Values.serviceAccount.name | default "gpu-autopilot" }}
{{- end }}

{{- define "gpu-autopilot.image" -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}{{ end }}
{{- end }}

{{/* What the pods of the controller and of the watchdog have in common. */}}
{{- define "gpu-autopilot.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The kinds of instructions that are on, as a list. */}}
{{- define "gpu-autopilot.acts" -}}
{{- $on := list }}
{{- range $kind, $is := .Values.act }}{{ if $is }}{{ $on = append $on $kind }}{{ end }}{{ end }}
{{- $on | sortAlpha | toJson }}
{{- end }}

{{/* The settings of the service. */}}
{{- define "gpu-autopilot.settings" -}}
{{- $kubernetes := dict "in_cluster" true "namespace" .Release.Namespace "policy_object" .Values.policy.name "kill_map" "gpu-autopilot-kill-switch" "recommendations" (int .Values.recommendations) "lease" (dict "name" "gpu-autopilot") }}
{{- with include "gpu-autopilot.acts" . | fromJsonArray }}{{ $_ := set $kubernetes "act" true }}{{ $_ := set $kubernetes "act_kinds" . }}{{ end }}
{{- $settings := dict "state" "/var/lib/gpu-autopilot" "kubernetes" $kubernetes }}
{{- $_ := set $settings "http" (dict "listen" "0.0.0.0:9470") }}
{{- $_ := set $settings "metrics" (dict "listen" "0.0.0.0:9471" "open" true) }}
{{- $_ := set $settings "log" (dict "format" "json") }}
{{- if .Values.prometheus.url }}{{ $_ := set $settings "collectors" (dict "prometheus" (dict "url" .Values.prometheus.url)) }}{{ end }}
{{- if .Values.prices }}{{ $_ := set $settings "metering" (dict "prices" "/etc/gpu-autopilot/prices.yaml") }}{{ end }}
{{- mustMergeOverwrite $settings (deepCopy .Values.settings) | toYaml }}
{{- end }}

{{/* The ports of the API and of the metrics, as the settings say. Metrics have none where `metrics.listen` is null. */}}
{{- define "gpu-autopilot.api" -}}
{{- regexFind "[0-9]+$" (include "gpu-autopilot.settings" . | fromYaml).http.listen }}
{{- end }}
{{- define "gpu-autopilot.metrics" -}}
{{- regexFind "[0-9]+$" ((include "gpu-autopilot.settings" . | fromYaml).metrics.listen | default "") }}
{{- end }}

{{/* The port of KEDA's external scaler (settings.scale.keda.listen); empty where it is off. */}}
{{- define "gpu-autopilot.keda" -}}
{{- regexFind "[0-9]+$" (dig "scale" "keda" "listen" "" .Values.settings) }}
{{- end }}

{{/* Rules of a NetworkPolicy for DNS and the API server, from networkPolicy.egress. */}}
{{- define "gpu-autopilot.egress" -}}
- ports:  # DNS
  - {port: 53, protocol: UDP}
  - {port: 53, protocol: TCP}
- ports:
  {{- range .apiServerPorts }}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
  {{- with .apiServer }}
  to: {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
