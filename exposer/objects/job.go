package objects

import (
	"cmp"
	"crypto/sha256"
	"crypto/sha3"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// Names in the pods of Velero's own jobs (velero-protocol 4.4).
const (
	maintenancePod       = "velero-repo-maintenance-pod"
	maintenanceContainer = "velero-repo-maintenance-container"
)

// Maintenance is the input of a maintenance job.
type Maintenance struct {
	Name, Namespace string // of the BackupRepository
	UID             types.UID
	VolumeNamespace string // namespace of the volumes in the repository
	Location        string // BackupStorageLocation
	Type            string // kopia
	Due             time.Time
	Failures        int           // consecutive, before this job
	Factor          float64       // of the memory limit, from 1
	Timeout         time.Duration // deadline of the job, enforced by Kubernetes
}

// JobTemplate is the part of Velero's Deployment that a maintenance job copies. That Deployment maintains
// repositories where Lateen does not.
type JobTemplate struct {
	Template
	PodSecurity       *corev1.PodSecurityContext
	ContainerSecurity *corev1.SecurityContext
}

// JobSettings are the configuration of maintenance jobs.
type JobSettings struct {
	PriorityClass string // in force, not merely configured; empty for none
	Resources     corev1.ResourceRequirements
	Labels        map[string]string      // of the pod; nil: those of the template
	Annotations   map[string]string      // of the pod; nil: those of the template
	LoadAffinity  []metav1.LabelSelector // alternatives; none: any node
	Tolerations   []corev1.Toleration    // beyond those of the template (Velero #10553, not merged on 2026-09-21)
	Keep          int                    // number of kept finished jobs of a repository
	Cache         *JobCache              // nil: the cache is in the pod's file system
}

// JobCache configures a volume for the cache of a repository, which all its maintenance jobs use.
type JobCache struct {
	StorageClass string
	Size         resource.Quantity
}

// JobCacheClaim returns the claim of a repository's cache volume; nil if none is configured. Kubernetes deletes it with the
// repository.
func JobCacheClaim(what Maintenance, settings JobSettings) *corev1.PersistentVolumeClaim {
	if settings.Cache == nil {
		return nil
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: what.Name + cacheSuffix, Namespace: what.Namespace,
			Labels: map[string]string{api.LabelRepository: RepositoryLabel(what.Name), api.LabelExclude: "true"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "BackupRepository", Name: what.Name, UID: what.UID,
			}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: new(settings.Cache.StorageClass),
			VolumeMode:       volumeMode(false),
			Resources:        sized(settings.Cache.Size),
		},
	}
}

// Job builds the job that maintains a repository once.
func Job(what Maintenance, template JobTemplate, settings JobSettings) *batchv1.Job {
	name := map[string]string{api.LabelRepository: RepositoryLabel(what.Name)}
	labels, annotations := settings.Labels, settings.Annotations
	if labels == nil {
		labels = template.Labels
	}
	if annotations == nil {
		annotations = template.Annotations
	}
	pod := jobPod(what, template, settings)
	if settings.Cache != nil {
		mountCache(&pod, what.Name+cacheSuffix)
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name:      jobName(what.Name, what.Due),
			Namespace: what.Namespace,
			Labels:    Merged(name),
			Annotations: map[string]string{
				api.AnnotationRepositoryUID: string(what.UID),
				api.AnnotationKeep:          strconv.Itoa(settings.Keep),
				api.AnnotationFactor:        formatFactor(what.Factor),
				api.AnnotationFailures:      strconv.Itoa(what.Failures),
			},
		},
		Spec: batchv1.JobSpec{
			BackoffLimit:          ptr.To[int32](0),
			ActiveDeadlineSeconds: new(int64(what.Timeout.Seconds())),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Name: maintenancePod, Labels: Merged(labels, name), Annotations: Merged(noEvictAnnotations(), annotations),
				},
				Spec: pod,
			},
		},
	}
}

