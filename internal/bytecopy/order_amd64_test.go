//go:build !race

package bytecopy

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPlainStoreAfterShare checks that a core that sees a plain store after Share also sees the
// whole copy. Between two rounds the reader writes to all lines, so that they are in its core's
// cache when the next copy begins.
func TestPlainStoreAfterShare(t *testing.T) {
	defer func(was bool) { hasString = was }(hasString)
	for _, hasString = range []bool{false, true} {
		const size = 16 << 10
		area := make([]byte, size+128)
		var flags struct {
			_    [64]byte
			full uint64 // the round that the writer has copied
			_    [56]byte
			free atomic.Uint64 // the round that the reader has checked
			_    [56]byte
		}
		// place returns the bytes of a round. Their number and their alignment differ between rounds.
		place := func(round uint64) []byte {
			n := sharedMin + int(round*977%(size-sharedMin))
			at := int(round * 37 % 128)
			return area[at : at+n]
		}
		over := make(chan uint64, 1)
		var stop atomic.Bool
		go func() { // ends after stop is set, or after the first wrong round
			for round := uint64(1); ; round++ {
				for atomic.LoadUint64(&flags.full) != round {
					if stop.Load() {
						over <- 0
						return
					}
					runtime.Gosched()
				}
				b := place(round)
				for i := len(b) - 1; i >= 0; i-- { // the last bytes first, because a copy in order writes them last
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
			flags.full = round // a plain store
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
		require.Zero(t, wrong, "the reader saw the round but not all of its bytes")
	}
}
