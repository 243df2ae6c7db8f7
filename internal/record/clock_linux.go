package record

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns the time of the host's monotonic clock. All processes of a host see the same
// clock.
func Monotonic() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
