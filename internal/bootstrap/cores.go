package bootstrap

import (
	"os"
	"runtime"

	"github.com/weft-hpc/weft/internal/sys"
)

// coresOfHost is the number of hardware threads that the ranks of this host
// share, where the launcher does not say: those that this process may use; or
// where whoever started it may use more, those, for then each rank is taken to
// have been bound to its part of them. A cgroup's limit counts too, which Go's
// runtime has looked up.
func coresOfHost(getenv func(string) string) int {
	n := runtime.NumCPU()
	if all := len(sys.Allowed(os.Getppid())); all > n {
		return all
	}
	if getenv("GOMAXPROCS") == "" {
		n = min(n, runtime.GOMAXPROCS(0))
	}
	return n
}