func jobPod(what Maintenance, template JobTemplate, settings JobSettings) corev1.PodSpec {
	var wanted []corev1.NodeSelectorTerm
	for _, nodes := range settings.LoadAffinity {
		wanted = append(wanted, termOf(nodes))
	}
	system := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{onSystem(corev1.Linux)}}}
	windows := corev1.Toleration{Key: "os", Operator: corev1.TolerationOpEqual, Value: string(corev1.Windows), Effect: corev1.TaintEffectNoSchedule}
	return corev1.PodSpec{
		Containers: []corev1.Container{{
			Name:            maintenanceContainer,
			Image:           template.Image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Command:         []string{"/velero"},
			Args: append([]string{
				"repo-maintenance", "--repo-name=" + what.VolumeNamespace, "--repo-type=" + what.Type,
				"--backup-storage-location=" + what.Location,
			}, template.LogArgs...),
			Env:             slices.Clone(template.Env),
			EnvFrom:         slices.Clone(template.EnvFrom),
			VolumeMounts:    slices.Clone(template.VolumeMounts),
			Resources:       enlarged(settings.Resources, what.Factor),
			SecurityContext: template.ContainerSecurity.DeepCopy(),
			// Velero's program reports errors in its log only.
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		}},
		Volumes:            slices.Clone(template.Volumes),
		RestartPolicy:      corev1.RestartPolicyNever,
		PriorityClassName:  settings.PriorityClass,
		ServiceAccountName: template.ServiceAccount,
		ImagePullSecrets:   slices.Clone(template.ImagePullSecrets),
		SecurityContext:    template.PodSecurity.DeepCopy(),
		Affinity:           required(intersect(wanted, system)),
		Tolerations:        tolerations(VolumeInfo{OS: corev1.Linux}, settings.Tolerations, []corev1.Toleration{windows}, template.Tolerations),
	}
}

// mountCache gives kopia a volume for its cache, in os.UserCacheDir. The group of the pod may write to it.
func mountCache(pod *corev1.PodSpec, claim string) {
	const group = 65532 // any but root's
	container := &pod.Containers[0]
	container.Env = append(container.Env, corev1.EnvVar{Name: "XDG_CACHE_HOME", Value: cachePath})
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: cacheVolume, MountPath: cachePath})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: cacheVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
	pod.SecurityContext = cmp.Or(pod.SecurityContext, &corev1.PodSecurityContext{})
	pod.SecurityContext.FSGroup = cmp.Or(pod.SecurityContext.FSGroup, new(int64(group)))
}

func formatFactor(factor float64) string { return strconv.FormatFloat(factor, 'f', -1, 64) }

// enlarged returns the resources with the memory limit multiplied by factor, if a limit is set.
func enlarged(resources corev1.ResourceRequirements, factor float64) corev1.ResourceRequirements {
	more := *resources.DeepCopy()
	if limit, ok := more.Limits[corev1.ResourceMemory]; ok && factor > 1 {
		more.Limits[corev1.ResourceMemory] = *resource.NewQuantity(int64(float64(limit.Value())*factor), limit.Format)
	}
	return more
}

// jobName returns the name of a job: the repository and the second in which the job is due. Two coordinators thus
// create one job. The name fits into a label, because Kubernetes creates one from it.
func jobName(repository string, due time.Time) string {
	suffix := "-" + strconv.FormatInt(due.Unix(), 10)
	if room := validation.LabelValueMaxLength - len(suffix); len(repository) > room {
		sum := sha256.Sum256([]byte(repository))
		repository = strings.TrimRight(repository[:room-9], ".-") + "-" + hex.EncodeToString(sum[:4])
	}
	return repository + suffix
}

// RepositoryLabel returns the value of LabelRepository for a repository: its name, or the hex SHA3-224 of a name
// that is too long (Velero's pkg/label ReturnNameOrHash).
func RepositoryLabel(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha3.Sum224([]byte(name))
	return hex.EncodeToString(sum[:])
}

// JobOutcome is the result of a maintenance job, or that it is unfinished.
type JobOutcome int

// The outcomes.
const (
	JobUnfinished JobOutcome = iota
	JobSucceeded
	JobFailed
)

// Verdict is the recorded result of a job, as a code.
type Verdict string

// The verdicts.
const (
	VerdictSucceeded    Verdict = "succeeded"
	VerdictFailed       Verdict = "failed"
	VerdictOutOfMemory  Verdict = "out_of_memory" // the kubelet killed its pod for its memory use
	VerdictClassMissing Verdict = "class_missing" // it got no pod, because its PriorityClass did not exist
)

// Failed reports whether the job failed for any reason.
func (v Verdict) Failed() bool { return v != "" && v != VerdictSucceeded }

// JobRecord is the record in the annotations of a job, written when the run enters the history of its repository.
type JobRecord struct {
	Verdict  Verdict // empty: not recorded yet
	Failures int     // consecutive, of the repository, before this job
	Factor   float64 // of the memory limit; on a job of Velero's server it is for the next job of Lateen
}

