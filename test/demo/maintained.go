package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/api"
)

const (
	// jobKey is under which the ConfigMap of maintenance jobs has what counts for every repository.
	jobKey = "global"
	// overdue is how long ago the repository was maintained, as the act has it; it is due after an hour.
	overdue = 48 * time.Hour
)

// maintained is sabotaged by a ConfigMap that names a class that does not exist.
func (s *stage) maintained(ctx context.Context) (story, error) {
	class := lowClass
	if s.sabotage == "maintenance" {
		class = missingClass
	}
	if err := s.configure(ctx, jobConfigMap, jobKey, class); err != nil {
		return story{}, err
	}
	if err := s.makeDue(ctx); err != nil {
		return story{}, err
	}
	pod, err := s.jobPod(ctx)
	if err != nil {
		return story{}, err
	}
	if m := (mover{pod: *pod}); m.className() != lowClass || m.priority() != "10" {
		return story{}, fmt.Errorf("the pod of the job has class %s and priority %s, want %s and %d", m.className(), m.priority(), lowClass, lowValue)
	}
	ended, err := s.event(ctx, s.repository.UID, func(e *corev1.Event) bool { return strings.HasPrefix(e.Reason, "Maintenance") })
	if err != nil {
		return story{}, fmt.Errorf("wait for the end of maintenance: %w", err)
	}
	s.step("%s on BackupRepository %s: %s: %s", ended.Type, ended.InvolvedObject.Name, ended.Reason, ended.Message)
	if err := s.jobDone(ctx, metav1.GetControllerOf(pod)); err != nil {
		return story{}, err
	}
	return story{}, s.maintenanceMetrics(ctx)
}

// makeDue has the repository's last maintenance be long ago.
func (s *stage) makeDue(ctx context.Context) error {
	last := time.Now().Add(-overdue).UTC().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"status":{"lastMaintenanceTime":%q}}`, last)
	found := &velerov1.BackupRepository{}
	err := s.world.Velero.Patch(types.MergePatchType).Namespace(s.repository.Namespace).Resource("backuprepositories").
		Name(s.repository.Name).Body([]byte(patch)).Do(ctx).Into(found)
	if err != nil {
		return fmt.Errorf("patch BackupRepository: %w", err)
	}
	s.step("BackupRepository %s asks for maintenance every %s, and is made to have had its last at %s",
		found.Name, found.Spec.MaintenanceFrequency.Duration, found.Status.LastMaintenanceTime.UTC().Format(time.RFC3339))
	return nil
}

// jobPod waits for the pod of the repository's maintenance job to run, and shows it.
func (s *stage) jobPod(ctx context.Context) (*corev1.Pod, error) {
	watcher, err := s.world.Kube.CoreV1().Pods(s.world.Namespace).Watch(ctx, metav1.ListOptions{LabelSelector: api.LabelRepository + "=" + s.repository.Name})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the pod of a maintenance job: %w", ctx.Err())
		case event := <-watcher.ResultChan():
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				return nil, broken(event)
			}
			if pod.Status.Phase == corev1.PodPending {
				continue
			}
			m := mover{pod: *pod}
			s.step("pod %s is %s on %s: %s %s; priorityClassName %s, priority %s", pod.Name, pod.Status.Phase, pod.Spec.NodeName,
				pod.Spec.Containers[0].Command[0], pod.Spec.Containers[0].Args[0], m.className(), m.priority())
			return pod, nil
		}
	}
}

// jobDone shows the job and what the repository remembers of it, and is an error unless both are a success.
func (s *stage) jobDone(ctx context.Context, owner *metav1.OwnerReference) error {
	if owner == nil {
		return fmt.Errorf("the pod that maintains BackupRepository %s belongs to no job", s.repository.Name)
	}
	job, err := s.world.Kube.BatchV1().Jobs(s.world.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get job: %w", err)
	}
	found := &velerov1.BackupRepository{}
	err = s.world.Velero.Get().Namespace(s.repository.Namespace).Resource("backuprepositories").Name(s.repository.Name).Do(ctx).Into(found)
	if err != nil {
		return fmt.Errorf("get BackupRepository: %w", err)
	}
	complete := slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
	})
	runs := found.Status.RecentMaintenance
	if !complete || len(runs) != 1 || runs[0].Result != velerov1.BackupRepositoryMaintenanceSucceeded {
		return fmt.Errorf("job %s: %+v; BackupRepository %s: %+v", job.Name, job.Status, found.Name, found.Status)
	}
	s.step("job %s, of priorityClassName %s, is Complete after %s", job.Name, job.Spec.Template.Spec.PriorityClassName,
		job.Status.CompletionTime.Sub(job.CreationTimestamp.Time))
	s.step("BackupRepository %s: run of %s is %s, lastMaintenanceTime %s", found.Name,
		runs[0].StartTimestamp.UTC().Format(time.RFC3339), runs[0].Result, found.Status.LastMaintenanceTime.UTC().Format(time.RFC3339))
	return nil
}

func (s *stage) maintenanceMetrics(ctx context.Context) error {
	scraped, err := scrape(ctx, s.agent.url+"/metrics")
	if err != nil {
		return err
	}
	s.step("/metrics:")
	s.quote(scraped.notZero("velero_repo_maintenance_success_total", "velero_repo_maintenance_failure_total",
		"velero_repo_maintenance_duration_seconds_sum", "lateen_maintenance_last_success_timestamp_seconds", "lateen_priority_class_info")...)
	return scraped.expect(
		fmt.Sprintf(`velero_repo_maintenance_success_total{repository_name=%q} 1`, s.repository.Name),
		fmt.Sprintf(`velero_repo_maintenance_duration_seconds_count{repository_name=%q} 1`, s.repository.Name),
		`lateen_priority_class_info{configured="velero-low",consumer="maintenance-job",effective="velero-low"} 1`,
		`lateen_priority_class_fallbacks_total{consumer="maintenance-job",reason="not_found"} 0`,
	)
}
