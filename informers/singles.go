package informers

import (
	"context"
	"sync"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/api"
)

// singles watches single objects by name, each for a subject: the resource that waits for the object, or the object
// itself.
type singles[S comparable, T Object] struct {
	ctx  context.Context // ends all watches
	open func(namespace string, one Scope) (*Informer[T], error)

	lock     sync.Mutex
	followed map[S]*single[T]
	watches  sync.WaitGroup
}

type single[T Object] struct {
	stop    context.CancelFunc
	key     string
	objects *Informer[T]
	enqueue func()
}

func newSingles[S comparable, T Object](ctx context.Context, open func(namespace string, one Scope) (*Informer[T], error)) *singles[S, T] {
	return &singles[S, T]{ctx: ctx, open: open, followed: map[S]*single[T]{}}
}

// Watch opens the watch for a subject, once. It calls enqueue from another goroutine when it is known whether the object
// exists, and at each of its changes.
func (s *singles[S, T]) Watch(subject S, name types.NamespacedName, enqueue func()) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.followed[subject] != nil || s.ctx.Err() != nil {
		return
	}
	objects, err := s.open(name.Namespace, Scope{Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String()})
	if err == nil {
		_, err = objects.AddHandler(func(T) { enqueue() })
	}
	if err != nil {
		klog.FromContext(s.ctx).Error(err, "Failed to watch object", "object", name)
		return
	}
	ctx, stop := context.WithCancel(s.ctx)
	key := cache.NewObjectName(name.Namespace, name.Name).String()
	s.followed[subject] = &single[T]{stop: stop, key: key, objects: objects, enqueue: enqueue}
	s.watches.Go(func() { objects.run(ctx) })
	s.watches.Go(func() { // an object that does not exist sends no event
		select {
		case <-objects.synced().Done():
			enqueue()
		case <-ctx.Done():
		}
	})
}

// Forget closes the watch of a subject. enqueue may be called once more.
func (s *singles[S, T]) Forget(subject S) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if followed := s.followed[subject]; followed != nil {
		followed.stop()
		delete(s.followed, subject)
	}
}

// get returns the watched object, the zero value if it does not exist; known is false until the watch has synced.
func (s *singles[S, T]) get(subject S) (object T, known bool) {
	s.lock.Lock()
	followed := s.followed[subject]
	s.lock.Unlock()
	if followed == nil || !followed.objects.shared.HasSynced() {
		return object, false
	}
	object, _ = followed.objects.Get(followed.key)
	return object, true
}

// Wait returns when every watch is closed, after the context has ended.
func (s *singles[S, T]) Wait() { s.watches.Wait() }

// WatchConfigMap watches one ConfigMap until the context ends. It calls changed with the current ConfigMap, or nil if
// there is none: once the watch has synced, and after each change. The calls never overlap. It returns an error if the
// watch cannot start, or if RBAC does not allow it: another attempt would be denied too.
func WatchConfigMap(ctx context.Context, client kubernetes.Interface, name types.NamespacedName, changed func(*corev1.ConfigMap)) error {
	one := Scope{Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String()}
	watched, err := New("configuration", client.CoreV1().ConfigMaps(name.Namespace), &corev1.ConfigMap{}, one, noTrim[*corev1.ConfigMap])
	if err != nil {
		return err
	}
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watched.denied = stop
	due := make(chan struct{}, 1) // holds one call, which reads the newest version
	enqueue := func() {
		select {
		case due <- struct{}{}:
		default:
		}
	}
	if _, err := watched.AddHandler(func(*corev1.ConfigMap) { enqueue() }); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { watched.run(watching); close(ended) }()
	defer func() { stop(nil); <-ended }()
	synced := watched.synced().Done()
	for {
		select {
		case <-synced: // a ConfigMap that does not exist sends no event
			synced = nil
			enqueue()
		case <-due:
			current, _ := watched.Get(name.String())
			changed(current)
		case <-watching.Done():
			if ctx.Err() != nil {
				return nil
			}
			return context.Cause(watching)
		}
	}
}

