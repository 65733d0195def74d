package startup_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// server returns Velero's Deployment with these container arguments.
func server(arguments ...string) *appsv1.Deployment {
	deployment := &appsv1.Deployment{ObjectMeta: meta("velero")}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{
		{Name: "proxy", Args: []string{"--repo-maintenance-job-configmap=of-a-sidecar"}},
		{Name: "velero", Command: []string{"/velero"}, Args: arguments},
	}
	return deployment
}

func TestServerOf(t *testing.T) {
	named := func(name string, arguments ...string) appsv1.Deployment {
		deployment := server(arguments...)
		deployment.Name = name
		return *deployment
	}
	velero, backup, second, ui := named("velero"), named("backup", "server"), named("second", "server"), named("ui", "serve")
	for name, test := range map[string]struct {
		name string
		all  []appsv1.Deployment
		want string
	}{
		"the usual name":                        {"", []appsv1.Deployment{ui, velero, backup}, "velero"},
		"the name that is given":                {"second", []appsv1.Deployment{velero, backup, second}, "second"},
		"not the given one that runs no server": {"ui", []appsv1.Deployment{ui, backup}, "backup"},
		"the only one that runs the server":     {"", []appsv1.Deployment{ui, backup}, "backup"},
		"none of several":                       {"", []appsv1.Deployment{backup, second}, ""},
		"none":                                  {"velero", []appsv1.Deployment{ui}, ""},
	} {
		require.Equal(t, test.want, ptr.Deref(startup.ServerOf(test.name, test.all), appsv1.Deployment{}).Name, name)
	}
}

// TestTheNameOfTheServerCountsEverywhere has a server of another name. The chart gives it as --mover-template; without it, agents
// that may list Deployments find the server.
func TestTheNameOfTheServerCountsEverywhere(t *testing.T) {
	client := installation(fullConfig, changed("velero", func(velero *appsv1.Deployment) {
		velero.Name = "backup"
		velero.Spec.Template.Spec.Containers[1].Args = []string{"velero", "server", "--repo-maintenance-job-configmap=jobs"}
	}))
	var mayList bool
	client.PrependReactor("list", "deployments", func(ktesting.Action) (bool, runtime.Object, error) { return !mayList, nil, notAllowed("deployments") })
	for _, arguments := range [][]string{
		{"--mover-template=deployment/backup"}, {"--mover-template=deployment/backup", "--mover-image=velero:server", "--mover-service-account=velero-server"}, nil,
	} {
		mayList = arguments == nil
		options := options(t, append(arguments, "--strict-config")...)
		got, err := startup.Load(t.Context(), client, options, newHasty())
		require.NoError(t, err, arguments)
		require.Equal(t, "velero:server", got.Templates[corev1.Linux].Image, arguments)
		require.Equal(t, "velero-server", got.Templates[corev1.Linux].ServiceAccount, arguments)
		require.Equal(t, "jobs", got.MaintenanceConfigMap, arguments)
		require.Equal(t, startup.NamedBy("Deployment backup"), got.MaintenanceNamedBy, arguments)
		found, err := startup.ReadServer(t.Context(), client, "velero", startup.ServerName(options.MoverTemplate))
		require.NoError(t, err, arguments)
		require.Equal(t, "backup", found.Name, arguments)
	}
}

func TestTheServersFlagAppliesIfTheAgentsHaveNone(t *testing.T) {
	joined := []string{"server", "--repo-maintenance-job-configmap=jobs"}
	for name, test := range map[string]struct {
		own    string
		server *appsv1.Deployment
		want   string
		by     startup.NamedBy
	}{
		"the agents' own flag comes first": {"own", server(joined...), "own", startup.NamedByAgents},
		"in one token":                     {"", server(joined...), "jobs", "Deployment velero"},
		"in two tokens":                    {"", server("server", "--repo-maintenance-job-configmap", "jobs"), "jobs", "Deployment velero"},
		"the last one counts":              {"", server("server", "--repo-maintenance-job-configmap=old", "--repo-maintenance-job-configmap=jobs"), "jobs", "Deployment velero"},
		"a flag without a value":           {"", server("server", "--repo-maintenance-job-configmap"), "", ""},
		"no such flag":                     {"", server("server"), "", ""},
		"no server":                        {"", nil, "", ""},
		"no container":                     {"", &appsv1.Deployment{}, "", ""},
	} {
		got, by := startup.MaintenanceConfigMap(test.own, test.server)
		require.Equal(t, test.want, got, name)
		require.Equal(t, test.by, by, name)
	}
}

