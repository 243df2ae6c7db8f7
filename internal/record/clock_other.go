//go:build !linux

package record

import "time"

// Monotonic returns the time of the host's clock.
func Monotonic() time.Duration { return time.Duration(time.Now().UnixNano()) }
