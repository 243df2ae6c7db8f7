//go:build !linux

package record

import "time"

// monotonic returns the time of the host's clock in ns.
func monotonic() int64 { return time.Now().UnixNano() }
