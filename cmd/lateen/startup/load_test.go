package startup_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// hasty is a clock whose waits end at once and still advance the time. It records them.
type hasty struct {
	*clocktesting.FakeClock
	waits []time.Duration
}

func newHasty() *hasty { return &hasty{FakeClock: clocktesting.NewFakeClock(time.Unix(0, 0))} }

func (h *hasty) After(d time.Duration) <-chan time.Time {
	h.Step(d)
	h.waits = append(h.waits, d)
	finished := make(chan time.Time, 1)
	finished <- h.Now()
	return finished
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "velero", Name: name} }

func workload(image, account string) corev1.PodTemplateSpec {
	template := velerosTemplate()
	template.Spec.Containers[0].Image, template.Spec.ServiceAccountName = image, account
	return template
}

// installation returns a cluster with every object that an agent reads, after changes of each. Its ConfigMap has this text;
// it is missing if the text is empty.
func installation(text string, changes ...func(runtime.Object)) *fake.Clientset {
	server := workload("velero:server", "velero-server")
	server.Spec.Volumes, server.Spec.Containers[0].Name = nil, "velero"
	server.Spec.Containers = append([]corev1.Container{{Name: "proxy", Image: "proxy:1"}}, server.Spec.Containers...)
	objects := []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"size": "big", "kubernetes.io/os": "linux"}}},
		&appsv1.DaemonSet{
			ObjectMeta: meta("node-agent"), Spec: appsv1.DaemonSetSpec{Template: workload("lateen:agent", "lateen")},
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 500},
		},
		&appsv1.Deployment{ObjectMeta: meta("velero"), Spec: appsv1.DeploymentSpec{Template: server}},
		&appsv1.Deployment{ObjectMeta: meta("other"), Spec: appsv1.DeploymentSpec{Template: workload("other:1", "other")}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "velero-low"}, Value: 10, PreemptionPolicy: new(corev1.PreemptNever)},
	}
	if text != "" {
		objects = append(objects, &corev1.ConfigMap{ObjectMeta: meta("agent-config"), Data: map[string]string{"a": text}})
	}
	for _, object := range objects {
		for _, change := range changes {
			change(object)
		}
	}
	client := fake.NewClientset(objects...)
	client.Resources = []*metav1.APIResourceList{{GroupVersion: "velero.io/v1", APIResources: []metav1.APIResource{{Name: "backups"}}}, {GroupVersion: "velero.io/v2alpha1"}}
	for _, kind := range api.Kinds() {
		for _, list := range client.Resources {
			if list.GroupVersion == kind.GVK.GroupVersion().String() {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: kind.Resource})
			}
		}
	}
	reviews(client, func(*authorizationv1.ResourceAttributes) bool { return true })
	return client
}

// changed changes the object of a type and a name.
func changed[T interface {
	runtime.Object
	GetName() string
}](name string, change func(T)) func(runtime.Object) {
	return func(object runtime.Object) {
		if one, ok := object.(T); ok && one.GetName() == name {
			change(one)
		}
	}
}

// fault fails every GET of a resource, or only the first ones if times is above 0; none without an error. It returns the number of GETs.
func fault(client *fake.Clientset, resource string, times int, err error) *int {
	requests := 0
	client.PrependReactor("get", resource, func(ktesting.Action) (bool, runtime.Object, error) {
		requests++
		return err != nil && (times == 0 || requests <= times), nil, err
	})
	return &requests
}

func options(t *testing.T, arguments ...string) startup.Options {
	t.Helper()
	all := parsed(t, append([]string{"--node-agent-configmap=agent-config"}, arguments...)...)
	require.NoError(t, all.Complete(environment("NODE_NAME=node-1")))
	return all
}

func notAllowed(resource string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "x", errors.New("RBAC"))
}

