package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
)

// classes plays the priority classes of a cluster and the admission of pods.
type classes struct {
	exist         bool   // the configured class does
	reads         int    // GETs of it
	readError     error  // answers them
	refusal       error  // answers a pod with the class
	globalDefault string // class of pods without one
	removed       bool   // a webhook removes the class
	value         int32
}

func (c *classes) get() (bool, runtime.Object, error) {
	c.reads++
	switch {
	case c.readError != nil:
		return true, nil, c.readError
	case !c.exist:
		return true, nil, apierrors.NewNotFound(schedulingv1.Resource("priorityclasses"), "low")
	}
	return true, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: c.value}, nil
}

// admit returns the pod as the API server would create it.
func (c *classes) admit(pod *corev1.Pod) (*corev1.Pod, error) {
	pod = pod.DeepCopy()
	switch wanted := pod.Spec.PriorityClassName != ""; {
	case wanted && c.refusal != nil:
		return nil, c.refusal
	case wanted && !c.exist:
		return nil, apierrors.NewForbidden(corev1.Resource("pods"), pod.Name, errors.New("no PriorityClass with name low was found"))
	case wanted && c.removed, !wanted:
		pod.Spec.PriorityClassName = c.globalDefault
	}
	return pod, nil
}

// cachesOf returns the caches of the agent on node n1 with a client of Velero's resources that reaches no API server.
func cachesOf(t *testing.T, kube kubernetes.Interface) (*informers.Clientset, *informers.Caches) {
	t.Helper()
	velero, err := informers.NewClientset(&rest.Config{Host: "http://127.0.0.1:1"})
	require.NoError(t, err)
	caches, err := informers.NewCaches(kube, velero, "velero", "n1")
	require.NoError(t, err)
	return velero, caches
}

// agentOf returns the parts of an agent that give movers their class, and a function that creates a mover and returns its class.
func agentOf(t *testing.T, cluster *classes, registry *prometheus.Registry) (p *assembly, clock *clocktesting.FakeClock, events *record.FakeRecorder, mover func() string) {
	t.Helper()
	target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data"}}
	client := fake.NewClientset(target)
	client.PrependReactor("get", "priorityclasses", func(ktesting.Action) (bool, runtime.Object, error) { return cluster.get() })
	created := ""
	client.PrependReactor("create", "pods", func(action ktesting.Action) (bool, runtime.Object, error) {
		create := action.(ktesting.CreateActionImpl)
		require.Equal(t, "velero", create.GetNamespace())
		pod, err := cluster.admit(create.GetObject().(*corev1.Pod))
		if err == nil && len(create.CreateOptions.DryRun) == 0 {
			created = pod.Spec.PriorityClassName + pod.Labels["team"]
		}
		return true, pod, err
	})
	velero, caches := cachesOf(t, client)
	clock, events = clocktesting.NewFakeClock(time.Unix(0, 0)), record.NewFakeRecorder(20)
	p = &assembly{
		Options: Options{Flags: startup.Options{Namespace: "velero", NodeAgentConfigMap: "agents"}, Clock: clock, Metrics: metrics.New(registry, "v1", "n1")},
		clients: &clients{kube: client, velero: velero}, caches: caches, recorder: events,
		startup:   &startup.Startup{Config: config.Defaults(), Templates: map[corev1.OSName]objects.Template{corev1.Linux: {Image: "velero"}}},
		preparing: capacity.NewPreparation(1, clock), nodeSlots: capacity.NewNodeSlots(capacity.Same(1)),
	}
	p.class, p.own = &moverClass{assembly: p}, p.newOwnState()
	p.exposing = p.exposer()
	movers := 0
	return p, clock, events, func() string {
		movers++
		name := fmt.Sprintf("dd-%d", movers)
		_, err := p.exposing.Ensure(t.Context(), objects.MoverSpec{
			GVK: api.DataDownload().GVK, Namespace: "velero", Name: name, UID: types.UID(name), OS: corev1.Linux, Restores: true,
			Source: objects.Source{Target: &objects.TargetSource{Namespace: "app", Claim: "data"}},
		})
		require.NoError(t, err)
		return created
	}
}