func TestJobsTakeTheConfigMapOfTheServersFlag(t *testing.T) {
	velero := server("server", "--repo-maintenance-job-configmap=jobs")
	client := fake.NewClientset(
		velero,
		&corev1.ConfigMap{ObjectMeta: meta("jobs"), Data: map[string]string{"global": `{"keepLatestMaintenanceJobs":1,"priorityClassName":"low"}`, "notes": ""}},
	)
	found, err := startup.ReadServer(t.Context(), client, "velero", "")
	require.NoError(t, err)
	require.Equal(t, velero, found)
	got, problems, err := startup.ReadMaintenance(t.Context(), client, startup.Options{Namespace: "velero"}, found, &velerov1.BackupRepository{})
	require.NoError(t, err)
	require.Len(t, problems, 1)
	require.Contains(t, problems[0].String(), "configmaps velero/jobs: unknown key notes")
	require.Equal(t, 1, got.Jobs.Keep)
	require.Equal(t, "low", got.PriorityClassName)
	for reason, fail := range map[priority.Reason]error{
		priority.ConfigMissing: apierrors.NewNotFound(corev1.Resource("configmaps"), "jobs"), priority.Forbidden: notAllowed("configmaps"), "": refused(),
	} {
		broken := fake.NewClientset()
		fault(broken, "configmaps", 0, fail)
		got, problems, err := startup.ReadMaintenance(t.Context(), broken, startup.Options{Namespace: "velero"}, found, &velerov1.BackupRepository{})
		if reason == "" {
			require.ErrorContains(t, err, "get configmaps velero/jobs: ")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, config.Maintenance{Unreadable: reason, Jobs: config.DefaultMaintenance().Jobs}, got)
		require.Len(t, problems, 1)
		require.Equal(t, "configmaps velero/jobs", problems[0].Path)
	}
	none, err := startup.ReadServer(t.Context(), client, "elsewhere", "")
	require.NoError(t, err)
	require.Nil(t, none)
	fault(client, "deployments", 0, refused())
	_, err = startup.ReadServer(t.Context(), client, "elsewhere", "")
	require.ErrorContains(t, err, "get deployment elsewhere/velero: ")
}

const withCache = `{"cachePVC": {"storageClass": "local", "residentThresholdInMB": 3}}`

func TestLoadCacheSettings(t *testing.T) {
	for name, test := range map[string]struct {
		policy  *corev1.PersistentVolumeReclaimPolicy
		missing bool
		fail    error
		image   string
		reason  config.Reason // of the Problem; empty: caches get a volume
		path    string
		message string
		classes int // expected GETs of the storage class
	}{
		"a class without a reclaim policy deletes": {classes: 1},
		"a class that deletes":                     {policy: new(corev1.PersistentVolumeReclaimDelete), classes: 1},
		"a class that retains": {
			policy: new(corev1.PersistentVolumeReclaimRetain), reason: config.InvalidValue, path: "cachePVC.storageClass", message: "reclaimPolicy Retain", classes: 1,
		},
		"a class that recycles": {
			policy: new(corev1.PersistentVolumeReclaimRecycle), reason: config.InvalidValue, path: "cachePVC.storageClass", message: "reclaimPolicy Recycle", classes: 1,
		},
		"no such class": {missing: true, reason: config.Missing, path: "cachePVC.storageClass", message: "storage class local does not exist", classes: 1},
		"a class that may not be read": {
			fail: notAllowed("storageclasses"), reason: config.Forbidden, path: "cachePVC.storageClass", message: `apiGroups: ["storage.k8s.io"]`, classes: 1,
		},
		"movers that do not know the flag": {
			image: "registry.test:5000/velero/velero:v1.17.2", reason: config.InvalidValue, path: "cachePVC", message: "v1.17.2 do not support cache volumes",
		},
		"movers before them, with a digest": {
			image: "velero:1.16.0-rc.1@sha256:0123", reason: config.InvalidValue, path: "cachePVC", message: "use Velero 1.18 or newer",
		},
		"the first movers that do":                       {image: "velero/velero:v1.18.0-rc.1", classes: 1},
		"movers of a version that is to come":            {image: "velero/velero:v2.0.0", classes: 1},
		"movers with custom version numbers":             {image: "ours/velero:0.9.1", classes: 1},
		"movers of a branch":                             {image: "velero/velero:main", classes: 1},
		"movers named by a digest alone":                 {image: "registry.test:5000/velero@sha256:1.17", classes: 1},
		"movers without tag, of a registry with a port":  {image: "registry.test:1.17/velero", classes: 1},
		"a tag that looks like a date and not a version": {image: "velero:20240117", classes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			client := installation(withCache, changed("local", func(class *storagev1.StorageClass) { class.ReclaimPolicy = test.policy }))
			if test.missing {
				require.NoError(t, client.StorageV1().StorageClasses().Delete(t.Context(), "local", metav1.DeleteOptions{}))
			}
			requests := fault(client, "storageclasses", 0, test.fail)
			got, err := startup.Load(t.Context(), client, options(t, "--mover-image="+test.image), newHasty())
			require.NoError(t, err)
			require.Equal(t, test.classes, *requests)
			if test.reason == "" {
				require.Empty(t, got.Problems)
				require.Equal(t, &objects.Cache{StorageClass: "local", Threshold: 3 << 20, Limit: 5000 << 20}, got.Settings().Cache)
				return
			}
			require.Nil(t, got.Settings().Cache)
			require.Len(t, got.Problems, 1)
			problem := got.Problems[0]
			require.Equal(t, config.Problem{Section: config.SectionCachePVC, Path: test.path, Reason: test.reason, Message: problem.Message}, problem)
			require.Contains(t, problem.Message, test.message)
		})
	}
}

