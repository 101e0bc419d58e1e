{{- define "eigensweep.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "eigensweep.labels" -}}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "eigensweep.selector" . }}
{{- end }}

{{/* What finds pods. KubeRay writes app.kubernetes.io/name itself, so that one is not part of it. */}}
{{- define "eigensweep.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "eigensweep.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "eigensweep.secret" -}}
{{ .Values.secrets.existing | default (include "eigensweep.name" .) }}
{{- end }}

{{- define "eigensweep.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "eigensweep.name" .) "default") }}
{{- end }}

{{/* KubeRay's name of the head's address. */}}
{{- define "eigensweep.head" -}}
{{ include "eigensweep.name" . }}-head-svc:6379
{{- end }}

{{- define "eigensweep.fromSecret" -}}
valueFrom:
  secretKeyRef:
    name: {{ include "eigensweep.secret" .root }}
    key: {{ .key }}
{{- end }}

{{/* What every pod of ours has; none may become root, or reach the Kubernetes API. */}}
{{- define "eigensweep.pod" -}}
serviceAccountName: {{ include "eigensweep.serviceAccount" . }}
automountServiceAccountToken: false
{{ include "eigensweep.podOfRay" . }}
{{- end }}

{{/* The same for Ray's head, whose autoscaler asks the Kubernetes API as KubeRay's own account. */}}
{{- define "eigensweep.podOfRay" -}}
# Kubernetes would set EIGENSWEEP_PORT and others, for the addresses of Services of such names.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "eigensweep.locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* An empty volume is open to everybody, and Eigensweep compiles and loads from private folders only. So
     a first container makes two folders in it, with the rights that they have on any machine. */}}
{{- define "eigensweep.makeFolders" -}}
- name: make-folders
  image: {{ .image }}
  imagePullPolicy: {{ .root.Values.images.pullPolicy }}
  command: [bash, -c, "mkdir -p -m 0700 /scratch/home && mkdir -p -m 1777 /scratch/tmp"]
  securityContext:
    {{- include "eigensweep.locked" . | nindent 4 }}
  resources:
    requests: {cpu: 50m, memory: 64Mi}
    limits: {cpu: 500m, memory: 128Mi}
  volumeMounts:
    - {name: scratch, mountPath: /scratch}
{{- end }}

{{- define "eigensweep.scratchMounts" -}}
- {name: scratch, mountPath: /tmp, subPath: tmp}
- {name: scratch, mountPath: /home/eigensweep, subPath: home}
{{- end }}

{{- define "eigensweep.scratchVolume" -}}
- name: scratch
  emptyDir: {}
{{- end }}

{{- define "eigensweep.rayMounts" -}}
{{ include "eigensweep.scratchMounts" . }}
- {name: shared-memory, mountPath: /dev/shm}
{{- if not .Values.storage.url }}
- {name: storage, mountPath: /srv/storage}
{{- end }}
- {name: data, mountPath: /srv/data, readOnly: true}
{{- end }}

{{- define "eigensweep.rayVolumes" -}}
{{ include "eigensweep.scratchVolume" . }}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: 2Gi}
{{- if .Values.storage.url }}
# Nodes take corpora from the object store.
- name: data
  emptyDir: {}
{{- else }}
{{ include "eigensweep.volume" (dict "root" . "name" "storage") }}
{{ include "eigensweep.volume" (dict "root" . "name" "data") }}
{{- end }}
{{- end }}

{{/* The address of the object store, and its keys: for each pod that reads or writes there. */}}
{{- define "eigensweep.storeEndpoint" -}}
{{- with .Values.storage.endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* Where the service keeps what it keeps, for itself and for its backups. */}}
{{- define "eigensweep.places" -}}
{{- $name := include "eigensweep.name" . -}}
# A folder in the volume, as the volume's own belongs to root.
- {name: EIGENSWEEP_HOME, value: /srv/home/eigensweep}
- name: EIGENSWEEP_MLFLOW_URI
  value: {{ .Values.mlflow.builtIn | ternary (printf "http://%s-mlflow:5000" $name) .Values.mlflow.uri }}
{{- if .Values.postgresql.builtIn }}
- name: POSTGRES_PASSWORD
  {{- include "eigensweep.fromSecret" (dict "root" . "key" "postgres-password") | nindent 2 }}
- name: EIGENSWEEP_DATABASE_URL
  value: postgresql+psycopg://eigensweep:$(POSTGRES_PASSWORD)@{{ $name }}-postgresql:5432/eigensweep
{{- else }}
- name: EIGENSWEEP_DATABASE_URL
  {{- include "eigensweep.fromSecret" (dict "root" . "key" "database-url") | nindent 2 }}
{{- end }}
- {name: EIGENSWEEP_STORAGE, value: {{ .Values.storage.url | default "/srv/storage/eigensweep" }}}
{{- include "eigensweep.storeEndpoint" . }}
{{- end }}

{{- define "eigensweep.storeKeys" -}}
{{- with .Values.storage.secret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "eigensweep.volume" -}}
- name: {{ .name }}
  persistentVolumeClaim:
    claimName: {{ include "eigensweep.claim" . }}
{{- end }}

{{- define "eigensweep.claim" -}}
{{- $claim := index .root.Values.persistence .name -}}
{{ $claim.existingClaim | default (printf "%s-%s" (include "eigensweep.name" .root) .name) }}
{{- end }}

{{- define "eigensweep.rayEnvironment" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  {{- include "eigensweep.fromSecret" (dict "root" . "key" "ray-auth-token") | nindent 2 }}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
{{- end }}

{{/* Fixed, so that a firewall can name them; those of docs/how-to/cluster.md. */}}
{{- define "eigensweep.rayPorts" -}}
node-manager-port: "6380"
object-manager-port: "6381"
runtime-env-agent-port: "6382"
dashboard-agent-grpc-port: "6383"
dashboard-agent-listen-port: "6384"
metrics-export-port: "6385"
min-worker-port: "10002"
max-worker-port: "10999"
{{- end }}

{{/* KubeRay's own probes ask Ray's dashboard, which the images do not have. */}}
{{- define "eigensweep.nodeProbes" -}}
{{- $command := printf "[python, -m, eigensweep.workers.cluster.node_health, --address=%s, --port=6380]" .address -}}
startupProbe:
  exec: {command: {{ $command }}}
  periodSeconds: 10
  timeoutSeconds: 20
  failureThreshold: 30
# A node is not ended because the head is away; it ends itself when that lasts.
livenessProbe:
  tcpSocket: {port: 6380}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  exec: {command: {{ $command }}}
  periodSeconds: 30
  timeoutSeconds: 20
  failureThreshold: 3
{{- end }}

{{/* What a container is given: as much as it asks for, so that no node promises more than it has. */}}
{{- define "eigensweep.resources" -}}
{{- $given := dict "cpu" (.cpus | toString) "memory" (printf "%dGi" (int .memoryGiB)) }}
{{- if .gpus }}{{ $_ := set $given .gpuResource (.gpus | toString) }}{{ end -}}
requests: {{ toJson $given }}
limits: {{ toJson $given }}
{{- end }}

{{/* Ray is told of what the container was given; one GiB of it is for Ray itself. */}}
{{- define "eigensweep.rayMemory" -}}
memory: {{ mul (sub (int .memoryGiB) 1) 1073741824 | quote }}
object-store-memory: "268435456"
{{- end }}

{{/* What a section of the values says of its pods: where they run, and what they have besides. */}}
{{- define "eigensweep.placement" -}}
{{- range $key, $value := pick . "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with $value }}
{{ toYaml (dict $key .) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "eigensweep.annotations" -}}
{{- with .podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "eigensweep.extra" -}}
{{- with . }}
{{- toYaml . }}
{{- end }}
{{- end }}
