package reconcile

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
)

// driven is a controller in a synctest bubble.
type driven struct {
	*Controller
	started time.Time
	stop    context.CancelFunc
	stopped chan struct{} // closed when Run has returned

	lock  sync.Mutex
	calls map[string][]time.Duration // by key, since the start
}

const testGrace = 4 * time.Second

// drive runs a controller with these first keys and stops it when the test ends.
func drive(t *testing.T, workers int, first []string, step Func) *driven {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, stop := context.WithCancel(ctx)
	d := &driven{started: time.Now(), stop: stop, stopped: make(chan struct{}), calls: map[string][]time.Duration{}}
	options := Options{Name: "test", Workers: workers, Grace: testGrace, Clock: clock.RealClock{}}
	d.Controller = NewController(options, func(ctx context.Context, key string) (time.Duration, error) {
		d.lock.Lock()
		d.calls[key] = append(d.calls[key], time.Since(d.started))
		d.lock.Unlock()
		return step(ctx, key)
	})
	go func() {
		defer close(d.stopped)
		d.Run(ctx, first)
	}()
	t.Cleanup(func() {
		stop()
		<-d.stopped
	})
	return d
}

// pass advances the time and runs everything that is due before its end.
func (d *driven) pass(duration time.Duration) {
	timer := time.NewTimer(duration)
	<-timer.C
	synctest.Wait()
}

// times returns when the key was reconciled.
func (d *driven) times(key string) []time.Duration {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.calls[key]
}

func (d *driven) isReady() bool {
	select {
	case <-d.Ready():
		return true
	default:
		return false
	}
}

func TestAFailedReconcileIsRetriedWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, 1, []string{"a"}, func(context.Context, string) (time.Duration, error) {
			return time.Hour, errors.New("the API server is unreachable")
		})
		d.pass(24 * time.Hour)
		var want []time.Duration
		for at, pause := time.Duration(0), minBackoff; at <= 24*time.Hour; at, pause = at+pause, min(2*pause, maxBackoff) {
			want = append(want, at)
		}
		require.Equal(t, want, d.times("a"))
		require.Greater(t, len(want), 2800, "a day of tries")
	})
}

func TestASuccessResetsTheBackoffAndMayRequestADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		answers := []struct {
			requeue time.Duration
			err     error
		}{{0, failed}, {0, failed}, {time.Minute, nil}, {0, failed}, {0, nil}}
		d := drive(t, 1, []string{"a"}, func(context.Context, string) (time.Duration, error) {
			answer := answers[0]
			answers = answers[1:]
			return answer.requeue, answer.err
		})
		d.pass(24 * time.Hour)
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 20 * ms, 60 * ms, time.Minute + 60*ms, time.Minute + 80*ms}, d.times("a"))
	})
}

func TestAControllerIsReadyOnceEveryFirstKeyWasTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		d := drive(t, 3, []string{"works", "fails", "takes long"}, func(_ context.Context, key string) (time.Duration, error) {
			switch key {
			case "fails":
				return 0, errors.New("no")
			case "takes long":
				<-block
			}
			return 0, nil
		})
		d.pass(time.Minute)
		require.False(t, d.isReady(), "one is being tried still")
		close(block)
		synctest.Wait()
		require.True(t, d.isReady(), "a failure counts as tried")
	})
}

func TestAControllerWithoutFirstKeysIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, 1, nil, func(context.Context, string) (time.Duration, error) { return 0, nil })
		synctest.Wait()
		require.True(t, d.isReady())
		d.Enqueue("a")
		synctest.Wait()
		require.Equal(t, []time.Duration{0}, d.times("a"), "and works")
	})
}

func TestAStoppingControllerFinishesTheRunningReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 3 * time.Second
		var ended error
		d := drive(t, 1, []string{"a", "b"}, func(ctx context.Context, _ string) (time.Duration, error) {
			timer := time.NewTimer(takes)
			<-timer.C
			ended = ctx.Err()
			return 0, nil
		})
		synctest.Wait()
		d.stop()
		<-d.stopped
		require.Equal(t, takes, time.Since(d.started))
		require.NoError(t, ended, "the running reconcile has its context until the grace period is over")
		require.Empty(t, d.times("b"), "nothing new is begun")
	})
}

func TestAStoppingControllerWaitsForTheGracePeriodOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, 2, []string{"a", "b"}, func(ctx context.Context, _ string) (time.Duration, error) {
			<-ctx.Done() // like a request to an API server that does not answer
			return 0, ctx.Err()
		})
		d.pass(time.Hour)
		stopping := time.Now()
		d.stop()
		<-d.stopped
		require.Equal(t, testGrace, time.Since(stopping))
	})
}
