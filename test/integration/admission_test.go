package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// completed waits for one after the other, in whichever order, until all of them are.
func (s *env) completed(history *testenv.Recorder, names ...string) []testenv.Transition {
	for number := range names {
		_, err := history.Until(s.soon(), func(all []testenv.Transition) bool {
			finished := 0
			for _, seen := range all {
				if seen.To.Ended() && slices.Contains(names, seen.Name) {
					finished++
				}
			}
			return finished > number
		})
		require.NoError(s, err)
	}
	for _, name := range names {
		require.Contains(s, history.Phases(name), testenv.Completed, name)
	}
	return history.Transitions()
}

// mostPrepared is how many transfers were Accepted or Prepared at the same time, at most, wherever they belong.
func mostPrepared(transitions []testenv.Transition) int {
	inside, most := map[string]bool{}, 0
	for _, transition := range transitions {
		if transition.To == testenv.Accepted || transition.To == testenv.Prepared {
			inside[transition.Name] = true
		} else {
			delete(inside, transition.Name)
		}
		most = max(most, len(inside))
	}
	return most
}

// ahead is how many of others came to a phase while the one of that name was there and had not.
func ahead(transitions []testenv.Transition, name string, phase testenv.Phase, others []string) int {
	there, count := false, 0
	for _, transition := range transitions {
		switch {
		case transition.Name == name && transition.To == phase:
			return count
		case transition.Name == name:
			there = true
		case there && transition.To == phase && slices.Contains(others, transition.Name):
			count++
		}
	}
	return count
}

func TestNeverMoreIsPreparedThanThePrepareQueueHolds(t *testing.T) {
	f := newFleet(t, 100*time.Millisecond, 2)
	f.configure(`{"loadConcurrency":{"globalConfig":2,"prepareQueueLength":3}}`)
	history := f.record()
	there := f.sourceOn(f.Nodes[1])
	var names []string
	for range 6 {
		names = append(names, f.transfer(), f.transferOf(there))
	}
	for _, n := range f.Nodes {
		f.start(on(n))
	}
	transitions := f.completed(history, names...)
	require.LessOrEqual(t, mostPrepared(transitions), 3)
	for _, n := range f.Nodes {
		require.LessOrEqual(t, history.MostAtOnce(n.Name(), testenv.Accepted, testenv.Prepared), 2, "a node prepares no more than it has slots")
	}
}

func TestTheBackupsOfOneNodeDoNotKeepAnotherOneIdle(t *testing.T) {
	f := newFleet(t, 200*time.Millisecond, 2)
	f.configure(`{"loadConcurrency":{"prepareQueueLength":2}}`)
	history := f.record()
	there := f.sourceOn(f.Nodes[1])
	var busy []string
	for range 10 {
		busy = append(busy, f.transfer())
	}
	idle := f.transferOf(there)
	for _, n := range f.Nodes {
		f.start(on(n))
	}
	transitions := f.completed(history, append(busy, idle)...)
	require.LessOrEqual(t, mostPrepared(transitions), 2)
	require.LessOrEqual(t, ahead(transitions, idle, testenv.InProgress, busy), 4, "all ten of them are older")
}

func TestARestoreIsNotStarvedByBackupsThatCameBefore(t *testing.T) {
	s := newEnv(t, 100*time.Millisecond)
	s.configure(`{"loadConcurrency":{"prepareQueueLength":2}}`)
	history := s.record()
	waiting := s.restores(s.node.Name())
	var backups []string
	for range 20 {
		backups = append(backups, s.transfer())
	}
	s.start()
	_, err := history.Until(s.soon(), func(all []testenv.Transition) bool {
		return slices.ContainsFunc(all, func(seen testenv.Transition) bool { return seen.To == testenv.InProgress })
	})
	require.NoError(t, err)
	restore := s.restoreOf(waiting)
	transitions := s.completed(history, append([]string{restore}, backups...)...)
	require.LessOrEqual(t, ahead(transitions, restore, testenv.Accepted, backups), 4, "nineteen of them are older and wait")
	require.LessOrEqual(t, ahead(transitions, restore, testenv.InProgress, backups), 6)
}

