package record

import "golang.org/x/sys/unix"

// monotonic returns the time of the host's monotonic clock in ns. All processes of a host see the
// same clock.
func monotonic() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return t.Nano()
}
