package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/seeds"
)

func TestMain(m *testing.M) {
	fixJitter()
	const garbage = 400 // schedules are short and hold little memory: collecting it took a third of the time
	debug.SetGCPercent(garbage)
	os.Exit(m.Run())
}

// played is a schedule that has ended.
type played struct {
	*trace

	ends    map[int]string
	records []cluster.Record
}

// play plays a plan and returns what was broken.
func play(t *testing.T, plan Plan) (end played, broken error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(plan)
		broken = s.run()
		end = played{s.trace, s.ends(t), s.records}
	})
	return end, broken
}

func TestASeedReplaysToTheSameTrace(t *testing.T) {
	seeds.Each(t, 5, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		t.Parallel()
		plan := Draw(random.Uint64())
		first, _ := play(t, plan)
		for range 3 {
			again, _ := play(t, plan)
			require.Equal(t, first.String(), again.String(), "plan %+v", plan)
		}
	})
}

var (
	runs  = flag.Int("runs", 150, "fresh schedules")
	first = flag.Bool("first", false, "end with the first schedule that fails, and do not minimize its plan")
)

// enough schedules use every right that the simulation can use.
const enough = 200

// unsimulated are the rights that agents need for what no schedule has: objects that Velero's agents of the release before made,
// --finished-ttl.
var unsimulated = []string{
	"get backups.velero.io in the agents' namespace",
	"get restores.velero.io in the agents' namespace",
	"delete datauploads.velero.io in the agents' namespace",
	"delete datadownloads.velero.io in the agents' namespace",
	"patch persistentvolumeclaims in the agents' namespace",
	"patch volumesnapshots.snapshot.storage.k8s.io in the agents' namespace",
}

func described(grants []rights.Grant) (all []string) {
	for _, grant := range grants {
		all = append(all, grant.String())
	}
	return all
}

func TestSchedules(t *testing.T) {
	start := time.Now()
	var played, steps atomic.Int64
	var lock sync.Mutex
	granted := rights.Grants(deploy.NamespaceRules(), deploy.ClusterRules())
	unused := granted
	t.Cleanup(func() {
		if played.Load() >= enough && !t.Failed() {
			require.Equal(t, unsimulated, described(unused), "deploy/base/rbac.yaml gives rights that no schedule uses, or the list has one that a schedule uses")
		}
		t.Logf("%d schedules with %d choices in %s", played.Load(), steps.Load(), time.Since(start).Round(time.Millisecond))
	})
	all := t
	seeds.Each(t, *runs, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		t.Parallel()
		if *first && all.Failed() {
			return
		}
		plan := Draw(random.Uint64())
		trace, broken := compare(t, plan)
		played.Add(1)
		lock.Lock()
		unused = rights.Unused(unused, deploy.ServiceAccountName, trace.records)
		lock.Unlock()
		require.Empty(t, described(rights.Missing(granted, deploy.ServiceAccountName, trace.records)), "deploy/base/rbac.yaml does not give them")
		steps.Add(int64(len(trace.lines)))
		if *first {
			require.NoError(t, broken)
		}
		if broken == nil {
			return
		}
		least := Minimize(plan, func(less Plan) error {
			_, err := compare(t, less)
			return err
		})
		trace, smallest := compare(t, least)
		require.NoError(t, broken, "minimized to %+v: %v\n%s", least, smallest, trace)
	})
}

// differs is what two schedules of a plan need not have in common: UIDs, times, and what API server and scheduler choose.
var differs = regexp.MustCompile(`[0-9a-f]{8}-0000-4000-8000-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[0-9:.]+Z|(-)[bcdfghjklmnpqrstvwxz2456789]{5}\b|node-(\d|velero)`)

// ends returns each Completed transfer by the number of its work, as Velero's server sees it at the end. One that was canceled
// too late says so in its spec, and is left out. So is a restore that says what a policy refused.
func (s *Simulation) ends(t *testing.T) map[int]string {
	t.Helper()
	all := map[int]string{}
	for _, j := range s.work {
		object := s.API.Find(j.transfer)
		if object == nil || j.byVelero || viewOf(object).phase != "Completed" || viewOf(object).cancel || viewOf(object).reportsRefusal() ||
			object.GetLabels()[api.LabelDone] == "" && slices.Contains(s.faults.met, killAgents) { // nobody cleans up
			continue
		}
		annotations := object.GetAnnotations()
		if delete(annotations, api.AnnotationRestarts); len(annotations) == 0 {
			annotations = nil
		}
		seen, err := json.Marshal(map[string]any{"labels": object.GetLabels(), "annotations": annotations, "finalizers": object.GetFinalizers(),
			"spec": object.Object["spec"], "status": object.Object["status"]})
		require.NoError(t, err)
		all[j.number] = strings.ReplaceAll(differs.ReplaceAllString(string(seen), "${1}*"), object.GetName(), "*")
	}
	return all
}

