package bootstrap

import (
	"os"
	"runtime"

	"github.com/weft-hpc/weft/internal/sys"
)

// coresOfHost estimates the number of hardware threads that the ranks of this host share, for
// launchers that do not provide it. If the parent process may use more threads than this process,
// each rank was probably bound to a part of the parent's threads, and coresOfHost returns the
// number of the parent's threads. Otherwise it returns the number of threads that this process may
// use, or less if a cgroup limits the process to fewer. runtime.GOMAXPROCS reports the cgroup's
// limit, unless the environment sets GOMAXPROCS.
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