// CoordinatorCaches holds the informers of an agent that coordinates, besides those of all transfers:
//
//	Movers         Velero's namespace: the movers that agents of Lateen created, wherever they run
//	VelerosMovers  Velero's namespace: those that agents of Velero created, by labels that not all of them have
//	Claims         Velero's namespace: the volumes of Movers
//	Targets        all namespaces, by Velero's label: the pods that wait for their volumes to be restored
//	Agents         Velero's namespace, by label: the pods of node-agents
//	Classes        StorageClasses: cluster-scoped, few, and each moved snapshot needs one
type CoordinatorCaches struct {
	group
	Movers        *Informer[*corev1.Pod]
	VelerosMovers []*Informer[*corev1.Pod]
	Claims        *Informer[*corev1.PersistentVolumeClaim]
	Targets       *Informer[*corev1.Pod]
	Agents        *Informer[*corev1.Pod]
	Classes       *Informer[*storagev1.StorageClass]

	// Handled are done when the handlers of Caches.Transfers have received all transfers.
	Handled []cache.DoneChecker
}

// A pod is Pending while its init containers run. So is one that waits for its volumes; few others of those that Velero
// has restored are.
const pendingPods = "status.phase=Pending"

// NewTerm returns the informers of one term; Run starts them. Only one term runs at a time.
func (c *Caches) NewTerm(kube kubernetes.Interface) (*CoordinatorCaches, error) {
	b, owned := group{}, Scope{Labels: api.LabelMover + "=true"}
	pods := kube.CoreV1().Pods(c.namespace)
	term := &CoordinatorCaches{
		Movers:  add(&b, "all mover pods", pods, &corev1.Pod{}, owned, trimPod),
		Claims:  add(&b, "all claims of movers", kube.CoreV1().PersistentVolumeClaims(c.namespace), &corev1.PersistentVolumeClaim{}, owned, noTrim[*corev1.PersistentVolumeClaim]),
		Targets: add(&b, "pods that wait for a restore", kube.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{}, Scope{Labels: velerov1.RestoreNameLabel, Fields: pendingPods}, trimPod),
		Agents:  add(&b, "pods of node-agents", pods, &corev1.Pod{}, Scope{Labels: api.LabelRole + "=" + api.RoleNodeAgent}, trimAgent),
		Classes: add(&b, "storageclasses", kube.StorageV1().StorageClasses(), &storagev1.StorageClass{}, Scope{}, noTrim[*storagev1.StorageClass]),
	}
	for _, label := range []string{api.LabelPodGroup, velerov1.PVBLabel, velerov1.PVRLabel} {
		term.VelerosMovers = append(term.VelerosMovers,
			add(&b, "mover pods of Velero's agents with label "+label, pods, &corev1.Pod{}, Scope{Labels: label + ",!" + api.LabelMover}, trimPod))
	}
	for _, kind := range c.kinds() {
		term.Handled = append(term.Handled, kind.widen(&b)...)
	}
	term.group = b
	return term, b.err
}

// SetCoordinator sets the caches of the current term, which have synced; nil ends it.
func (c *Caches) SetCoordinator(term *CoordinatorCaches) {
	c.coordinator.Store(term)
	for _, kind := range c.kinds() {
		kind.use(term != nil)
	}
}

// Coordinator returns the informers of the current term; nil if this agent does not coordinate.
func (c *Caches) Coordinator() *CoordinatorCaches { return c.coordinator.Load() }

// StorageClass returns the cached class of that name; nil if there is none, or if this agent does not coordinate.
func (c *Caches) StorageClass(name string) *storagev1.StorageClass {
	term := c.Coordinator()
	if term == nil {
		return nil
	}
	class, _ := term.Classes.Get(name)
	return class
}

// Nodes watches single Nodes. A coordinator needs the Ready condition of only a few, and every Node updates its
// status each few minutes.
type Nodes struct {
	*singles[string, *corev1.Node]
}

// NewNodes watches Nodes until the context ends.
func NewNodes(ctx context.Context, client kubernetes.Interface) *Nodes {
	return &Nodes{newSingles[string](ctx, func(_ string, one Scope) (*Informer[*corev1.Node], error) {
		return New("node", client.CoreV1().Nodes(), &corev1.Node{}, one, trimNode)
	})}
}

