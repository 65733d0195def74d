{{/* Labels of the objects. Those of pods do not name the chart: a new chart version alone restarts no agent. */}}
{{- define "lateen.labels" -}}
component: velero
app.kubernetes.io/part-of: lateen
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* The objects of a file for the namespace of the release, as a YAML list. The file is one of kustomize's, for namespace velero. */}}
{{- define "lateen.objects" -}}
{{- $root := index . 0 -}}
{{- $namespace := $root.Release.Namespace -}}
{{- $text := $root.Files.Get (index . 1)
  | replace "lateen-velero" (printf "lateen-%s" $namespace)
  | replace "namespace: velero" (printf "namespace: %q" $namespace)
  | replace "namespaces: [velero]" (printf "namespaces: [%q]" $namespace)
  | replace "request.namespace == 'velero'" (printf "request.namespace == '%s'" $namespace)
  | replace ":velero:lateen" (printf ":%s:lateen" $namespace) -}}
{{- $objects := list -}}
{{- range $document := splitList "\n---\n" $text -}}
{{- $object := fromYaml $document -}}
{{- $_ := set $object.metadata "labels" (include "lateen.labels" $root | fromYaml) -}}
{{- $objects = append $objects $object -}}
{{- end -}}
{{- toYaml $objects -}}
{{- end }}

{{/* The same as documents. */}}
{{- define "lateen.documents" -}}
{{- range $object := include "lateen.objects" . | fromYamlArray }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}

{{- define "lateen.image" -}}
{{- $repository := required "image.repository: set the image of Lateen, such as registry.example/lateen" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "lateen.args" -}}
- node-agent
- --mover-template=deployment/{{ .Values.veleroDeployment }}
{{- with .Values.configuration.nodeAgentConfigMap }}
- --node-agent-configmap={{ . }}
{{- end }}
{{- with .Values.configuration.backupRepositoryConfigMap }}
- --backup-repository-configmap={{ . }}
{{- end }}
{{- with .Values.configuration.repoMaintenanceJobConfigMap }}
- --repo-maintenance-job-configmap={{ . }}
{{- end }}
{{- with .Values.configuration.repoMaintenanceFrequency }}
- --repo-maintenance-frequency={{ . }}
{{- end }}
{{- with .Values.configuration.repoMaintenanceWindow }}
- --repo-maintenance-window={{ . }}
{{- end }}
{{- with .Values.configuration.finishedTTL }}
- --finished-ttl={{ . }}
{{- end }}
{{- if not .Values.nodeAgent.disableHostPath }}
- --host-path
{{- end }}
{{- if .Values.moverServiceAccount.create }}
- --mover-service-account=lateen-mover
{{- end }}
{{- with .Values.configuration.features }}
- --features={{ . }}
{{- end }}
{{- with .Values.configuration.dataMoverPrepareTimeout }}
- --data-mover-prepare-timeout={{ . }}
{{- end }}
{{- with .Values.configuration.logLevel }}
- --log-level={{ . }}
{{- end }}
{{- with .Values.configuration.logFormat }}
- --log-format={{ . }}
{{- end }}
{{- with .Values.nodeAgent.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Values of Velero's chart that have no meaning here, each with its remedy. The schema refuses unknown ones. */}}
{{- define "lateen.refuse" -}}
{{- $agent := .Values.nodeAgent -}}
{{- $refused := dict
  "pluginVolumePath" "agents open no devices of the host; remove it"
  "useScratchEmptyDir" "agents write no files; remove it"
  "securityContext" "set nodeAgent.containerSecurityContext"
-}}
{{- range $name, $remedy := $refused -}}
{{- if hasKey $agent $name -}}
{{- fail (printf "nodeAgent.%s is a value of Velero's chart that Lateen does not have: %s" $name $remedy) -}}
{{- end -}}
{{- end -}}
{{- range $agent.extraArgs -}}
{{- if and (hasPrefix "--metrics-address" .) (not (hasSuffix ":8085" .)) -}}
{{- fail (printf "nodeAgent.extraArgs: %s: probes, NetworkPolicy and monitors use port 8085; remove it" .) -}}
{{- end -}}
{{- end -}}
{{- $security := $agent.podSecurityContext | default dict -}}
{{- if and $agent.disableHostPath $security.runAsNonRoot (hasKey $security "runAsUser") (eq (toString $security.runAsUser) "0") -}}
{{- fail "nodeAgent.podSecurityContext: runAsUser is 0 and runAsNonRoot is true, so no agent would start: remove runAsUser, agents need no root" -}}
{{- end -}}
{{- end }}

{{- define "lateen.policyImage" -}}
{{ required "podPolicyAllows.image: set the image of Velero's server, such as velero/velero" .Values.podPolicyAllows.image }}
{{- end }}

{{- define "lateen.policyAccount" -}}
{{- if .Values.moverServiceAccount.create -}}
lateen-mover
{{- else -}}
{{ required "podPolicyAllows.serviceAccount: set the ServiceAccount of Velero's server, or moverServiceAccount.create: true" .Values.podPolicyAllows.serviceAccount }}
{{- end -}}
{{- end }}
