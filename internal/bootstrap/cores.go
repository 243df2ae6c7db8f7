package bootstrap

import (
	"os"
	"runtime"

	"github.com/weft-hpc/weft/internal/sys"
)

// coresOfHost returns the number of hardware threads that the ranks of this host share, if the
// launcher does not provide it: the threads that this process may use. If the parent process may
// use more, coresOfHost returns the parent's number, because then each rank was probably bound to
// a part of the parent's threads. The limit of a cgroup, which Go's runtime reads, counts too.
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