func refused() error {
	return &url.Error{Op: "Get", URL: "https://192.0.2.1", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
}

func TestLoadOfEverything(t *testing.T) {
	client := installation(fullConfig)
	got, err := startup.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Empty(t, got.Problems)
	require.Equal(t, "agent-config", got.ConfigMap.Name)
	require.Len(t, got.Templates, 1, "there are no agents on Windows")
	require.Equal(t, startup.Node{Name: "node-1", Labels: map[string]string{"size": "big", "kubernetes.io/os": "linux"}, OS: corev1.Linux}, got.Node)
	require.Equal(t, 8, got.Config.Concurrency, "the labels of the node count")
	require.Equal(t, priority.Resolution{Configured: "velero-low", Effective: "velero-low"}, got.Priority)
	settings := got.Config.Movers
	settings.PriorityClass = "velero-low"
	require.Equal(t, settings, got.Settings())
	require.Equal(t, "velero:server", got.Templates[corev1.Linux].Image)
	require.Equal(t, "velero-server", got.Templates[corev1.Linux].ServiceAccount)
	require.Equal(t, "/data/kubelet/pods", got.PodsDir)
	require.Equal(t, []string{"scratch", "cloud-credentials"}, []string{got.Templates[corev1.Linux].Volumes[0].Name, got.Templates[corev1.Linux].Volumes[1].Name})
	for _, action := range client.Actions() {
		if action.GetResource().Resource != "selfsubjectaccessreviews" {
			require.Equal(t, "get", action.GetVerb(), "nothing is listed and nothing is written")
		}
	}
}

func TestLoadFallsBackToNoPriorityClass(t *testing.T) {
	for name, test := range map[string]struct {
		text       string
		requests   int // expected GETs of the class
		fail       error
		configured string
		effective  string
		reason     priority.Reason
		says       string
	}{
		"unset is not a fallback":             {text: `{}`},
		"in force":                            {text: `{"priorityClassName": "velero-low"}`, requests: 1, configured: "velero-low", effective: "velero-low"},
		"missing":                             {text: `{"priorityClassName": "nobody"}`, requests: 1, configured: "nobody", reason: priority.NotFound, says: "create it"},
		"forbidden, which is not tried again": {text: `{"priorityClassName": "velero-low"}`, fail: notAllowed("priorityclasses"), requests: 1, configured: "velero-low", effective: "velero-low", says: "allow get on priorityclasses"},
		"an error that stays":                 {text: `{"priorityClassName": "velero-low"}`, fail: apierrors.NewInternalError(errors.New("etcd")), requests: -1, configured: "velero-low", effective: "velero-low", says: `cannot read PriorityClass "velero-low": Internal error occurred: etcd`},
		"an empty ConfigMap":                  {text: " ", reason: priority.ConfigEmpty, says: "configmaps velero/agent-config: key a is empty"},
		"no JSON":                             {text: `{"priorityClassName": "velero-low"`, reason: priority.ConfigInvalid},
		"a name that is none":                 {text: `{"priorityClassName": "Velero Low"}`, reason: priority.ConfigInvalid},
		"another section that is wrong":       {text: `{"priorityClassName": "velero-low", "podLabels": 1}`, requests: 1, configured: "velero-low", effective: "velero-low"},
		"no ConfigMap": {
			reason: priority.ConfigMissing,
			says:   "configmaps velero/agent-config: does not exist, so all settings have defaults; create it or remove --node-agent-configmap",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := installation(test.text)
			requests := fault(client, "priorityclasses", 0, test.fail)
			got, err := startup.Load(t.Context(), client, options(t), newHasty())
			require.NoError(t, err)
			require.Equal(t, test.configured, got.Priority.Configured)
			require.Equal(t, test.effective, got.Priority.Effective)
			require.Equal(t, test.reason, got.Priority.Reason)
			require.Equal(t, test.reason != "" || test.fail != nil, got.Priority.Message != "")
			require.Contains(t, got.Priority.Message, test.says)
			require.Equal(t, test.reason != "", got.Priority.FallsBack())
			require.True(t, test.reason == "" || slices.Contains(priority.Reasons(), test.reason))
			if test.requests < 0 {
				require.Greater(t, *requests, 10, "the whole budget is used")
				require.Less(t, *requests, 100, "with growing delays")
				return
			}
			require.Equal(t, test.requests, *requests)
		})
	}
}

// TestLoadRetriesTransientErrors requires for every read that a temporary fault has no effect.
func TestLoadRetriesTransientErrors(t *testing.T) {
	for _, resource := range []string{"nodes", "configmaps", "daemonsets", "deployments", "storageclasses", "priorityclasses", "resource"} {
		for name, fail := range map[string]error{
			"500":                apierrors.NewInternalError(errors.New("etcd")),
			"503":                apierrors.NewServiceUnavailable("starting"),
			"504":                apierrors.NewTimeoutError("slow", 1),
			"429":                apierrors.NewTooManyRequestsError("busy"),
			"connection refused": refused(),
			"deadline":           context.DeadlineExceeded,
		} {
			t.Run(resource+" "+name, func(t *testing.T) {
				client := installation(fullConfig)
				requests := fault(client, resource, 5, fail)
				clock := newHasty()
				got, err := startup.Load(t.Context(), client, options(t), clock)
				require.NoError(t, err)
				require.Greater(t, *requests, 5)
				require.Empty(t, got.Problems)
				require.Equal(t, "velero-low", got.Priority.Effective)
				require.Less(t, clock.Now().Sub(time.Unix(0, 0)), 10*time.Second)
			})
		}
	}
}

