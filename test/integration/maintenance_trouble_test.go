package integration

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// jobFault is what may happen to the maintenance of a repository that is due, and what is to be seen of it.
type jobFault struct {
	config  func(*env) map[string]string // of the maintenance ConfigMap; nil: it only says where jobs run
	before  func(*env)                   // the agent starts; nil: all pods of jobs end well
	wrap    func(*env) transport.WrapperFunc
	happens func(*env)
	after   func(*env) // the first run is in the history

	runs      []string          // what is in the message of each, in their order; empty for a success
	jobs      int               // that are left
	says      map[string]string // reasons of Events, and what is in their messages
	fallbacks string            // for which reason a job has no class; empty if no job lacks one
	problems  string            // with the configuration: the reason; empty for none
}

func TestWhateverHappensToAJobIsWrittenDownAndTheNextOneIsMadeOnKubernetes(t *testing.T) {
	runJobFaults(t, jobFaults())
}

// runJobFaults plays each of the troubles.
func runJobFaults(t *testing.T, all map[string]jobFault) {
	t.Helper()
	t.Parallel()
	for name, test := range all {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, time.Millisecond)
			wrap := func(next http.RoundTripper) http.RoundTripper { return next }
			if test.wrap != nil {
				wrap = test.wrap(s)
			}
			if test.config == nil {
				s.configureJobs("")
			} else if data := test.config(s); data != nil {
				require.NoError(t, s.ConfigMap(s.soon(), maintenanceConfigMap, data))
			}
			if test.before == nil {
				s.jobsEnd(node.Result{}, 0)
			} else {
				test.before(s)
			}
			name := s.repository("app-default-kopia-x7k2p")
			r := s.start(maintains, fixture.Through(wrap), func(options *agent.Options) {
				if len(test.runs) > 1 {
					options.Maintenance.MinBackoff = time.Second
				}
			})
			s.coordinator("")
			s.job(func(*batchv1.Job) bool { return true })
			if test.happens != nil {
				test.happens(s)
			}
			s.maintained(name, ran(1))
			if test.after != nil {
				test.after(s)
			}
			test.check(s, r, s.maintained(name, ran(len(test.runs))))
		})
	}
}

