package sim

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/deploy"
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

func TestABackupWithoutFaultsIsCompleted(t *testing.T) {
	plan := Plan{Seed: 1, Nodes: 1, Slots: 1, Hurry: true, Work: []Work{{Kind: Backup}}}
	played, broken := play(t, plan)
	require.NoError(t, broken, "%s", played)
}

func TestASeedReplaysToTheSameTrace(t *testing.T) {
	seeds.Each(t, 5, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		t.Parallel()
		plan := Draw(random.Uint64())
		first, _ := play(t, plan)
		for range 3 {
			again, _ := play(t, plan)
			require.Equal(t, first.hash(), again.hash(), "plan %+v", plan)
		}
	})
}

var (
	runs  = flag.Int("runs", 250, "fresh schedules")
	first = flag.Bool("first", false, "end with the first schedule that fails, and do not minimize its plan")
)

// enough schedules use every right that the simulation can use.
const enough = 200

// unsimulated are the rights that agents need for what no schedule has: objects that Velero's agents of the release before made,
// --finished-ttl, and the attachments of vSphere volumes.
var unsimulated = []string{
	"get backups.velero.io in the agents' namespace",
	"get restores.velero.io in the agents' namespace",
	"delete datauploads.velero.io in the agents' namespace",
	"delete datadownloads.velero.io in the agents' namespace",
	"patch persistentvolumeclaims in the agents' namespace",
	"patch volumesnapshots.snapshot.storage.k8s.io in the agents' namespace",
	"list volumeattachments.storage.k8s.io elsewhere",
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
	unused := rights.Grants(deploy.NamespaceRules(), deploy.ClusterRules())
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