// compare plays a plan with and without its faults.
func compare(t *testing.T, plan Plan) (played, error) {
	t.Helper()
	with, broken := play(t, plan)
	if broken != nil || len(with.ends) == 0 || len(plan.Faults) == 0 {
		return with, broken
	}
	plan.Faults = nil
	without, broken := play(t, plan)
	if broken != nil {
		return without, fmt.Errorf("without faults: %w", broken)
	}
	return with, with.equal(without)
}

// equal requires that what is Completed in two schedules looks the same to Velero's server.
func (p played) equal(other played) error {
	for number, end := range p.ends {
		if want, both := other.ends[number]; both && end != want {
			return fmt.Errorf("work %d ends as\n%s\nand without faults as\n%s", number, end, want)
		}
	}
	return nil
}

// onePerKind returns a plan with one transfer of each kind, and one that restores in place, and one of blocks. That of a backup has a repository to
// maintain, too.
func onePerKind() map[Kind]Plan {
	plans := map[Kind]Plan{
		"in place": {Nodes: 1, Slots: 1, Hurry: true, Work: []Work{{Kind: Download, InPlace: true}}},
		"blocks":   {Nodes: 1, Slots: 1, Hurry: true, Work: []Work{{Kind: Download, Blocks: true}}},
	}
	for _, kind := range Kinds() {
		plans[kind] = Plan{Nodes: 1, Slots: 1, Hurry: true, Work: []Work{{Kind: kind}}}
	}
	backup := plans[Backup]
	backup.Repositories, backup.Maintenance, backup.Timeout = 1, 1, time.Hour
	plans[Backup] = backup
	return plans
}

// TestAnAgentMayDieAtAnyStep kills the agent before each choice of a schedule.
func TestAnAgentMayDieAtAnyStep(t *testing.T) {
	everyStep(t, func(string) []Fault { return []Fault{{What: killAgent}} })
}

func TestAnAgentMayDieBeforeAndAfterEachWrite(t *testing.T) {
	everyStep(t, atWrites(Fault{What: killAgent}, Fault{What: killAgent, Step: 1}))
}

var (
	request = regexp.MustCompile(`node-\d+#\d+: (GET|POST|PUT|PATCH|DELETE) /`)
	writes  = regexp.MustCompile(`node-\d+#\d+: (POST|PUT|PATCH|DELETE) /`)
)

// atWrites returns the faults for each choice that is a write of an agent.
func atWrites(faults ...Fault) func(choice string) []Fault {
	return func(choice string) []Fault {
		if !writes.MatchString(choice) {
			return nil
		}
		return faults
	}
}

// TestAnyRequestMayFail has each request of a schedule fail in each way.
func TestAnyRequestMayFail(t *testing.T) {
	everyStep(t, func(choice string) (all []Fault) {
		if !request.MatchString(choice) {
			return nil
		}
		for _, what := range []string{loseRequest, loseAnswer, conflict, tooMany, internal, unavailable} {
			all = append(all, Fault{What: what})
		}
		return all
	})
}

// TestATransferMayBeDeletedBeforeAnyWrite deletes a transfer in each of its phases, and one that waits for its turn.
func TestATransferMayBeDeletedBeforeAnyWrite(t *testing.T) {
	everyStep(t, atWrites(Fault{What: deleteIt}))
	plan := Plan{Nodes: 1, Slots: 1, Queue: 1, Hurry: true, Work: []Work{{Kind: Upload}, {Kind: Upload}}}
	undisturbed, broken := play(t, plan)
	require.NoError(t, broken, "%s", undisturbed)
	for pick := range plan.Work {
		atEachStep(t, plan, undisturbed, atWrites(Fault{What: deleteIt, Pick: pick}))
	}
}

// TestANewCoordinatorKeepsTheLimitOfTheCluster kills each agent before each write.
func TestANewCoordinatorKeepsTheLimitOfTheCluster(t *testing.T) {
	plan := Plan{Nodes: 2, Slots: 2, Cluster: 1, Hurry: true, Work: []Work{{Kind: Download}, {Kind: Upload}, {Kind: Backup, Node: 1}}}
	undisturbed, broken := play(t, plan)
	require.NoError(t, broken, "%s", undisturbed)
	for node := range plan.Nodes {
		require.Positive(t, atEachStep(t, plan, undisturbed, atWrites(Fault{What: killAgent, Pick: node})))
	}
}

// everyStep plays each plan of onePerKind again with one fault at each of its steps, undisturbed and canceled.
func everyStep(t *testing.T, faults func(choice string) []Fault) {
	t.Helper()
	var count atomic.Int64
	t.Cleanup(func() { t.Logf("%d schedules", count.Load()) })
	for kind, plan := range onePerKind() {
		undisturbed, broken := play(t, plan)
		require.NoError(t, broken, "%s", undisturbed)
		early := Fault{Step: begins(t, undisturbed) + 1, What: cancel}
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			count.Add(atEachStep(t, plan, undisturbed, faults))
		})
		t.Run(string(kind)+" canceled", func(t *testing.T) {
			t.Parallel()
			plan.Faults = []Fault{early}
			canceled, broken := play(t, plan)
			require.NoError(t, broken, "%s", canceled)
			require.Empty(t, canceled.ends, "%s", canceled)
			count.Add(atEachStep(t, plan, canceled, faults))
		})
	}
}