// Annotations returns the annotations of a recorded job.
func (j JobRecord) Annotations() map[string]string {
	return map[string]string{
		api.AnnotationVerdict: string(j.Verdict), api.AnnotationFailures: strconv.Itoa(j.Failures), api.AnnotationFactor: formatFactor(j.Factor),
	}
}

// JobStatus is the state of a maintenance job, read from its object alone.
type JobStatus struct {
	JobRecord

	Name        string
	UID         types.UID
	Version     string // resourceVersion
	Created     time.Time
	Due         time.Time // of a job of Lateen: when it was due, in whole seconds
	Finished    time.Time // zero while it is unfinished
	Terminating time.Time // since when it has condition FailureTarget: it fails as soon as its pod terminates; else zero
	Outcome     JobOutcome
	HasPod      bool // it has or had a pod
	Pending     bool // it has a pod without a ready container
	Limited     bool // it has a deadline; Velero's server sets none
	Retries     int  // number of failed pods that Kubernetes replaces (backoffLimit)
	// Counted means status.succeeded+status.failed > 0. Velero's server reads no other field (velero-protocol 4.3).
	Counted   bool
	Released  time.Time // when it was marked as failed; else zero
	Suspended bool      // spec.suspend, such as by a job queue
	Deleting  bool
	Ours      bool   // Lateen created it; else Velero's server did
	Class     string // priority class of its pod
	Keep      *int   // number of kept finished jobs in its annotation; nil if it has none
	Reason    string // reason and message of its failure condition; empty without one

	// Since is when the reader first observed the job in its Stage, in the reader's clock. That clock may differ
	// from the API server's. ReadJob does not set it.
	Since time.Time
}

// JobStage is the progress of a job.
type JobStage int

// The stages.
const (
	StageNoPod       JobStage = iota // Kubernetes has created no pod
	StagePending                     // its pod does not run yet
	StageRunning                     // its pod runs or has just terminated
	StageRetained                    // it is suspended or deleting
	StageReleased                    // it was marked as failed, but Kubernetes has not set its failed condition yet
	StageTerminating                 // it has condition FailureTarget, but its pod has not terminated
	StageAbandoned                   // as StageTerminating, and it was marked as failed
	StageUncounted                   // it is finished, but Velero's server cannot observe that
	StageFinished                    // it is finished
)

// Stage returns the stage of the job.
func (j JobStatus) Stage() JobStage {
	switch {
	case j.Outcome != JobUnfinished && j.Counted:
		return StageFinished
	case j.Outcome != JobUnfinished:
		return StageUncounted
	case j.Deleting || j.Suspended:
		return StageRetained
	case !j.Terminating.IsZero() && !j.Released.IsZero():
		return StageAbandoned
	case !j.Terminating.IsZero():
		return StageTerminating
	case !j.Released.IsZero():
		return StageReleased
	case !j.HasPod:
		return StageNoPod
	case j.Pending:
		return StagePending
	default:
		return StageRunning
	}
}

// defaultBackoffLimit is the default of the API server for spec.backoffLimit of a job.
const defaultBackoffLimit = 6

// ReadJob reads the state of a maintenance job, of Lateen or of Velero's server.
func ReadJob(job *batchv1.Job) JobStatus {
	status := job.Status
	observed := JobStatus{
		Name: job.Name, UID: job.UID, Version: job.ResourceVersion, Created: job.CreationTimestamp.Time,
		HasPod:    status.Active+status.Succeeded+status.Failed+ptr.Deref(status.Terminating, 0) > 0 || hasUncounted(status.UncountedTerminatedPods),
		Counted:   status.Succeeded+status.Failed > 0,
		Pending:   status.Active > 0 && status.Ready != nil && *status.Ready == 0,
		Limited:   job.Spec.ActiveDeadlineSeconds != nil,
		Retries:   int(ptr.Deref(job.Spec.BackoffLimit, defaultBackoffLimit)),
		Suspended: job.Spec.Suspend != nil && *job.Spec.Suspend,
		Deleting:  job.DeletionTimestamp != nil,
		Ours:      job.Annotations[api.AnnotationRepositoryUID] != "",
		Class:     job.Spec.Template.Spec.PriorityClassName,
		JobRecord: readRecord(job.Annotations),
	}
	if due, err := strconv.ParseInt(job.Name[strings.LastIndexByte(job.Name, '-')+1:], 10, 64); err == nil && observed.Ours {
		observed.Due = time.Unix(due, 0)
	}
	if keep, err := strconv.Atoi(job.Annotations[api.AnnotationKeep]); err == nil {
		observed.Keep = &keep
	}
	if released, err := time.Parse(time.RFC3339, job.Annotations[api.AnnotationReleased]); err == nil {
		observed.Released = released
	}
	for _, condition := range status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case batchv1.JobComplete:
			observed.Outcome, observed.Finished = JobSucceeded, condition.LastTransitionTime.Time
		case batchv1.JobFailed:
			observed.Outcome, observed.Finished = JobFailed, condition.LastTransitionTime.Time
			observed.Reason = strings.TrimSpace(condition.Reason + ": " + condition.Message)
		case batchv1.JobFailureTarget:
			observed.Terminating = condition.LastTransitionTime.Time
			observed.Reason = strings.TrimSpace(condition.Reason + ": " + condition.Message)
		case batchv1.JobSuspended, batchv1.JobSuccessCriteriaMet: // intermediate conditions
		}
	}
	if observed.Outcome != JobUnfinished {
		observed.Terminating = time.Time{}
	}
	if observed.Outcome == JobSucceeded && status.CompletionTime != nil {
		observed.Finished = status.CompletionTime.Time
	}
	return observed
}

