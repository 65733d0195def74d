package objects

import (
	"crypto/sha256"
	"crypto/sha3"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
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
	Keep          int                    // number of kept finished jobs of a repository
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
				Spec: jobPod(what, template, settings),
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
		Tolerations:        tolerations(VolumeInfo{OS: corev1.Linux}, []corev1.Toleration{windows}, template.Tolerations),
	}
}

func formatFactor(factor float64) string { return strconv.FormatFloat(factor, 'f', -1, 64) }

// enlarged returns the resources with the memory limit multiplied by factor, if a limit is set.
func enlarged(resources corev1.ResourceRequirements, factor float64) corev1.ResourceRequirements {
	more := *resources.DeepCopy()
	if limit, ok := more.Limits[corev1.ResourceMemory]; ok && factor > 1 {
		more.Limits = maps.Clone(more.Limits)
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
