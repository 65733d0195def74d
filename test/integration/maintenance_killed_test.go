package integration

import (
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/reconcile/seeds"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
)

// maintenanceRun is the maintenance of a repository up to its success, which always makes the same writes. No job is kept.
type maintenanceRun struct {
	name  string
	runs  int // in its history at the end
	setUp func(*env) transport.WrapperFunc
}

// maintenanceRuns are those that kill points are tried with; faults leave the last one out.
func maintenanceRuns() []maintenanceRun {
	plain := func(next http.RoundTripper) http.RoundTripper { return next }
	return []maintenanceRun{
		{name: "succeeds", runs: 1, setUp: func(s *env) transport.WrapperFunc {
			s.configureJobs(`"keepLatestMaintenanceJobs":0`)
			return plain
		}},
		{name: "fails first", runs: 2, setUp: func(s *env) transport.WrapperFunc {
			s.configureJobs(`"keepLatestMaintenanceJobs":0`)
			s.jobsEnd(node.Result{ExitCode: 1, Message: "repository is locked"}, 1)
			return plain
		}},
		{name: "has no pod first, for want of its class", runs: 2, setUp: func(s *env) transport.WrapperFunc {
			s.configureJobs(`"keepLatestMaintenanceJobs":0,"priorityClassName":"` + s.class() + `"`)
			return deletingTheClass(s)
		}},
	}
}

func TestAnAgentThatIsKilledAtAnyWriteOfMaintenanceLosesNoRun(t *testing.T) {
	t.Parallel()
	const ofEach = 2 // in a sample
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		for _, reported := range sample(random, maintenanceRuns(), 1) {
			t.Run("a repository whose maintenance "+reported.name, func(t *testing.T) {
				t.Parallel()
				var writes int
				var end []string
				require.True(t, t.Run("without a fault", func(t *testing.T) { writes, end = reported.run(t, newKiller(0, false)) }))
				t.Logf("%d writes, each with a kill before and one after it; it ends with %q", writes, end)
				for _, at := range sample(random, killPoints(writes), ofEach) {
					t.Run(at.String(), func(t *testing.T) {
						t.Parallel()
						_, same := reported.run(t, newKiller(at.write, at.after))
						require.Equal(t, end, same)
					})
				}
			})
		}
	})
}

func TestFaultsOfTheAPIServerLoseNoRunOfMaintenance(t *testing.T) {
	t.Parallel()
	const runs, ofEach = 3, 2 // in a sample
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		for _, reported := range maintenanceRuns()[:2] {
			t.Run("a repository whose maintenance "+reported.name, func(t *testing.T) {
				t.Parallel()
				calls, end := measured(t, runs, func(t *testing.T, notes *requestCounter) []string {
					t.Helper()
					_, end := reported.run(t, newKiller(0, false), notes.wrap)
					return end
				})
				all := injections(calls)
				t.Logf("%d things can happen to %v", len(all), calls)
				for _, one := range sample(random, all, ofEach) {
					t.Run(one.String(), func(t *testing.T) {
						t.Parallel()
						strikes(t, one, func(spoiler *injector) {
							_, same := reported.run(t, newKiller(0, false), spoiler.wrap)
							require.Equal(t, end, same)
						})
					})
				}
			})
		}
	})
}

// run returns how many writes the first agent made, Events and the Lease left out, and what the history says in the end.
// More may stand between it and the API server.
func (reported maintenanceRun) run(t *testing.T, k *killer, more ...transport.WrapperFunc) (writes int, end []string) {
	t.Helper()
	s := buildEnv(t, time.Millisecond)
	wrap := reported.setUp(s)
	s.jobsEnd(node.Result{}, 0)
	name, seen := s.repository("app-default-kopia-x7k2p"), s.watchJobs()
	soon := func(options *agent.Options) { options.Maintenance.MinBackoff = time.Second }
	options := []func(*agent.Options){maintains, soon, shortTerm, fixture.Through(wrap), fixture.Through(k.wrap)}
	for _, each := range more {
		options = append(options, fixture.Through(each))
	}
	first, second := s.start(options...), s.assemble(maintains, soon, shortTerm, fixture.Through(wrap))
	successor := s.follows(k, first, second)
	for run := range reported.runs {
		s.maintained(name, ran(run+1))
	}
	if k.at > 0 {
		s.await(successor, "the write at which the agent is killed")
		s.coordinator("")
	}
	s.haveLeft(0)
	_, mostOfOne := seen()
	require.Equal(t, 1, mostOfOne)
	created := s.requests(cluster.Query{Verbs: []string{"create"}, Resources: []string{"jobs"}}).Where(func(r cluster.Record) bool { return r.Code == http.StatusCreated })
	require.Len(t, created, reported.runs, "one job for each run")
	return k.counted(), s.history(name)
}

// history is what is written down of the runs of a repository, without how long they took.
func (s *env) history(name string) (reported []string) {
	took := regexp.MustCompile(` \(after .*\)$`)
	for _, run := range s.maintained(name, ran(0)).Status.RecentMaintenance {
		message := strings.ReplaceAll(took.ReplaceAllString(run.Message, ""), s.Namespace, "here")
		reported = append(reported, string(run.Result)+" "+message)
	}
	return reported
}