func readRecord(annotations map[string]string) JobRecord {
	record := JobRecord{Verdict: Verdict(annotations[api.AnnotationVerdict]), Factor: 1}
	if factor, err := strconv.ParseFloat(annotations[api.AnnotationFactor], 64); err == nil && factor > 1 {
		record.Factor = factor
	}
	if failures, err := strconv.Atoi(annotations[api.AnnotationFailures]); err == nil && failures > 0 {
		record.Failures = failures
	}
	return record
}

func hasUncounted(pods *batchv1.UncountedTerminatedPods) bool {
	return pods != nil && len(pods.Succeeded)+len(pods.Failed) > 0
}

// JobPending returns what blocks the pods of a job; why may be empty. pending is false if a pod runs, has
// terminated, or does not exist.
func JobPending(pods []corev1.Pod) (why string, pending bool) {
	for i := range pods {
		if pods[i].Status.Phase != corev1.PodPending {
			return "", false
		}
		why = strings.TrimPrefix(ReadPod(&pods[i]).Message, "mover ")
	}
	return why, len(pods) > 0
}

// failureMark is the text that Velero's program prints before its final error (velero-protocol 4.3).
const failureMark = "Repo maintenance error: "

// lengthOfFailure bounds the text that a status copies from a log, in bytes.
const lengthOfFailure = 1024

// JobFailure returns why a maintenance job failed, from its pods, else from the condition of the job. A deadline is
// only in the condition: the pod does not know it.
func JobFailure(job JobStatus, pods []corev1.Pod) (Verdict, string) {
	if strings.HasPrefix(job.Reason, batchv1.JobReasonDeadlineExceeded) {
		return VerdictFailed, job.Reason + "; raise --repo-maintenance-timeout if maintenance needs longer"
	}
	if len(pods) == 0 {
		return VerdictFailed, "its pod and its message are deleted: " + cmp.Or(job.Reason, "its job failed")
	}
	for _, pod := range pods {
		if verdict, reported := podFailure(pod); reported != "" {
			return verdict, reported
		}
	}
	return VerdictFailed, cmp.Or(job.Reason, "its job failed without a reason")
}

func podFailure(pod corev1.Pod) (Verdict, string) {
	for _, status := range pod.Status.ContainerStatuses {
		ended := status.State.Terminated
		if ended == nil {
			continue
		}
		text := strings.TrimSpace(ended.Message)
		if _, after, found := strings.Cut(text, failureMark); found {
			text = strings.TrimSpace(after)
		}
		text = truncate.Start(text, lengthOfFailure)
		if ended.Reason == "OOMKilled" {
			return VerdictOutOfMemory, outOfMemory(pod, text)
		}
		if text != "" {
			return VerdictFailed, text
		}
	}
	reported := strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			reported = strings.TrimSpace(condition.Reason + " " + condition.Message)
		}
	}
	return VerdictFailed, reported
}

func outOfMemory(pod corev1.Pod, text string) string {
	reported := "OOMKilled: its pod ran out of memory; set or raise memoryLimit in podResources of the maintenance ConfigMap"
	for _, container := range pod.Spec.Containers {
		if limit, ok := container.Resources.Limits[corev1.ResourceMemory]; ok {
			reported = "OOMKilled: its pod exceeded its memory limit of " + limit.String() + "; the next job gets more, up to 4 times the configured limit"
		}
	}
	return strings.TrimSpace(reported + " " + text)
}
