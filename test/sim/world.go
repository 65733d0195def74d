package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	veleroNamespace = "velero"
	appNamespace    = "app"
	configMapName   = "node-agent-config"
	driver          = "sim.csi.example.com"
	className       = "sim"
	snapshotClass   = "sim-snapshots"
	priorityName    = "backup"
)

// furnish creates what exists before the first agent starts.
func (s *Simulation) furnish() {
	s.Create("namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: veleroNamespace}})
	s.Create("namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: appNamespace, Finalizers: []string{namespaceFinalizer}}})
	for number := range s.plan.Nodes {
		name := fmt.Sprintf("node-%d", number+1)
		s.nodes = append(s.nodes, name)
		s.createNode(name)
	}
	s.Create("configmaps", veleroNamespace, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: configMapName},
		Data:       map[string]string{"config": s.configuration()},
	})
	agents := podTemplate("node-agent", "node-agent", "server")
	s.Create("daemonsets", veleroNamespace, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "node-agent"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: agents.Labels}, Template: agents,
	}})
	server := podTemplate("velero", "server")
	s.Create("deployments", veleroNamespace, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "velero"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: server.Labels}, Template: server,
	}})
	s.Create("backups", veleroNamespace, &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}})
	s.Create("restores", veleroNamespace, &velerov1.Restore{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}})
	s.Create("backupstoragelocations", veleroNamespace, &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	s.createClass()
	if s.plan.Priority {
		s.createPriority()
	}
	s.furnishRepositories()
	s.furnishVelero()
	for _, node := range s.nodes[:s.plan.Foreign] {
		s.Create("datauploads", veleroNamespace, &velerov2alpha1.DataUpload{
			ObjectMeta: metav1.ObjectMeta{Name: foreignPrefix + node}, Spec: velerov2alpha1.DataUploadSpec{DataMover: "example"},
			Status: velerov2alpha1.DataUploadStatus{Phase: velerov2alpha1.DataUploadPhaseInProgress, Node: node},
		})
	}
	s.Create("volumesnapshotclasses", "", &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: snapshotClass}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	})
}

func (s *Simulation) createClass() {
	s.Create("storageclasses", "", &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: className}, Provisioner: driver, VolumeBindingMode: new(s.plan.binding()),
		ReclaimPolicy: new(s.plan.reclaim()),
	})
}

func (s *Simulation) createPriority() {
	s.Create("priorityclasses", "", &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: priorityName}, Value: 1000})
}

func (s *Simulation) createNode(name string) {
	s.Create("nodes", "", &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: s.Now()}}},
	})
}

// configuration returns the content of the agents' ConfigMap.
func (s *Simulation) configuration() string {
	priority := ""
	if s.plan.Priority {
		priority = fmt.Sprintf(`,"priorityClassName":%q`, priorityName)
	}
	class := ""
	if s.plan.Class > 0 {
		class = fmt.Sprintf(`,"storageClasses":{%q:%d}`, className, s.plan.Class)
	}
	return fmt.Sprintf(`{"loadConcurrency":{"globalConfig":%d,"prepareQueueLength":%d,"cluster":%d%s}%s}`, s.plan.Slots, s.plan.Queue, s.plan.Cluster, class, priority)
}

func podTemplate(name string, args ...string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"name": name}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "velero",
			Containers:         []corev1.Container{{Name: name, Image: "velero/velero:v1.18.3", Command: []string{"/velero"}, Args: args}},
		},
	}
}

// Plan is what a seed decides before the first choice: the cluster, the work and the faults. A minimiser removes parts
// of it and plays the same seed again.
type Plan struct {
	Seed         uint64
	Nodes        int
	Slots        int             // transfers InProgress on a node
	Queue        int             // prepared transfers of the cluster; 0: unlimited
	Cluster      int             // transfers of the cluster that are accepted and not moved; 0: unlimited
	Class        int             // those of them of the storage class; 0: unlimited
	Maintenance  int             // maintenance jobs at once
	Repositories int             // of backups, each due for maintenance at once
	Timeout      time.Duration   // of a maintenance job
	Failing      int             // the first runs of each repository that fail, refused ones included
	History      int             // entries of a repository's history that Velero's server keeps; 0: it does not look at it
	Foreign      int             // transfers of another data mover that never end, one on each of the first nodes
	Velero       bool            // one more node has Velero's agent
	Lists        bool            // the API server cannot stream lists, as before Kubernetes 1.32
	Skew         []time.Duration // of each node's clock
	WhenUsed     bool            // volumes are provisioned for the first consumer
	Retain       bool            // the storage class keeps volumes
	Priority     bool            // movers have a priority class
	Adopted      bool            // agents have the arguments of Velero's, and label their pods
	Hurry        bool            // time passes only when nothing else can happen
	Work         []Work
	Faults       []Fault
}

func (p Plan) binding() storagev1.VolumeBindingMode {
	if p.WhenUsed {
		return storagev1.VolumeBindingWaitForFirstConsumer
	}
	return storagev1.VolumeBindingImmediate
}

func (p Plan) reclaim() corev1.PersistentVolumeReclaimPolicy {
	if p.Retain {
		return corev1.PersistentVolumeReclaimRetain
	}
	return corev1.PersistentVolumeReclaimDelete
}

