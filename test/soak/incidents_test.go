package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/testenv"
)

func TestEveryEndNeedsAFaultThatExplainsIt(t *testing.T) {
	const retries = 3
	tests := map[string]struct {
		phase     testenv.Phase
		message   string
		incidents map[fault]int
		fine      bool
	}{
		"what nobody has harmed completes":                  {phase: testenv.Completed, fine: true},
		"what was harmed may complete":                      {phase: testenv.Completed, incidents: map[fault]int{evicted: 2}, fine: true},
		"nobody has canceled it":                            {phase: testenv.Canceled, incidents: map[fault]int{evicted: 1}},
		"somebody has canceled it":                          {phase: testenv.Canceled, incidents: map[fault]int{canceled: 1}, fine: true},
		"its mover did not fail":                            {phase: testenv.Failed, message: brokenMessage, incidents: map[fault]int{evicted: 1}},
		"its mover has failed":                              {phase: testenv.Failed, message: brokenMessage, incidents: map[fault]int{broken: 1}, fine: true},
		"movers were not lost often enough":                 {phase: testenv.Failed, message: "given up after 3 restarts", incidents: map[fault]int{evicted: 3}},
		"movers were lost too often":                        {phase: testenv.Failed, message: "given up after 3 restarts", incidents: map[fault]int{evicted: 2, vanished: 2}, fine: true},
		"nothing was in the way":                            {phase: testenv.Failed, message: "not prepared within 30s", incidents: map[fault]int{broken: 1}},
		"its mover never started":                           {phase: testenv.Failed, message: "not prepared within 30s", incidents: map[fault]int{stuck: 1}, fine: true},
		"an eviction explains a restart alone":              {phase: testenv.Failed, message: "anything", incidents: map[fault]int{evicted: 1}},
		"its mover was lost when its pod had its volume":    {phase: testenv.Failed, message: "restore-wait of pod a/b has ended, so containers", incidents: map[fault]int{evicted: 1}, fine: true},
		"it failed unharmed":                                {phase: testenv.Failed, message: "anything"},
		"its target was deleted":                            {phase: testenv.Failed, message: "anything", incidents: map[fault]int{targetGone: 1}, fine: true},
		"it is gone and nobody has deleted it":              {phase: testenv.InProgress, incidents: map[fault]int{canceled: 1}},
		"it was deleted before anybody had anything to say": {phase: "", incidents: map[fault]int{deleted: 1}, fine: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ended := &testenv.Transfer{}
			ended.Status.Phase, ended.Status.Message = test.phase, test.message
			reported := unjustified(transferState{last: ended}, test.incidents, retries)
			require.Equal(t, test.fine, reported == "", reported)
		})
	}
}

func TestHarmsAreKeptByName(t *testing.T) {
	h := newIncidents()
	h.add("a", evicted)
	h.add("a", evicted)
	require.Equal(t, map[fault]int{evicted: 2}, h.of("a"))
	require.Empty(t, h.of("b"))
}
