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

{{- define "hgo.takeover" -}}{{ include "hgo.name" . }}-takeover{{- end -}}

{{/* Annotations of an object that Helm creates after an installation or upgrade: (list weight deletion-policy).
Argo CD reads these annotations too. */}}
{{- define "hgo.hook" -}}
helm.sh/hook: post-install,post-upgrade
helm.sh/hook-weight: {{ index . 0 | quote }}
helm.sh/hook-delete-policy: {{ index . 1 }}
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

{{/* Result of a choice of auto, always or never: (list mode result-of-auto). */}}
{{- define "hgo.choice" -}}
{{- $mode := index . 0 -}}
{{- if or (eq $mode "always") (and (eq $mode "auto") (index . 1)) }}yes{{ end -}}
{{- end -}}

{{/* Whether Helm can read the cluster. With `helm template` and Argo CD, it cannot. */}}
{{- define "hgo.cluster" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}yes{{ end -}}
{{- end -}}

{{/* Whether this release may render an object: (list $ stored-object). Helm refuses an object that another tool has
created. */}}
{{- define "hgo.ours" -}}
{{- $at := index . 0 -}}
{{- $stored := index . 1 -}}
{{- $marks := ($stored.metadata).annotations | default dict -}}
{{- $release := index $marks "meta.helm.sh/release-name" | default "" -}}
{{- $space := index $marks "meta.helm.sh/release-namespace" | default "" -}}
{{- if or (not $stored) (and (eq $release $at.Release.Name) (eq $space $at.Release.Namespace)) }}yes{{ end -}}
{{- end -}}

{{/* Name of the agent of a network. The name ends with a hash of the network, so that two networks never have the same name. */}}
{{- define "hgo.agent" -}}
{{- $plain := printf "hgo-lease-agent-%s" (replace "/" "-" .) -}}
{{- printf "%s-%s" (trunc 45 $plain | trimSuffix "-" | trimSuffix ".") (sha256sum . | trunc 8) | replace "." "-" -}}
{{- end -}}

{{/* Deployment of an agent: (dict "at" $ "network" N), N of leaseAgent.networks. With an empty N: the template of the
agents that the operator makes. The operator adds what differs between networks. */}}
{{- define "hgo.leaseAgent" -}}
{{- $at := .at }}
{{- $network := .network.network | default "" }}
{{- $nad := splitn "/" 2 $network }}
{{- $interface := .network.interface | default "net1" }}
{{- $port := .network.metricsPort | default 8081 }}
{{- $selector := include "hgo.selector" (dict "component" "lease-agent") | fromYaml }}
{{- $attached := dict }}
{{- if $network }}
{{- $_ := set $selector "loadbalancer.harvesterhci.io/agent" (include "hgo.agent" $network) }}
{{- if not .network.hostNetwork }}
{{- $_ := set $attached "k8s.v1.cni.cncf.io/networks" (list (dict "namespace" $nad._0 "name" $nad._1 "interface" $interface) | toJson) }}
{{- end }}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- if $network }}
  name: {{ include "hgo.agent" $network }}
  namespace: {{ $at.Release.Namespace }}
  {{- include "hgo.meta" (dict "at" $at "component" "lease-agent") | nindent 2 }}
  {{- else }}
  labels:
    {{- toYaml (merge (dict) $selector $at.Values.commonLabels) | nindent 4 }}
  {{- with $at.Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
spec:
  # One agent leases addresses: the holder of the network's Lease. Another agent takes over when the
  # Lease ends.
  replicas: {{ $at.Values.leaseAgent.replicas }}
  selector:
    matchLabels:
      {{- toYaml $selector | nindent 6 }}
  # A rollout creates no additional pod, because with hostNetwork each pod needs its own node. The
  # rollout releases no address.
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 0
      maxUnavailable: 1
  template:
    metadata:
      labels:
        {{- toYaml (merge (dict) $selector $at.Values.podLabels $at.Values.commonLabels) | nindent 8 }}
      {{- with merge $attached $at.Values.podAnnotations $at.Values.commonAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: harvester-guest-operator-lease-agent
      {{- with $at.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      enableServiceLinks: false
      {{- with $at.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- if .network.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      # Before an agent ends, it removes its links, in at most 10 s, and releases its Lease.
      terminationGracePeriodSeconds: 20
      {{- with .network.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      # The agents of one network prefer different nodes.
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "hgo.selector" (dict "component" "lease-agent") | nindent 14 }}
          matchLabelKeys: [loadbalancer.harvesterhci.io/agent]
      # Kubernetes replaces the pod as soon as it finds the node unreachable. By default, it would
      # wait for 300 s more.
      tolerations:
        - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
        - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 0}
        {{- with $at.Values.leaseAgent.tolerations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      # The agent runs as root, because a capability has no effect for another user. The container
      # has only the two capabilities below.
      securityContext:
        runAsUser: 0
        runAsGroup: 0
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: lease-agent
          image: {{ include "hgo.image" $at }}
          imagePullPolicy: {{ $at.Values.image.pullPolicy }}
          command: [/lease-agent]
          {{- if $network }}
          args: [--network, {{ $network }}, --interface, {{ $interface }}{{ with .network.subnets }}, --subnets, {{ join "," . | quote }}{{ end }}{{ with .network.onLeaseLoss }}, --on-lease-loss, {{ lower . }}{{ end }}{{ if .network.broadcast }}, --broadcast{{ end }}]
          {{- end }}
          env:
            - name: HGO_LOG_FORMAT
              value: {{ $at.Values.log.format }}
            - name: HGO_LOG
              value: {{ $at.Values.log.filter | quote }}
            - name: HGO_HTTP_ADDR
              value: 0.0.0.0:{{ $port }}
            - name: HGO_ARP_PROBE
              value: {{ $at.Values.leaseAgent.arpProbe | quote }}
            - name: HGO_IDENTITY
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: HGO_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
          ports:
            - name: http
              containerPort: {{ $port }}
          livenessProbe:
            httpGet:
              path: /healthz
              port: http
            periodSeconds: 10
            timeoutSeconds: 3
            failureThreshold: 3
          readinessProbe:
            httpGet:
              path: /readyz
              port: http
            periodSeconds: 5
            timeoutSeconds: 2
          resources:
            {{- toYaml $at.Values.leaseAgent.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
              # NET_ADMIN: to create an interface for each address.
              # NET_RAW: to send and receive DHCP without an address.
              add: [NET_ADMIN, NET_RAW]
{{- end -}}

{{/* Name of the ConfigMap with additional certificate authorities. Empty: there is none. */}}
{{- define "hgo.trustedCAs" -}}
{{- with .Values.additionalTrustedCAs }}
{{- if and .configMap .pem }}
{{- fail "additionalTrustedCAs: configMap and pem are both set: set only one of them" }}
{{- end }}
{{- if .pem }}harvester-guest-operator-trusted-cas{{ else }}{{ .configMap }}{{ end }}
{{- end }}
{{- end }}

{{/* Namespaces in which credentials are replaced, as JSON: credentials.namespaces, and that of credentials.rancher. */}}
{{- define "hgo.credentialNamespaces" -}}
{{- $all := .Values.credentials.namespaces -}}
{{- with .Values.credentials.rancher -}}
{{- if .secretName -}}
{{- $rancher := . -}}
{{- $named := false -}}
{{- range $all -}}
{{- if eq .name $rancher.namespace -}}
{{- $named = true -}}
{{- if not (has $rancher.secretName (.secrets | default (list $rancher.secretName))) -}}
{{- fail (printf "credentials.rancher: credentials.namespaces has %s with secrets: %s must be one of them" .name $rancher.secretName) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $named -}}
{{- $all = append $all (dict "name" .namespace "secrets" (list .secretName)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}
