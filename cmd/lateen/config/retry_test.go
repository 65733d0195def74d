package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// recorded is a hasty clock that records its waits.
type recorded struct {
	hasty
	waits *[]time.Duration
}

func (r recorded) After(d time.Duration) <-chan time.Time {
	*r.waits = append(*r.waits, d)
	return r.hasty.After(d)
}

func TestLoadWaitsLongerBeforeEachAttempt(t *testing.T) {
	client, clock := installation(fullConfig), recorded{newHasty(), &[]time.Duration{}}
	fault(client, "nodes", 8, refused())
	_, err := config.Load(t.Context(), client, options(t), clock)
	require.NoError(t, err)
	require.Len(t, *clock.waits, 8)
	for i, wait := range *clock.waits { // half of it is random
		longest := min(200*time.Millisecond<<i, 2*time.Second)
		require.True(t, longest/2 <= wait && wait <= longest, "%s before attempt %d", wait, i+2)
	}
}
