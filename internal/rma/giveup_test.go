package rma

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGivingUpAtAnyTime lets contexts end at random times while ranks wait for locks and
// operations. No lock may be lost, and each update that has begun must happen exactly once.
func TestGivingUpAtAnyTime(t *testing.T) {
	const n, epochs = 4, 60
	everyFlavour(t, n, 8, func(t *testing.T, ms []*member) {
		var begun [n]atomic.Int64 // by target: number of updates that have begun
		each(t, ms, func(m *member) error {
			rng := rand.New(rand.NewPCG(uint64(m.rank), 0))
			for range epochs {
				if err := m.epochWithTimeouts(rng, &begun); err != nil {
					return err
				}
			}
			return m.barrier()
		})
		for i, m := range ms {
			require.Equal(t, begun[i].Load(), get(m.local))
			require.Zero(t, m.locked)
		}
	})
}

// epochWithTimeouts runs an epoch with some updates of one target, with short timeouts. If the lock
// times out, it gives up. It repeats the call that ends the epoch until that does not time out.
func (m *member) epochWithTimeouts(rng *rand.Rand, begun *[4]atomic.Int64) error {
	shortContext := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(background, time.Duration(rng.IntN(300))*time.Microsecond)
	}
	timedOut := func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
	target, all := rng.IntN(m.size), rng.IntN(3) == 0
	ctx, cancel := shortContext()
	defer cancel()
	if all {
		if err := m.LockAll(ctx); err != nil {
			return err
		}
	} else if rng.IntN(3) == 0 {
		if got, err := m.TryLock(ctx, target, rng.IntN(2) == 0); !got && (err == nil || timedOut(err)) {
			return nil
		} else if err != nil {
			return err
		}
	} else if err := m.Lock(ctx, target, rng.IntN(2) == 0); timedOut(err) {
		return nil
	} else if err != nil {
		return err
	}
	updates := []int{1, 1, 1, maxPending + 50}[rng.IntN(4)]
	one, old := word(1), make([]byte, 8)
	for i := range updates {
		var err error
		if i%2 == 0 {
			err = m.Accumulate(ctx, target, 0, one, Sum)
		} else {
			err = m.GetAccumulate(ctx, target, 0, one, old, Sum)
		}
		if err == nil {
			begun[target].Add(1)
		} else if !timedOut(err) {
			return err
		}
	}
	for {
		ctx, cancel := shortContext()
		end := func() error { return m.Unlock(ctx, target) }
		if all {
			end = func() error { return m.UnlockAll(ctx) }
		}
		err := end()
		cancel()
		if !timedOut(err) {
			return err
		}
	}
}