// Watch opens the watch of a Node, once. It calls enqueue from another goroutine when it is known whether the Node
// exists, and at each of its changes.
func (n *Nodes) Watch(name string, enqueue func()) {
	n.singles.Watch(name, types.NamespacedName{Name: name}, enqueue)
}

// Node returns the Node of that name, or nil if it does not exist; known is false until the watch has synced.
func (n *Nodes) Node(name string) (node *corev1.Node, known bool) { return n.get(name) }

// Reports holds the Events in which movers report progress, in Velero's namespace. Only a coordinator watches them. The API
// server has no watch cache for Events: each further watch would have it read all of them from etcd.
type Reports struct {
	group
	Events *Informer[*corev1.Event]
}

// progressReason is the reason of these Events (velero-protocol 3.3).
const progressReason = "Data-Path-Progress"

// NewReports returns the informer of one term; Run starts it.
func NewReports(kube kubernetes.Interface, namespace string) (*Reports, error) {
	b := group{}
	reports := &Reports{Events: add(&b, "Events of movers", kube.CoreV1().Events(namespace), &corev1.Event{},
		Scope{Fields: fields.OneTermEqualSelector("reason", progressReason).String()}, noTrim[*corev1.Event])}
	if b.err != nil {
		return nil, b.err
	}
	reports.group = b
	return reports, reports.Events.Index(byAbout, func(event *corev1.Event) []string { return []string{string(event.InvolvedObject.UID)} })
}

// About returns the Events about the object of that UID.
func (r *Reports) About(uid types.UID) []*corev1.Event { return r.Events.ByIndex(byAbout, string(uid)) }

// RepositoryCaches holds the informers of an agent that coordinates, for the maintenance of repositories:
//
//	Repositories   Velero's namespace
//	Locations      Velero's namespace
//	Jobs           Velero's namespace, by label: all maintenance jobs, those of Velero's server too
//	TerminalPods   the pods of these jobs that have terminated
type RepositoryCaches struct {
	group
	Repositories *Informer[*velerov1.BackupRepository]
	Locations    *Informer[*velerov1.BackupStorageLocation]
	Jobs         *Informer[*batchv1.Job]
	TerminalPods *Informer[*corev1.Pod]
}

// terminalPods selects pods in a terminal phase. A pod in phase Unknown may still run.
const terminalPods = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"

// NewRepositoryCaches returns the informers of one term; Run starts them. jobLabel is the label key of maintenance
// jobs, with any value.
func NewRepositoryCaches(kube kubernetes.Interface, velero *Clientset, namespace, jobLabel string) (*RepositoryCaches, error) {
	b := group{}
	created := &RepositoryCaches{
		Repositories: add(&b, "backuprepositories", velero.BackupRepositories(namespace), &velerov1.BackupRepository{}, Scope{}, noTrim[*velerov1.BackupRepository]),
		Locations:    add(&b, "backupstoragelocations", velero.BackupStorageLocations(namespace), &velerov1.BackupStorageLocation{}, Scope{}, noTrim[*velerov1.BackupStorageLocation]),
		Jobs:         add(&b, "maintenance jobs", kube.BatchV1().Jobs(namespace), &batchv1.Job{}, Scope{Labels: jobLabel}, noTrim[*batchv1.Job]),
		TerminalPods: add(&b, "terminated pods of maintenance jobs", kube.CoreV1().Pods(namespace), &corev1.Pod{}, Scope{Labels: jobLabel, Fields: terminalPods}, trimToOwner),
	}
	created.group = b
	return created, b.err
}

// BackupRepositories returns the client for one namespace.
func (c *Clientset) BackupRepositories(namespace string) *Client[*velerov1.BackupRepository, *velerov1.BackupRepositoryList] {
	return clientOf[velerov1.BackupRepository, velerov1.BackupRepositoryList](c, c.v1, "backuprepositories", namespace)
}

// BackupStorageLocations returns the client for one namespace.
func (c *Clientset) BackupStorageLocations(namespace string) *Client[*velerov1.BackupStorageLocation, *velerov1.BackupStorageLocationList] {
	return clientOf[velerov1.BackupStorageLocation, velerov1.BackupStorageLocationList](c, c.v1, "backupstoragelocations", namespace)
}
