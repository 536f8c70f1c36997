{{- define "nvshare.labels" -}}
app.kubernetes.io/name: nvshare
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "nvshare.selector" -}}
app.kubernetes.io/name: nvshare
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nvshare.serviceAccount" -}}
{{- .Values.serviceAccount.name | default "nvshare" -}}
{{- end }}

{{- define "nvshare.image" -}}
{{- if .Values.image.digest -}}
{{- .Values.image.repository -}}@{{- .Values.image.digest -}}
{{- else -}}
{{- .Values.image.repository -}}:{{- .Values.image.tag | default .Chart.AppVersion -}}
{{- end -}}
{{- end }}

{{- define "nvshare.asksApiServer" -}}
{{- if eq .Values.mode "dra" -}}yes{{- else -}}{{- if .Values.plugin.watchPods -}}yes{{- end -}}{{- end -}}
{{- end }}