// check looks at all that is left of the trouble.
func (test jobFault) check(s *env, r *agentRun, after *velerov1.BackupRepository) {
	failures := 0
	require.Len(s, after.Status.RecentMaintenance, len(test.runs))
	for i, run := range after.Status.RecentMaintenance {
		if description := test.runs[i]; description != "" {
			failures++
			require.Equal(s, velerov1.BackupRepositoryMaintenanceFailed, run.Result)
			require.Contains(s, run.Message, description)
			require.Regexp(s, ` \(after \d+s\)$`, run.Message)
			require.Nil(s, run.CompleteTimestamp)
			s.says("MaintenanceFailed", description)
			continue
		}
		require.Equal(s, velerov1.BackupRepositoryMaintenanceSucceeded, run.Result, run.Message)
		require.Equal(s, after.Status.LastMaintenanceTime, run.CompleteTimestamp)
		s.says("MaintenanceSucceeded", "succeeded")
	}
	require.Equal(s, velerov1.BackupRepositoryPhaseReady, after.Status.Phase)
	require.Empty(s, after.Status.Message)
	s.haveLeft(test.jobs)
	for reason, description := range test.says {
		s.says(reason, description)
	}
	require.Equal(s, len(test.runs)-failures, r.metric("velero_repo_maintenance_success_total", "repository_name", after.Name))
	require.Equal(s, failures, r.metric("velero_repo_maintenance_failure_total", "repository_name", after.Name))
	require.Equal(s, len(test.runs), r.metric("velero_repo_maintenance_duration_seconds", "repository_name", after.Name))
	require.EqualValues(s, after.Status.LastMaintenanceTime.Unix(), r.metric("lateen_maintenance_last_success_timestamp_seconds", "repository", after.Name))
	fallbacks, problems := 0, 0
	if test.fallbacks != "" {
		fallbacks = 1
		require.Equal(s, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job", "reason", test.fallbacks))
	}
	require.Equal(s, fallbacks, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job"))
	if test.problems != "" {
		problems = 1
		require.Equal(s, 1, r.metric("lateen_config_fallbacks_total", "section", "repoMaintenance", "reason", test.problems))
	}
	require.Equal(s, problems, r.metric("lateen_config_fallbacks_total", "section", "repoMaintenance"))
}

func jobFaults() map[string]jobFault {
	none, created := func(*env) {}, make(chan struct{})
	ends := func(result node.Result) func(*env) {
		return func(s *env) {
			s.jobsEnd(result, 1)
			s.jobsEnd(node.Result{}, 0)
		}
	}
	return map[string]jobFault{
		"its class is missing": {
			config: func(s *env) map[string]string {
				return map[string]string{"global": s.pinned(`"priorityClassName":"nowhere"`)}
			},
			runs: []string{""}, jobs: 1, fallbacks: "not_found", says: map[string]string{"PriorityClassNotInForce": `"nowhere" (not_found)`},
		},
		"its class is deleted after it was looked up": {
			config: func(s *env) map[string]string {
				return map[string]string{"global": s.pinned(`"priorityClassName":"` + s.class() + `"`)}
			},
			wrap: deletingTheClass,
			runs: []string{"PriorityClass of its job does not exist: ", ""}, jobs: 1, fallbacks: "not_found",
			says: map[string]string{"PriorityClassNotInForce": "(not_found)"},
		},
		"a quota lets no pod in, until it is lifted": {
			before: func(s *env) { s.quota("none"); s.jobsEnd(node.Result{}, 0) },
			after:  (*env).lift,
			runs:   []string{"exceeded quota: none", ""}, jobs: 1,
		},
		"its pod is killed for its memory": {before: ends(node.Result{ExitCode: 137, Reason: "OOMKilled"}), runs: []string{"OOMKilled", ""}, jobs: 2},
		"its pod is evicted": {
			before: none,
			happens: func(s *env) {
				pod := s.podOfJob()
				s.jobsEnd(node.Result{}, 0)
				require.NoError(s, s.node.Evict(s.Namespace, pod, "the node is low on memory"))
			},
			runs: []string{"the node is low on memory", ""}, jobs: 2,
		},
		"its pod goes with its node": {
			before: none,
			happens: func(s *env) {
				pod := s.podOfJob()
				s.jobsEnd(node.Result{}, 0)
				require.NoError(s, s.node.Vanish(s.soon(), s.Namespace, pod))
			},
			runs: []string{"its pod and its message are deleted", ""}, jobs: 2,
		},
		"its time is up on a node that does not answer": {
			before: none, happens: (*env).loseTheJob,
			runs: []string{"DeadlineExceeded"},
		},
		"it is deleted by hand": {
			before: func(s *env) {
				s.node.Faults.Add(node.Fault{Match: s.ofMaintenance, NeverStarts: true, Times: 1})
				s.jobsEnd(node.Result{}, 0)
			},
			happens: (*env).deleteTheJob,
			runs:    []string{""}, jobs: 1,
		},
		"there is no ConfigMap, until there is one": {
			config: func(*env) map[string]string { return nil },
			before: func(s *env) { s.quota("none"); s.jobsEnd(node.Result{}, 0) }, // the job has no node either
			wrap:   func(*env) transport.WrapperFunc { return readingAgain(created) },
			after:  func(s *env) { s.configureJobs(""); s.lift(); close(created) },
			runs:   []string{"exceeded quota: none", ""}, jobs: 1, fallbacks: "config_missing", problems: "missing",
			says: map[string]string{"PriorityClassNotInForce": "(config_missing)", "MaintenanceConfigProblem": maintenanceConfigMap},
		},
		"the ConfigMap has the file under its own name": {
			config: func(s *env) map[string]string {
				return map[string]string{"config.json": `{"global":{"priorityClassName":"nowhere"}}`, "app-default-kopia": s.pinned("")}
			},
			runs: []string{""}, jobs: 1, fallbacks: "config_invalid", problems: "invalid_value",
			says: map[string]string{"PriorityClassNotInForce": "(config_invalid)", "MaintenanceConfigProblem": "unknown key config.json"},
		},
		"the ConfigMap is no JSON": {
			config: func(s *env) map[string]string {
				return map[string]string{"global": `{"priorityClassName":`, "app-default-kopia": s.pinned("")}
			},
			runs: []string{""}, jobs: 1, fallbacks: "config_invalid", problems: "invalid_json",
			says: map[string]string{"PriorityClassNotInForce": "(config_invalid)", "MaintenanceConfigProblem": "global"},
		},
		"the class is given for one repository, and is missing": {
			config: func(s *env) map[string]string {
				return map[string]string{"global": s.pinned(""), "app-default-kopia": `{"priorityClassName":"nowhere"}`}
			},
			runs: []string{""}, jobs: 1, fallbacks: "not_found", says: map[string]string{"PriorityClassNotInForce": `"nowhere" (not_found)`},
		},
		"the class is given for one repository and for all": {
			config: func(s *env) map[string]string {
				return map[string]string{"global": s.pinned(`"priorityClassName":"` + s.class() + `"`), "app-default-kopia": `{"priorityClassName":"nowhere"}`}
			},
			runs: []string{""}, jobs: 1, problems: "ignored",
			says: map[string]string{"MaintenanceConfigProblem": "because key global sets it"},
		},
	}
}

// deletingTheClass has the class deleted in the last moment before the first job is made.
func deletingTheClass(s *env) transport.WrapperFunc {
	var once sync.Once
	return func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/jobs") {
				once.Do(func() {
					if err := s.deleteClass(request.Context(), "class-"+s.Namespace); err != nil {
						s.Errorf("delete the class: %v", err)
					}
				})
			}
			return next.RoundTrip(request)
		})
	}
}