func TestLoadFailsWithAOneLineError(t *testing.T) {
	for name, test := range map[string]struct {
		resource string
		fail     error
		waits    bool // until the budget is used up
		message  []string
	}{
		"nothing answers":              {"*", refused(), true, []string{"get nodes node-1: no response from the API server within 30s", "connection refused"}},
		"everything is a server error": {"*", apierrors.NewInternalError(errors.New("etcd")), true, []string{"get nodes node-1: no response from the API server within 30s", "etcd"}},
		"the ConfigMap's read alone":   {"configmaps", apierrors.NewServiceUnavailable("later"), true, []string{"configmaps velero/agent-config", "30s"}},
		"a storage class's read alone": {"storageclasses", apierrors.NewInternalError(errors.New("etcd")), true, []string{"get storageclasses local: no response from the API server within 30s"}},
		"wrong credentials":            {"*", apierrors.NewUnauthorized("who?"), false, []string{"get nodes node-1: API server rejected", "--kubeconfig"}},
		"an unknown authority":         {"*", &url.Error{Op: "Get", URL: "https://192.0.2.1", Err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}}, false, []string{"get nodes node-1: certificate", "kubeconfig"}},
		"a canceled request":           {"*", &url.Error{Op: "Get", URL: "https://192.0.2.1", Err: context.Canceled}, false, []string{"node-1: Get", "canceled"}},
		"a node that may not be read":  {"nodes", notAllowed("nodes"), false, []string{"not allowed", `apiGroups: [""]`, "resources: [nodes]"}},
		"a ConfigMap likewise":         {"configmaps", notAllowed("configmaps"), false, []string{"resources: [configmaps]", "verbs: [get]"}},
		"a DaemonSet likewise":         {"daemonsets", notAllowed("daemonsets"), false, []string{`apiGroups: ["apps"]`, "resources: [daemonsets]"}},
		"a Deployment likewise":        {"deployments", notAllowed("deployments"), false, []string{`apiGroups: ["apps"]`, "resources: [deployments]"}},
		"a node that does not exist":   {"nodes", apierrors.NewNotFound(schema.GroupResource{}, "x"), false, []string{"node-1", "NODE_NAME", "spec.nodeName"}},
		"a DaemonSet that does not":    {"daemonsets", apierrors.NewNotFound(schema.GroupResource{}, "x"), false, []string{"velero/node-agent", "--mover-template"}},
		"CRDs that are not installed":  {"resource", apierrors.NewNotFound(schema.GroupResource{}, "x"), false, []string{"podvolumebackups", "velero.io/v1", "velero install --crds-only"}},
		"an unexpected error":          {"configmaps", apierrors.NewBadRequest("odd"), false, []string{"get configmaps velero/agent-config", "odd"}},
	} {
		t.Run(name, func(t *testing.T) {
			client, clock := installation(fullConfig), newHasty()
			fault(client, test.resource, 0, test.fail)
			_, err := startup.Load(t.Context(), client, options(t), clock)
			for _, part := range test.message {
				require.ErrorContains(t, err, part)
			}
			require.NotContains(t, err.Error(), "\n")
			want := map[bool]time.Duration{true: 30 * time.Second}[test.waits]
			require.Equal(t, want, clock.Now().Sub(time.Unix(0, 0)), "what will not change is not waited for")
		})
	}
}

func TestLoadStopsWhenItsContextIsCanceled(t *testing.T) {
	client := installation(fullConfig)
	ctx, cancel := context.WithCancel(t.Context())
	client.PrependReactor("get", "configmaps", func(ktesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, refused()
	})
	_, err := startup.Load(ctx, client, options(t), clocktesting.NewFakeClock(time.Unix(0, 0)))
	require.ErrorIs(t, err, context.Canceled)
}

func TestRetryReleasesTheContextOfAnAttempt(t *testing.T) {
	var attempt func() error
	require.NoError(t, startup.Retry(t.Context(), options(t), newHasty(), func(ctx context.Context) error { attempt = ctx.Err; return nil }))
	require.ErrorIs(t, attempt(), context.Canceled)
}

