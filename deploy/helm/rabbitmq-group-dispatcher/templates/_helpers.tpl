{{- define "dispatcher.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{ $name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "dispatcher.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dispatcher.labels" -}}
{{ include "dispatcher.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "dispatcher.secret" -}}
{{ .Values.existingSecret | default (include "dispatcher.name" .) }}
{{- end }}

{{- /* The port of the configuration. Probes come from outside of the pod, so it must not listen on loopback. */ -}}
{{- define "dispatcher.port" -}}
{{- $config := fromYaml .Values.config -}}
{{- if hasKey $config "Error" }}{{ fail (printf "config is no YAML: %s" $config.Error) }}{{ end -}}
{{- $listen := dig "http" "listen" "" $config -}}
{{- if not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):[0-9]+$" $listen) -}}
{{- fail "config: set http.listen to 0.0.0.0 and a port, or the probes can't reach it" -}}
{{- end -}}
{{ regexFind "[0-9]+$" $listen }}
{{- end }}

{{- /* Not empty: the port speaks TLS. */ -}}
{{- define "dispatcher.https" -}}
{{ if dig "http" "cert_file" "" (fromYaml .Values.config) }}true{{ end }}
{{- end }}
