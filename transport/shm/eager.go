//go:build linux && !portable

package shm

import (
	"math/bits"
	"os"
	"sync"
	"time"
)

// The eager limit
//
// Data up to the eager limit goes through the ring and is copied twice. For larger data
// the engine uses a rendezvous, and the kernel copies it once.
//
// The time of a copy by the kernel depends on the processor, the hypervisor and the
// mitigations in force. On one virtual machine 16 KiB take 2.2 us, and two copies
// through the ring 0.7 us; on another the call and its pages cost 0.2 us. So each
// process measures the time once. The limit applies to what a rank sends; ranks of a
// host may have different limits.

const (
	leastEager = 12 << 10 // the smallest limit
	mostEager  = 64 << 10 // the largest limit
	trialSize  = 16 << 10 // bytes of a copy that is measured
	trials     = 4        // number of copies that are measured; the shortest time counts
	// eagerPerMicrosecond times the microseconds of a trial, rounded down to a power
	// of two and kept within the bounds, is the limit.
	eagerPerMicrosecond = 36 << 10
)

// eagerLimit returns the limit if the kernel takes the time trial to copy trialSize
// bytes. The limit is small enough for a ring of ringBytes to have room for three messages of
// that length, unless the limit is leastEager.
func eagerLimit(trial time.Duration, ringBytes int) int {
	limit := min(int(min(trial, time.Second)*eagerPerMicrosecond/time.Microsecond), mostEager, ringBytes/4)
	return max(1<<bits.Len(uint(limit))>>1, leastEager)
}

// kernelCopyTime returns the shortest time in which the kernel has copied trialSize
// bytes within this process. If the kernel refuses to copy, it returns a second.
var kernelCopyTime = sync.OnceValue(func() time.Duration {
	least := time.Second
	from, to := make([]byte, trialSize), make([]byte, trialSize)
	pid, addr := os.Getpid(), addressOf(from)
	for range trials {
		start := time.Now()
		if _, e := fetch(pid, to, addr); e != 0 {
			break
		}
		least = min(least, time.Since(start))
	}
	return least
})
