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
// the engine uses a rendezvous, and the kernel, if it permits that, copies the data once.
//
// The time of a copy by the kernel depends on the processor, the hypervisor and the
// mitigations in force. On one virtual machine the kernel takes 2.2 us for 16 KiB, and two
// copies through the ring take 0.7 us; on another, the system call takes only 0.2 us more
// than the copy itself. So each process measures the time once. The limit applies to what a
// rank sends; ranks of a host may have different limits.

const (
	leastEager = 12 << 10 // the smallest limit in bytes
	mostEager  = 32 << 10 // the largest limit in bytes if the kernel copies
	mostTwice  = 64 << 10 // the largest limit in bytes if it does not, so all data is copied twice
	trialSize  = 16 << 10 // bytes of a copy that is measured
	trials     = 4        // number of copies that are measured; the shortest time counts
	// eagerPerMicrosecond is the limit, before eagerLimit rounds and bounds it, in bytes per
	// microsecond of the measured time.
	eagerPerMicrosecond = 36 << 10
)

// eagerLimit returns the eager limit in bytes. trial is the time in which the kernel copies
// trialSize bytes, or noKernelCopy. A ring of ringBytes bytes has room for three messages with as much data as the
// limit, unless the limit is leastEager.
func eagerLimit(trial time.Duration, ringBytes int) int {
	most := mostEager
	if trial >= noKernelCopy {
		most = mostTwice
	}
	limit := min(int(min(trial, noKernelCopy)*eagerPerMicrosecond/time.Microsecond), most, ringBytes/4)
	return max(1<<bits.Len(uint(limit))>>1, leastEager)
}

// noKernelCopy is the result of kernelCopyTime if the kernel refuses to copy.
const noKernelCopy = time.Second

// kernelCopyTime measures, at its first call, the shortest time in which the kernel copies
// trialSize bytes within this process, and returns it.
var kernelCopyTime = sync.OnceValue(func() time.Duration {
	least := noKernelCopy
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
