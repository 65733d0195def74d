package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/world"
)

func TestEveryEndNeedsAFaultThatExplainsIt(t *testing.T) {
	const retries = 3
	tests := map[string]struct {
		phase   world.Phase
		message string
		harms   map[fault]int
		fine    bool
	}{
		"what nobody has harmed completes":                  {phase: world.Completed, fine: true},
		"what was harmed may complete":                      {phase: world.Completed, harms: map[fault]int{evicted: 2}, fine: true},
		"nobody has canceled it":                            {phase: world.Canceled, harms: map[fault]int{evicted: 1}},
		"somebody has canceled it":                          {phase: world.Canceled, harms: map[fault]int{canceled: 1}, fine: true},
		"its mover did not fail":                            {phase: world.Failed, message: brokenMessage, harms: map[fault]int{evicted: 1}},
		"its mover has failed":                              {phase: world.Failed, message: brokenMessage, harms: map[fault]int{broken: 1}, fine: true},
		"movers were not lost often enough":                 {phase: world.Failed, message: "given up after 3 restarts", harms: map[fault]int{evicted: 3}},
		"movers were lost too often":                        {phase: world.Failed, message: "given up after 3 restarts", harms: map[fault]int{evicted: 2, vanished: 2}, fine: true},
		"nothing was in the way":                            {phase: world.Failed, message: "not prepared within 30s", harms: map[fault]int{broken: 1}},
		"its mover never started":                           {phase: world.Failed, message: "not prepared within 30s", harms: map[fault]int{stuck: 1}, fine: true},
		"an eviction explains a restart alone":              {phase: world.Failed, message: "anything", harms: map[fault]int{evicted: 1}},
		"its mover was lost when its pod had its volume":    {phase: world.Failed, message: "restore-wait of pod a/b has ended, so containers", harms: map[fault]int{evicted: 1}, fine: true},
		"it failed unharmed":                                {phase: world.Failed, message: "anything"},
		"its target was deleted":                            {phase: world.Failed, message: "anything", harms: map[fault]int{targetGone: 1}, fine: true},
		"it is gone and nobody has deleted it":              {phase: world.InProgress, harms: map[fault]int{canceled: 1}},
		"it was deleted before anybody had anything to say": {phase: "", harms: map[fault]int{deleted: 1}, fine: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ended := &world.Transfer{}
			ended.Status.Phase, ended.Status.Message = test.phase, test.message
			reported := unjustified(life{last: ended}, test.harms, retries)
			require.Equal(t, test.fine, reported == "", reported)
		})
	}
}

func TestHarmsAreKeptByName(t *testing.T) {
	h := newHarms()
	h.add("a", evicted)
	h.add("a", evicted)
	require.Equal(t, map[fault]int{evicted: 2}, h.of("a"))
	require.Empty(t, h.of("b"))
}
