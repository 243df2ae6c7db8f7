//go:build linux && !portable

package shm

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEagerLimit(t *testing.T) {
	for _, test := range []struct {
		trial time.Duration
		ring  int
		want  int
	}{
		{0, 1 << 20, leastEager},
		{300 * time.Nanosecond, 1 << 20, leastEager},
		{time.Microsecond, 1 << 20, 32 << 10},
		{700 * time.Nanosecond, 1 << 20, 16 << 10},
		{2200 * time.Nanosecond, 1 << 20, mostEager},
		{noKernelCopy, 1 << 20, mostTwice},
		{noKernelCopy, 64 << 10, 16 << 10},
		{noKernelCopy, 32 << 10, leastEager},
	} {
		require.Equal(t, test.want, eagerLimit(test.trial, test.ring), "%v, ring of %d bytes", test.trial, test.ring)
	}
}

func TestKernelCopyTime(t *testing.T) {
	b := make([]byte, 2*trialSize)
	if _, e := fetch(os.Getpid(), b[:trialSize], addressOf(b[trialSize:])); e != 0 {
		require.Equal(t, noKernelCopy, kernelCopyTime(), "the kernel refuses: %v", e)
		return
	}
	require.Positive(t, kernelCopyTime())
	require.Less(t, kernelCopyTime(), noKernelCopy)
}
