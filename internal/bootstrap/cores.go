package bootstrap

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// coresOfHost is the number of hardware threads that the ranks of this host
// share, where the launcher does not say: those that this process may use; or
// where whoever started it may use more, those, for then each rank is taken to
// have been bound to its part of them. A cgroup's limit counts too, which Go's
// runtime has looked up.
func coresOfHost(getenv func(string) string) int {
	n := runtime.NumCPU()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getppid(), &set); err == nil {
		if all := set.Count(); all > n {
			return all
		}
	}
	if getenv("GOMAXPROCS") == "" {
		n = min(n, runtime.GOMAXPROCS(0))
	}
	return n
}