func TestLoadOfTheBackupRepositoryConfigMap(t *testing.T) {
	for name, test := range map[string]struct {
		data    map[string]string // nil: no ConfigMap
		limit   int64
		reason  config.Reason
		message string
	}{
		"a limit":        {data: map[string]string{"kopia": `{"cacheLimitMB": 100}`}, limit: 100 << 20},
		"no such object": {limit: 5000 << 20, reason: config.Missing, message: "configmaps velero/repositories: does not exist"},
		"no data":        {data: map[string]string{}, limit: 5000 << 20, reason: config.Empty, message: "configmaps velero/repositories: no data"},
		"a bad limit":    {data: map[string]string{"kopia": `{"cacheLimitMB": true}`}, limit: 5000 << 20, reason: config.WrongType, message: "kopia.cacheLimitMB (line 1, column 18)"},
	} {
		t.Run(name, func(t *testing.T) {
			client := installation(strings.Replace(withCache, "{", `{"unknown": 1, `, 1))
			if test.data != nil {
				require.NoError(t, client.Tracker().Add(&corev1.ConfigMap{ObjectMeta: meta("repositories"), Data: test.data}))
			}
			arguments := []string{"--backup-repository-configmap=repositories"}
			got, err := startup.Load(t.Context(), client, options(t, arguments...), newHasty())
			require.NoError(t, err)
			require.Equal(t, test.limit, got.Settings().Cache.Limit)
			reload := got.Reload(t.Context(), client, options(t, arguments...), newHasty(), &corev1.ConfigMap{Data: map[string]string{"a": withCache}})
			require.Equal(t, test.limit, reload.InForce.Settings().Cache.Limit)
			require.Empty(t, reload.Pending)
			require.Equal(t, config.UnknownField, got.Problems[0].Reason, "of the node-agent ConfigMap, which is read first")
			if test.reason == "" {
				require.Len(t, got.Problems, 1)
				return
			}
			require.Len(t, got.Problems, 2)
			require.Equal(t, config.SectionBackupRepository, got.Problems[1].Section)
			require.Equal(t, test.reason, got.Problems[1].Reason)
			require.Contains(t, got.Problems[1].String(), test.message)
			require.Equal(t, got.Problems[1:], reload.Problems)
			require.Empty(t, got.Priority.Reason, "the priority class is of the other ConfigMap")

			_, err = startup.Load(t.Context(), client, options(t, append(arguments, "--strict-config")...), newHasty())
			require.ErrorContains(t, err, test.message)
		})
	}
}

func TestUntestedVersionsOfVelero(t *testing.T) {
	for image, message := range map[string]string{
		"velero/velero:v1.18.3":                    "",
		"registry.example:5000/velero:v1.17.0":     "",
		"velero/velero:v1.18.4-rc.1@sha256:0123":   "",
		"velero/velero":                            "",
		"registry.example:5000/velero":             "",
		"registry.example/velero:2026-08-01":       "",
		"registry.example/velero:patched":          "",
		"velero/velero:v1.19.0-rc.1":               "Velero v1.19.0-rc.1 is newer than 1.18, the newest version tested with Lateen",
		"velero/velero:v2.0.0@sha256:0123":         "Velero v2.0.0 is newer than 1.18, the newest version tested with Lateen",
		"velero/velero:v1.16.2":                    "Velero v1.16.2 is older than 1.17, the oldest version tested with Lateen",
		"registry.example:5000/mirror/velero:main": "Velero's development branch (registry.example:5000/mirror/velero:main) is newer than 1.18, the newest version tested with Lateen",
	} {
		require.Equal(t, message, startup.UntestedVelero(image), image)
	}
}