// readingAgain lets the maintenance ConfigMap be read a second time only once it is made.
func readingAgain(created <-chan struct{}) transport.WrapperFunc {
	var reads atomic.Int32
	return func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if strings.HasSuffix(request.URL.Path, "/"+maintenanceConfigMap) && reads.Add(1) == 2 {
				select {
				case <-created:
				case <-request.Context().Done():
				}
			}
			return next.RoundTrip(request)
		})
	}
}

// lift takes the quota away.
func (s *env) lift() {
	require.NoError(s, s.Kube.CoreV1().ResourceQuotas(s.Namespace).Delete(s.soon(), "none", metav1.DeleteOptions{}))
}

// podOfJob waits until the pod of a job runs.
func (s *env) podOfJob() string {
	return waitFor(s, s.Kube.CoreV1().Pods(s.Namespace), ofRepositories, testenv.Ready).Name
}

// deleteTheJob deletes the first job once it has a pod, and waits for the one that takes its place.
func (s *env) deleteTheJob() {
	first := s.job(func(job *batchv1.Job) bool { return job.Status.Active > 0 })
	options := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	require.NoError(s, s.Kube.BatchV1().Jobs(s.Namespace).Delete(s.soon(), first.Name, options))
	s.job(func(job *batchv1.Job) bool { return job.UID != first.UID })
}

// loseTheJob has the time of a job run out, whose node does not answer any more. The pod stays as it is.
func (s *env) loseTheJob() {
	s.podOfJob()
	require.NoError(s, s.node.Silence(s.soon()))
	job := s.jobs()[0]
	_, err := s.Kube.BatchV1().Jobs(s.Namespace).Patch(s.soon(), job.Name, types.MergePatchType, []byte(`{"spec":{"activeDeadlineSeconds":1}}`), metav1.PatchOptions{})
	require.NoError(s, err)
	s.job(func(job *batchv1.Job) bool { return !objects.ReadJob(job).Terminating.IsZero() })
}