// begins returns the step at which the mover begins.
func begins(t *testing.T, of played) (step int) {
	t.Helper()
	at := slices.IndexFunc(of.lines, func(choice string) bool { return strings.HasSuffix(choice, ": begins") })
	require.NotEqual(t, -1, at)
	_, err := fmt.Sscan(of.lines[at], &step)
	require.NoError(t, err)
	return step
}

// atEachStep plays a plan again for each fault of each choice. Step 0 of a fault is that choice. It returns the number of schedules.
func atEachStep(t *testing.T, plan Plan, without played, faults func(choice string) []Fault) (count int64) {
	t.Helper()
	given := plan.Faults
	for _, choice := range without.lines {
		var step int
		if _, err := fmt.Sscan(choice, &step); err != nil {
			continue // a note on the choice before
		}
		for _, fault := range faults(choice) {
			fault.Step += step
			plan.Faults = append(slices.Clone(given), fault)
			trace, broken := play(t, plan)
			require.NoError(t, broken, "%+v\n%s", plan, trace)
			require.NoError(t, trace.equal(without), "%+v\n%s", plan, trace)
			count++
		}
	}
	return count
}

// TestAnAdmissionPolicyMayRefuseEachWrite refuses each write of agents for longer than any deadline of a transfer, one that
// is undisturbed and one that is canceled.
func TestAnAdmissionPolicyMayRefuseEachWrite(t *testing.T) {
	for kind, plan := range onePerKind() {
		for _, faults := range [][]Fault{nil, {{Step: 85, What: cancel}}} {
			for i, grant := range refusable() {
				plan := plan // that of a parallel test
				plan.Adopted = grant.Resource == "pods" && grant.Verb == "patch"
				plan.Nodes, plan.Faults = 2, append(slices.Clone(faults), Fault{Step: 1, What: refuseWrites, Pick: i})
				t.Run(string(kind)+" "+grant.String(), func(t *testing.T) {
					t.Parallel()
					trace, broken := play(t, plan)
					require.NoError(t, broken, "%+v\n%s", plan, trace)
				})
			}
		}
	}
}

// TestANodeMayBeSilentForEver silences each node before each write of a restore, for ever. Its mover works on.
func TestANodeMayBeSilentForEver(t *testing.T) {
	var count atomic.Int64
	t.Cleanup(func() { t.Logf("%d schedules", count.Load()) })
	for name, faults := range map[string][]Fault{"undisturbed": nil, "canceled": {{Step: 85, What: cancel}}} {
		plan := Plan{Nodes: 2, Slots: 1, Hurry: true, Work: []Work{{Kind: Download}}, Faults: faults}
		without, broken := play(t, plan)
		require.NoError(t, broken, "%s", without)
		for node := range plan.Nodes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				count.Add(atEachStep(t, plan, without, atWrites(Fault{What: silenceEver, Pick: node})))
			})
		}
	}
}

// TestATransferKeepsWithinItsBudgetOfRequests compares schedules of one and of several transfers on one node, without faults:
// what an agent sends at its start is in both. Kubernetes Events, Leases and watches are not counted.
func TestATransferKeepsWithinItsBudgetOfRequests(t *testing.T) {
	const more, schedules = 5, 20
	for kind, most := range map[Kind]struct{ writes, reads, conflicts int }{
		// An upload that waits for its turn gets its finalizer before it is accepted. Other controllers also change and delete its
		// VolumeSnapshotContents: a write that the API server refuses for that is repeated until the cache has the change. A Download
		// reads its VolumeAttachment, and once more its volume and target if it had to wait for that.
		Backup: {7, 1, 0}, Restore: {7, 1, 0}, Upload: {17, 5, 2}, Download: {14, 13, 0},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			writes := 0
			for seed := range uint64(schedules) {
				oneWrites, oneReads := requests(t, seed, kind, 1)
				allWrites, allReads := requests(t, seed, kind, 1+more)
				require.LessOrEqual(t, allWrites-oneWrites, more*(most.writes+most.conflicts), "writes of seed %d", seed)
				require.LessOrEqual(t, allReads-oneReads, more*most.reads, "reads of seed %d", seed)
				writes += allWrites - oneWrites
			}
			require.LessOrEqual(t, writes, schedules*more*most.writes, "writes on average")
		})
	}
}

// requests plays a schedule of count transfers of a kind and returns how many requests the agent sent.
func requests(t *testing.T, seed uint64, kind Kind, count int) (writes, reads int) {
	t.Helper()
	plan := Plan{Seed: seed, Nodes: 1, Slots: 1, Hurry: true}
	for range count {
		plan.Work = append(plan.Work, Work{Kind: kind})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(plan)
		require.NoError(t, s.run(), "%s", s.trace)
		writes, reads = s.promises.writes, s.promises.reads
	})
	return writes, reads
}