// prepared is how many movers an agent starts or runs at once; 0 is as many as an agent does on its own. Most plans have too
// little work for that, so every third of them without a queue allows two.
func (p Plan) prepared() int {
	if p.Queue == 0 && p.Seed%3 == 0 {
		return 2
	}
	return 0
}

// Kind is a kind of transfer.
type Kind string

// The kinds.
const (
	Backup   Kind = "PodVolumeBackup"
	Restore  Kind = "PodVolumeRestore"
	Upload   Kind = "DataUpload"
	Download Kind = "DataDownload"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Backup, Restore, Upload, Download} }

// Work is a transfer that Velero's server asks for.
type Work struct {
	Kind Kind
	Node int // of the application's pod

	Veleros bool // the pod is on the node with Velero's agent instead
	InPlace bool // a Download restores the volume that its claim had before
	Blocks  bool // the mover of an Upload or Download is Velero's for blocks
}

// onNode reports whether the transfer is of a volume of a pod.
func (w Work) onNode() bool { return w.Kind == Backup || w.Kind == Restore }

// Draw makes the plan of a seed. Each seed also decides which faults are possible at all (swarm testing).
func Draw(seed uint64) Plan {
	random := rand.New(rand.NewPCG(seed, planStream))
	plan := Plan{
		Seed: seed, Nodes: 3, Slots: 1 + random.IntN(maxSlots), Queue: random.IntN(4),
		WhenUsed: random.IntN(2) == 0, Retain: random.IntN(3) == 0, Hurry: random.IntN(2) == 0,
	}
	if random.IntN(3) == 0 {
		plan.Repositories, plan.Maintenance = 1+random.IntN(2), 1+random.IntN(2)
	}
	if plan.Timeout = 12 * time.Hour; random.IntN(3) == 0 {
		plan.Timeout = time.Minute
	}
	if random.IntN(5) == 0 {
		plan.Foreign = 1 + random.IntN(plan.Nodes)
	}
	plan.Lists = random.IntN(3) == 0
	if random.IntN(3) == 0 {
		for range plan.Nodes {
			plan.Skew = append(plan.Skew, time.Duration(random.IntN(2*maxSkew+1)-maxSkew)*time.Minute)
		}
	}
	for range 1 + random.IntN(maxWork) {
		plan.Work = append(plan.Work, Work{Kind: Kinds()[random.IntN(len(Kinds()))], Node: random.IntN(plan.Nodes)})
	}
	plan.Faults = drawFaults(random)
	drawClasses(&plan)
	drawMaintenance(&plan)
	drawLag(&plan)
	drawTakeover(&plan)
	drawVelero(&plan)
	drawHandover(&plan)
	drawPolicy(&plan)
	drawInPlace(&plan)
	drawBlocks(&plan)
	drawLimits(&plan)
	slices.SortStableFunc(plan.Faults, func(a, b Fault) int { return a.Step - b.Step })
	return plan
}

// drawInPlace has one of three Downloads restore an existing volume, which Velero's agents of 1.18 cannot.
func drawInPlace(plan *Plan) {
	random := rand.New(rand.NewPCG(plan.Seed, inPlaceStream))
	for i := range plan.Work {
		plan.Work[i].InPlace = random.IntN(3) == 0 && plan.Work[i].Kind == Download && !plan.Velero
	}
}

// drawBlocks makes one of three other DataUploads and DataDownloads one of Velero's block mover, unless its agents run: those of 1.18 do
// not know it.
func drawBlocks(plan *Plan) {
	random := rand.New(rand.NewPCG(plan.Seed, blocksStream))
	for i, work := range plan.Work {
		plan.Work[i].Blocks = random.IntN(3) == 0 && !work.onNode() && !work.InPlace && !plan.Velero
	}
}

// drawLimits limits the cluster or the storage class in one of four plans, unless Velero's agents run or ran: they do not know these
// limits.
func drawLimits(plan *Plan) {
	random := rand.New(rand.NewPCG(plan.Seed, limitsStream))
	if random.IntN(4) > 0 || plan.Velero || plan.Adopted {
		return
	}
	limit := &plan.Cluster
	if random.IntN(2) == 0 {
		limit = &plan.Class
	}
	*limit = 1 + random.IntN(2)
}

// drawClasses deletes a class in one of five schedules. It draws from a stream of its own, so that the other seeds keep their schedules.
func drawClasses(plan *Plan) {
	const oneIn, steps, picks = 5, 300, 1000
	random := rand.New(rand.NewPCG(plan.Seed, classStream))
	if random.IntN(oneIn) > 0 {
		return
	}
	plan.Priority = random.IntN(2) == 0
	what := deleteClass
	if plan.Priority {
		what = deletePriority
	}
	at := 1 + random.IntN(steps)
	plan.Faults = append(plan.Faults, Fault{Step: at, What: what, Pick: random.IntN(picks)})
	if random.IntN(2) == 0 {
		plan.Faults = append(plan.Faults, Fault{Step: at + random.IntN(steps), What: cancel, Pick: random.IntN(picks)})
	}
}

const (
	maxWork           = 4
	maxSlots          = 2
	maxSkew           = 3 // minutes
	planStream        = 1 // streams of random numbers of one seed
	choiceStream      = 2
	nameStream        = 3
	classStream       = 7
	maintenanceStream = 8
	lagStream         = 9
	takeoverStream    = 10
	veleroStream      = 11
	handoverStream    = 12
	policyStream      = 13
	inPlaceStream     = 14
	blocksStream      = 15
	limitsStream      = 16
)