// reporter calls a function for each Event.
type reporter struct {
	record.EventRecorder
	report func(reason string)
}

func (r reporter) Event(_ runtime.Object, _, reason, _ string) { r.report(reason) }

func TestAnEditIsReportedWhenItsClassIsInForce(t *testing.T) {
	p, _, _, mover := agentOf(t, &classes{exist: true}, prometheus.NewPedanticRegistry())
	p.startup.Config.Movers.Labels = map[string]string{"team": "storage"}
	p.exposing = p.exposer()
	require.Equal(t, "storage", mover(), "at the start")
	var classes []string
	p.recorder = reporter{report: func(reason string) {
		if reason == EventConfigApplied {
			classes = append(classes, mover())
		}
	}}
	p.follower().changed(t.Context(), &corev1.ConfigMap{Data: map[string]string{"config": `{"priorityClassName":"low"}`}})
	require.Equal(t, []string{"low"}, classes)
}

// TestEditsAreInForceAndReported plays edits of one ConfigMap, one after the other.
func TestEditsAreInForceAndReported(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	p, _, events, mover := agentOf(t, &classes{exist: true}, registry)
	p.Flags.NodeName = "n1"
	const (
		applied  = "Normal ConfigApplied Applied ConfigMap agents without a restart"
		rejected = "Warning ConfigNotApplied Rejected the edit of ConfigMap agents; the previous configuration stays in force. " +
			"Correct configmaps velero/agents (line 1, column 1): invalid JSON: unexpected end of JSON input"
		low    = `{"priorityClassName":"low"`
		limits = low + `,"podLabels":{"team":"storage"},"loadConcurrency":{"globalConfig":3}`
	)
	c := p.follower()
	edit := func(text string) { c.changed(t.Context(), &corev1.ConfigMap{Data: map[string]string{"config": text}}) }
	c.changed(t.Context(), nil) // there was none
	for _, test := range []struct {
		text   string
		events []string
		mover  string
		slots  int
		counts [3]float64 // rejected, problems, reported problems
	}{
		{low + `}`, []string{applied + ": priorityClassName, loadConcurrency"}, "low", 1, [3]float64{}},
		{low + `}`, nil, "low", 1, [3]float64{}},
		{limits + `}`, []string{applied + ": loadConcurrency, podLabels"}, "lowstorage", 3, [3]float64{}},
		{`{`, []string{rejected}, "lowstorage", 3, [3]float64{1, 1, 1}},
		{limits + `,"restorePVC":{"ignoreDelayBinding":true}}`, []string{applied, "Warning ConfigNotApplied Restart the agents to apply restorePVC"}, "lowstorage", 3, [3]float64{0, 0, 1}},
		{limits + `}`, []string{applied}, "lowstorage", 3, [3]float64{0, 0, 1}},
	} {
		before := sums(t, registry)["lateen_config_hash"]
		edit(test.text)
		var sent []string
		for len(events.Events) > 0 {
			sent = append(sent, <-events.Events)
		}
		require.Equal(t, test.events, sent)
		_, notApplied, _ := strings.Cut(strings.Join(sent, ""), "Warning ConfigNotApplied ")
		require.Equal(t, notApplied, p.own.wanted[api.AnnotationConfigNotApplied])
		found := sums(t, registry)
		counts := [3]float64{found["lateen_config_rejected"], found["lateen_config_problems"], found["lateen_config_fallbacks_total"]}
		require.Equal(t, test.counts, counts)
		require.Equal(t, strings.Contains(strings.Join(sent, ""), "restart: "), before != found["lateen_config_hash"])
		require.Equal(t, test.mover, mover())
		require.Equal(t, []int{test.slots, test.slots, test.slots}, []int{p.nodeSlots.On("n1").Limit(), p.nodeSlots.On("n2").Limit(), p.config.Load().GlobalConcurrency})
		require.True(t, p.preparing.KnowsSlotsOf("n1"))
	}
	require.Equal(t, 3+2*3+2, places(p.preparing, "n2"))
	c.reportDenied(t.Context(), types.NamespacedName{Name: "agents"}, errors.New("forbidden"))
	c.reportAllowed()
	require.Empty(t, p.own.wanted[api.AnnotationConfigNotApplied], "restorePVC is as at the start again")
	p.class.rejected(t.Context(), &corev1.Pod{}, "low", priority.Rejected)
	edit(limits + `,"podAnnotations":{"a":"b"}}`)
	require.Equal(t, "storage", mover(), "an edit does not bring back a class that was rejected")
}

