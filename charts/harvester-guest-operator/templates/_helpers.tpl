{{- define "hgo.name" -}}harvester-guest-operator{{- end -}}

{{/* Labels of an object: (dict "at" $ "component" "controller"). */}}
{{- define "hgo.labels" -}}
app.kubernetes.io/name: {{ include "hgo.name" . }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/instance: {{ .at.Release.Name }}
app.kubernetes.io/version: {{ .at.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .at.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .at.Chart.Name .at.Chart.Version | replace "+" "_" }}
{{- with .at.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels by which the pods of a process are found. */}}
{{- define "hgo.selector" -}}
app.kubernetes.io/name: {{ include "hgo.name" . }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels and annotations of an object: (dict "at" $ "component" C "annotations" A). */}}
{{- define "hgo.meta" -}}
labels:
  {{- include "hgo.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .at.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "hgo.account" -}}
{{- if .Values.serviceAccount.name -}}
{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create -}}
{{ include "hgo.name" . }}
{{- else -}}
{{ fail "serviceAccount.create is false: serviceAccount.name must name the account to use" }}
{{- end -}}
{{- end -}}

{{- define "hgo.image" -}}
{{- $global := (.Values.global).cattle | default dict -}}
{{- with $global.systemDefaultRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* Whether a choice of auto, always or never comes out as yes: (list mode auto-is-yes). */}}
{{- define "hgo.choice" -}}
{{- $mode := index . 0 -}}
{{- if or (eq $mode "always") (and (eq $mode "auto") (index . 1)) }}yes{{ end -}}
{{- end -}}

{{/* Whether an object is this release's to render, given what is stored of it: (list $ stored). Helm
refuses an object that something else has made. */}}
{{- define "hgo.ours" -}}
{{- $at := index . 0 -}}
{{- $stored := index . 1 -}}
{{- $marks := ($stored.metadata).annotations | default dict -}}
{{- $release := index $marks "meta.helm.sh/release-name" | default "" -}}
{{- $space := index $marks "meta.helm.sh/release-namespace" | default "" -}}
{{- if or (not $stored) (and (eq $release $at.Release.Name) (eq $space $at.Release.Namespace)) }}yes{{ end -}}
{{- end -}}

{{/* The name of a network's agent. Two networks never share one: what is not itself a short name gets a hash. */}}
{{- define "hgo.agent" -}}
{{- $plain := printf "hgo-lease-agent-%s" (replace "/" "-" .) -}}
{{- printf "%s-%s" (trunc 45 $plain | trimSuffix "-" | trimSuffix ".") (sha256sum . | trunc 8) | replace "." "-" -}}
{{- end -}}