func TestLoadNamesTheMissingKind(t *testing.T) {
	for _, kind := range api.Kinds() {
		client := installation("")
		for _, list := range client.Resources {
			list.APIResources = slices.DeleteFunc(list.APIResources, func(served metav1.APIResource) bool { return served.Name == kind.Resource })
		}
		_, err := startup.Load(t.Context(), client, options(t), newHasty())
		require.ErrorContains(t, err, "find "+kind.Resource+" in "+kind.GVK.GroupVersion().String())
		require.ErrorContains(t, err, "velero install --crds-only")
	}
}

func TestLoadWaitsLongerBeforeEachAttempt(t *testing.T) {
	client, clock := installation(fullConfig), newHasty()
	fault(client, "nodes", 8, refused())
	_, err := startup.Load(t.Context(), client, options(t), clock)
	require.NoError(t, err)
	require.Len(t, clock.waits, 8)
	for i, wait := range clock.waits { // half of it is random
		longest := min(200*time.Millisecond<<i, 2*time.Second)
		require.True(t, longest/2 <= wait && wait <= longest, "%s before attempt %d", wait, i+2)
	}
}

func TestHash(t *testing.T) {
	const text = `{"loadConcurrency":{"globalConfig":1,"perNodeConfig":[{"nodeSelector":{"matchLabels":{"disk":"ssd"}},"number":4}]},"podLabels":{"a":"1","b":"2"}}`
	hash := func(node string, change func(*startup.Startup, *startup.Options)) uint64 {
		options := startup.Options{NodeName: node, PodUID: "uid of " + node, PodName: "node-agent-" + node, Workers: 8}
		startup := startup.Startup{
			Node: startup.Node{Name: node, OS: corev1.Linux}, Agents: len(node),
			Templates: map[corev1.OSName]objects.Template{corev1.Linux: {Image: "velero/velero:v1.18.3"}},
		}
		startup.Config, startup.Problems = config.Parse(map[string]string{"any": text}, map[string]string{"disk": map[string]string{"n1": "ssd"}[node]})
		require.Empty(t, startup.Problems)
		change(&startup, &options)
		sum, err := startup.Hash(options)
		require.NoError(t, err)
		require.Less(t, sum, uint64(1)<<53, "a metric holds it exactly")
		return sum
	}
	same := hash("n1", func(*startup.Startup, *startup.Options) {})
	require.Equal(t, same, hash("node2", func(*startup.Startup, *startup.Options) {}), "another node, with another limit")
	for name, change := range map[string]func(*startup.Startup, *startup.Options){
		"a flag":          func(_ *startup.Startup, options *startup.Options) { options.Workers = 9 },
		"a label":         func(startup *startup.Startup, _ *startup.Options) { startup.Config.Movers.Labels["a"] = "2" },
		"a rule of nodes": func(startup *startup.Startup, _ *startup.Options) { startup.Config.NodeRules[0].Number = 5 },
		"the queue":       func(startup *startup.Startup, _ *startup.Options) { startup.Config.PrepareQueueLength = 7 },
		"the class":       func(startup *startup.Startup, _ *startup.Options) { startup.Config.PriorityClassName = "high" },
		"the ConfigMap":   func(startup *startup.Startup, _ *startup.Options) { startup.MaintenanceConfigMap = "other" },
		"the mover's limits": func(startup *startup.Startup, _ *startup.Options) {
			startup.Config.Movers.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}
		},
		"the mover's image": func(startup *startup.Startup, _ *startup.Options) {
			startup.Templates[corev1.Linux] = objects.Template{Image: "velero/velero:v1.18.4"}
		},
	} {
		require.NotEqual(t, same, hash("n1", change), name)
	}
}

// fullConfig uses every field of the schema.
var fullConfig = func() string {
	text, err := os.ReadFile("../config/testdata/full.json")
	if err != nil {
		panic(err)
	}
	return string(text)
}()

func TestLoadOfAStrictConfiguration(t *testing.T) {
	client := installation(`{"priorityClassName": "velero-low", "podLabels": 1, "loadConcurency": {}}`)
	_, err := startup.Load(t.Context(), client, options(t, "--strict-config"), newHasty())
	for _, part := range []string{"--strict-config", "podLabels (line 1, column 50)", "loadConcurrency?", "; "} {
		require.ErrorContains(t, err, part)
	}
	require.NotContains(t, err.Error(), "\n")

	_, err = startup.Load(t.Context(), installation(fullConfig, preempting), options(t, "--strict-config"), newHasty())
	require.NoError(t, err, "a class that preempts is accepted")
}