func TestAnEditOfTheLimitsIsInForceAtOnce(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	p, _, _, _ := agentOf(t, &classes{}, registry)
	p.Metrics.TransferLimits(1, map[string]int{"replaced": 1})
	p.follower().changed(t.Context(), &corev1.ConfigMap{Data: map[string]string{"config": `{"loadConcurrency":{"cluster":2,"storageClasses":{"nfs":1}}}`}})
	accepts := func(uid types.UID, class string) bool {
		return p.preparing.TryAcquire(capacity.Transfer{UID: uid, StorageClass: class}, func() {})
	}
	require.Equal(t, []bool{true, false, true, false}, []bool{accepts("1", "nfs"), accepts("2", "nfs"), accepts("3", ""), accepts("4", "")})
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`# HELP lateen_transfer_limit Limit of transfers that are accepted and not moved yet, of a storage class or, without one, of the cluster; 0 for no limit.
# TYPE lateen_transfer_limit gauge
lateen_transfer_limit{storage_class=""} 2
lateen_transfer_limit{storage_class="nfs"} 1
`), "lateen_transfer_limit"))
}

// TestPriorityClass plays each row of docs/priority-classes.md: the class is resolved, a mover is created, something
// changes, a mover is created at once and another one after resolveInterval.
func TestPriorityClass(t *testing.T) {
	scope := apierrors.NewInternalError(errors.New("insufficient quota to match these scopes: [{PriorityClass In [low]}]"))
	policy := apierrors.NewForbidden(corev1.Resource("pods"), "dd", errors.New("no class may preempt"))
	unreadable := apierrors.NewForbidden(schedulingv1.Resource("priorityclasses"), "low", nil)
	refused := errors.New("connection refused")
	for name, test := range map[string]struct {
		cluster classes
		none    bool // no class is configured
		later   func(*classes)
		movers  string // the class in force, and those of the three
		reason  priority.Reason
	}{
		"in force":                  {cluster: classes{exist: true}, movers: "low low low low"},
		"missing":                   {movers: "- - - -", reason: priority.NotFound},
		"missing at first":          {later: func(c *classes) { c.exist = true }, movers: "- - - low", reason: priority.NotFound},
		"missing, then unanswered":  {later: func(c *classes) { c.exist, c.readError = true, refused }, movers: "- - - -", reason: priority.NotFound},
		"deleted":                   {cluster: classes{exist: true}, later: func(c *classes) { c.exist = false }, movers: "low low - -", reason: priority.NotFound},
		"forbidden to read":         {cluster: classes{exist: true, readError: unreadable}, movers: "low low low low"},
		"forbidden and missing":     {cluster: classes{readError: unreadable}, movers: "- - - -", reason: priority.NotFound},
		"forbidden, made later":     {cluster: classes{readError: unreadable}, later: func(c *classes) { c.exist = true }, movers: "- - - low", reason: priority.NotFound},
		"unanswered":                {cluster: classes{exist: true, readError: refused}, movers: "low low low low"},
		"none, beside a default":    {none: true, cluster: classes{globalDefault: "standard"}, movers: "- standard standard standard"},
		"missing, beside a default": {cluster: classes{globalDefault: "standard"}, movers: "- standard standard standard", reason: priority.NotFound},
		"outside quotas":            {cluster: classes{exist: true, refusal: scope}, later: func(c *classes) { c.refusal = nil }, movers: "- - - low", reason: priority.QuotaScope},
		"outside a later quota":     {cluster: classes{exist: true}, later: func(c *classes) { c.refusal = scope }, movers: "low low - -", reason: priority.QuotaScope},
		"refused by a policy":       {cluster: classes{exist: true, refusal: policy}, later: func(c *classes) { c.refusal = nil }, movers: "- - - low", reason: priority.Rejected},
		"removed by a webhook":      {cluster: classes{exist: true, removed: true}, later: func(c *classes) { c.removed = false }, movers: "- - - low", reason: priority.Rejected},
		"replaced by a webhook":     {cluster: classes{exist: true, removed: true, globalDefault: "high"}, movers: "- high high high", reason: priority.Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, registry := test.cluster, prometheus.NewPedanticRegistry()
			p, clock, events, mover := agentOf(t, &cluster, registry)
			ctx, class := t.Context(), "low"
			if test.none {
				class = ""
			}
			p.class.set(ctx, priority.Resolve(ctx, class, func(context.Context, string) (*schedulingv1.PriorityClass, error) {
				_, _, err := cluster.get()
				return nil, err
			}))
			movers := []string{p.class.class.Effective, mover()}
			if test.later != nil {
				test.later(&cluster)
			}
			movers = append(movers, mover())
			clock.Step(resolveInterval)
			movers = append(movers, mover())
			reads := cluster.reads
			mover()
			require.Equal(t, reads, cluster.reads, "read twice in resolveInterval")
			require.Equal(t, test.reason != "", reads > 1, "only a class that is not in force is read again")
			for i, class := range movers {
				movers[i] = cmp.Or(class, "-")
			}
			require.Equal(t, test.movers, strings.Join(movers, " "))
			const fallbacks = "lateen_priority_class_fallbacks_total"
			reported := ""
			if test.reason != "" {
				require.Regexp(t, `^Warning PriorityClassNotInForce .*\(`+string(test.reason)+`\): `, <-events.Events)
				reported = "# HELP " + fallbacks + " Times that a configured priority class was not used, by consumer and reason.\n# TYPE " + fallbacks + " counter\n" +
					fallbacks + `{consumer="data-mover",reason="` + string(test.reason) + "\"} 1\n"
			}
			require.Empty(t, events.Events)
			require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(reported), fallbacks))
			require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(
				"# HELP lateen_priority_class_info The configured priority class and the one in force, by consumer; always 1.\n# TYPE lateen_priority_class_info gauge\n"+
					fmt.Sprintf("lateen_priority_class_info{configured=%q,consumer=%q,effective=%q} 1\n", class, priority.DataMover, p.class.class.Effective)), "lateen_priority_class_info"))
			require.Equal(t, p.class.class.Reason, priority.Reason(p.own.wanted[api.AnnotationClassFallback]))
		})
	}
}

