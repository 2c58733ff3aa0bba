{{- /* The name of all objects: those behind a brain have another one, as have their nodes' labels. */ -}}
{{- define "name" -}}
{{ if .Values.brain.enabled }}kube-proxy-lib-node{{ else }}kube-proxy-lib{{ end }}
{{- end }}

{{- /* The environment: the API server's address, unless there is a brain, and the node's name. */ -}}
{{- define "env" -}}
{{- if not .Values.brain.enabled }}
# The API server's own address: the Service "kubernetes" does not work before this program does.
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.apiServer.host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.apiServer.port | int | quote }}
{{- end }}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{- define "probes" -}}
readinessProbe:
  httpGet:
    path: /healthz
    port: 10256
livenessProbe:
  httpGet:
    path: /livez
    port: 10256
{{- end }}
