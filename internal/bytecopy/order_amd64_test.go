//go:build !race

package bytecopy

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPlainStoreAfterShare: a core that sees a plain store after a copy sees the whole copy.
// The reader writes to all lines between two rounds, so that the copy finds them in the
// other core's cache.
func TestPlainStoreAfterShare(t *testing.T) {
	defer func(was bool) { hasString = was }(hasString)
	for _, hasString = range []bool{false, true} {
		const size = 16 << 10
		area := make([]byte, size+128)
		var flags struct {
			_    [64]byte
			full uint64 // the round whose bytes are there
			_    [56]byte
			free atomic.Uint64 // the round that may be written
			_    [56]byte
		}
		place := func(round uint64) []byte { // lengths and alignments of all kinds
			n := sharedMin + int(round*977%(size-sharedMin))
			at := int(round * 37 % 128)
			return area[at : at+n]
		}
		over := make(chan uint64, 1)
		var stop atomic.Bool
		go func() { // ends with stop, or with the round that went wrong
			for round := uint64(1); ; round++ {
				for atomic.LoadUint64(&flags.full) != round {
					if stop.Load() {
						over <- 0
						return
					}
					runtime.Gosched()
				}
				b := place(round)
				for i := len(b) - 1; i >= 0; i-- { // the last bytes first
					if b[i] != byte(round) {
						over <- round
						return
					}
				}
				for i := range b {
					b[i] = ^byte(round)
				}
				flags.free.Store(round)
			}
		}()
		src := make([]byte, size)
		end := time.Now().Add(300 * time.Millisecond)
		wrong := uint64(0)
		for round := uint64(1); wrong == 0 && time.Now().Before(end); round++ {
			b := place(round)
			for i := range b {
				src[i] = byte(round)
			}
			Share(b, src[:len(b)])
			flags.full = round // plain
			for flags.free.Load() != round && wrong == 0 {
				select {
				case wrong = <-over:
				default:
					runtime.Gosched()
				}
			}
		}
		stop.Store(true)
		if wrong == 0 {
			wrong = <-over
		}
		require.Zero(t, wrong, "the reader sees the round and not all of its bytes")
	}
}