func TestAnAgentWithoutMoversLearnsThatItsClassExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, registry := classes{value: 1}, prometheus.NewPedanticRegistry()
		p, clock, events, _ := agentOf(t, &cluster, registry)
		p.class.set(t.Context(), priority.Fallback("low", priority.NotFound))
		go p.class.run(t.Context())
		synctest.Wait()
		clock.Step(idleInterval)
		synctest.Wait()
		require.Empty(t, p.class.class.Effective)
		cluster.exist = true
		clock.Step(idleInterval)
		synctest.Wait()
		require.Equal(t, "low", p.class.class.Effective)
		require.NotContains(t, <-events.Events, "preempt")
		require.Contains(t, <-events.Events, "can preempt the pod")
		require.InDelta(t, 1, sums(t, registry)["lateen_config_problems"], 0, "as if it had existed at the start")
		p.class.rejected(t.Context(), &corev1.Pod{}, "low", priority.Rejected)
		require.Zero(t, sums(t, registry)["lateen_config_problems"], "no mover can preempt")
	})
}

func TestAnAnswerIsIgnoredIfTheClassHasChangedMeanwhile(t *testing.T) {
	for _, later := range []priority.Resolution{priority.Fallback("high", priority.Rejected), {Configured: "low", Effective: "low"}} {
		p, clock, _, _ := agentOf(t, &classes{}, prometheus.NewPedanticRegistry())
		p.class.set(t.Context(), priority.Fallback("low", priority.Rejected))
		p.clients.kube.(*fake.Clientset).PrependReactor("get", "priorityclasses", func(ktesting.Action) (bool, runtime.Object, error) {
			p.class.setLocked(t.Context(), later)
			return false, nil, nil
		})
		clock.Step(resolveInterval)
		p.class.refresh(t.Context())
		require.Equal(t, later, p.class.class)
	}
}