// Defect D33: the priority class was resolved after enforceStrict.
func TestStrictConfigurationIncludesThePriorityClass(t *testing.T) {
	for class, message := range map[string]string{"velero-lo": `PriorityClass "velero-lo" does not exist`, "Velero": "not a valid object name"} {
		client := installation(`{"priorityClassName": "` + class + `"}`)
		_, err := startup.Load(t.Context(), client, options(t), newHasty())
		require.NoError(t, err)
		_, err = startup.Load(t.Context(), client, options(t, "--strict-config"), newHasty())
		require.ErrorContains(t, err, message)
		require.ErrorContains(t, err, "not starting because of --strict-config: priorityClassName")
		require.NotContains(t, err.Error(), "; priorityClassName", "it is reported once")
	}
}

var preempting = changed("velero-low", func(class *schedulingv1.PriorityClass) { class.PreemptionPolicy = nil })

func TestAClassThatPreemptsIsReportedAndInForce(t *testing.T) {
	client := installation(`{"priorityClassName": "velero-low", "podLables": {}}`, preempting)
	got, err := startup.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Equal(t, "velero-low", got.Settings().PriorityClass)
	require.Len(t, got.Problems, 2)
	require.Equal(t, config.Risky, got.Problems[1].Reason, "after those of the ConfigMap")
	require.Contains(t, got.Problems[1].String(), `priorityClassName: movers of PriorityClass "velero-low" can preempt the pod`)
	for text, problems := range map[string]int{`{"priorityClassName": "velero-low", "podLabels": {}}`: 1, `{}`: 0} {
		reload := got.Reload(t.Context(), client, options(t), newHasty(), &corev1.ConfigMap{Data: map[string]string{"a": text}})
		require.Empty(t, reload.Added, text)
		require.Len(t, reload.Problems, problems, text)
	}
}

// reviews defines the API server's answers about the agent's permissions.
func reviews(client *fake.Clientset, allowed func(*authorizationv1.ResourceAttributes) bool) {
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(ktesting.CreateAction)
		review, _ := create.GetObject().(*authorizationv1.SelfSubjectAccessReview)
		answer := review.DeepCopy()
		answer.Status.Allowed = allowed(review.Spec.ResourceAttributes)
		return true, answer, nil
	})
}

// No default role lets an agent copy objects. The missing permissions are reported at the start, once for each field.
func TestLoadNamesTheMissingRBACRulesOfCopies(t *testing.T) {
	const text = `{
  "backupPVC": {"gold": {"secretNames": ["key", "ca"]}},
  "restorePVC": {"configMapNames": ["kms"]}
}`
	client := installation(text)
	var requests []authorizationv1.ResourceAttributes
	reviews(client, func(what *authorizationv1.ResourceAttributes) bool {
		requests = append(requests, *what)
		return what.Resource == "configmaps" || what.Verb == "create"
	})
	got, err := startup.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Len(t, got.Problems, 1)
	problem := got.Problems[0]
	require.Equal(t, config.Problem{
		Section: config.SectionBackupPVC, Path: "backupPVC.gold.secretNames", Reason: config.Forbidden, Message: problem.Message,
	}, problem)
	require.Contains(t, problem.Message, "agents may not get secrets key in namespace velero")
	require.Equal(t, []string{"key", "ca"}, got.Config.Movers.BackupClaims["gold"].SecretNames, "the rights may come later")
	require.Equal(t, []authorizationv1.ResourceAttributes{
		{Namespace: "velero", Verb: "create", Resource: "configmaps"},
		{Namespace: "velero", Verb: "get", Resource: "configmaps", Name: "kms"},
		{Namespace: "velero", Verb: "patch", Resource: "configmaps", Name: "kms"},
		{Namespace: "velero", Verb: "create", Resource: "secrets"},
		{Namespace: "velero", Verb: "get", Resource: "secrets", Name: "key"},
	}, requests)
	_, err = startup.Load(t.Context(), client, options(t, "--strict-config"), newHasty())
	require.ErrorContains(t, err, "agents may not get secrets key")

	client = installation(text)
	client.PrependReactor("create", "selfsubjectaccessreviews", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, notAllowed("selfsubjectaccessreviews")
	})
	got, err = startup.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Empty(t, got.Problems, "rules that cannot be reviewed cause no Problem")

	client = installation(`{}`)
	reviews(client, func(*authorizationv1.ResourceAttributes) bool { t.Error("nothing is copied"); return false })
	_, err = startup.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
}