func TestABackupThatNobodyAcceptsHoldsNoPlaceForLong(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.configure(`{"loadConcurrency":{"prepareQueueLength":1}}`)
	for range 3 {
		s.transfer(elsewhere)
	}
	s.start(func(options *agent.Options) { options.AdmitTimeout = 500 * time.Millisecond })
	s.ends(s.transfer(), testenv.Completed)
}

func TestThePrepareQueueIsOneForAllKinds(t *testing.T) {
	v := newEnv(t, 100*time.Millisecond).volumes(csi.Options{})
	v.configure(`{"loadConcurrency":{"globalConfig":8,"prepareQueueLength":2}}`)
	restored := v.restores(v.node.Name())
	var uploads []string
	for i := range 3 {
		name, _ := v.uploads(fmt.Sprintf("data-%d", i))
		uploads = append(uploads, name)
		v.transfer()
	}
	restore := v.restoreOf(restored)
	download, err := v.DataDownload(v.soon(), restored.restore, v.target(), "snapshot")
	require.NoError(t, err)
	v.start()
	for _, name := range uploads {
		v.settles(testenv.DataUpload, name, testenv.Completed)
	}
	v.settles(testenv.DataDownload, download.Name, testenv.Completed)
	v.restored(restore, testenv.Completed)
	require.LessOrEqual(t, v.mostPreparedByWrites(), 2)
}

// mostPreparedByWrites is mostPrepared of all kinds together, by what agents have written one after the other.
func (s *env) mostPreparedByWrites() int {
	inside, most := map[string]bool{}, 0
	for _, record := range s.requests(cluster.Query{Verbs: []string{"patch"}}).Where(func(r cluster.Record) bool { return r.APIGroup == "velero.io" }) {
		var written testenv.Transfer
		require.NoError(s, json.Unmarshal(record.Body, &written))
		switch written.Status.Phase {
		case "": // something else was written
		case testenv.Accepted, testenv.Prepared:
			inside[record.Resource+"/"+record.Name] = true
		default:
			delete(inside, record.Resource+"/"+record.Name)
		}
		most = max(most, len(inside))
	}
	return most
}

func TestWithoutAPrepareQueueOnlyAsManyPodsExistAsWorkSoon(t *testing.T) {
	v := newEnv(t, 200*time.Millisecond).volumes(csi.Options{})
	ahead := capacity.Ahead(1)
	history := v.record()
	var names []string
	for range 3 * ahead {
		names = append(names, v.transfer())
	}
	v.start(func(options *agent.Options) { options.Limits.PlaceTimeout = time.Hour })
	upload, _ := v.uploads("data")
	v.settles(testenv.DataUpload, upload, testenv.Completed)
	require.LessOrEqual(t, mostPrepared(v.completed(history, names...)), ahead+1, "and the upload")
	require.LessOrEqual(t, v.mostPreparedByWrites(), ahead+1)
}

func TestMoversThatCannotStartDoNotHoldUpOthers(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	ahead := capacity.Ahead(1)
	s.node.Faults.Add(node.Fault{NeverStarts: true, Times: ahead})
	var stuck []string
	for range ahead {
		stuck = append(stuck, s.transfer())
	}
	s.start(func(options *agent.Options) { options.Limits.PlaceTimeout = 500 * time.Millisecond })
	for _, name := range stuck {
		s.moverIs(name, waitsFor("ContainerCreating"))
	}
	s.ends(s.transfer(), testenv.Completed)
	for _, name := range stuck {
		transfer, err := s.Transfers(testenv.PodVolumeBackup).Get(s.soon(), name)
		require.NoError(t, err)
		require.Equal(t, testenv.Accepted, transfer.Status.Phase, "it still has until the prepare timeout")
	}
}
