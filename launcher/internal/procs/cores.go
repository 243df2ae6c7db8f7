package procs

import (
	"errors"
	"slices"
	"strconv"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// Cores of several jobs
//
// Jobs on one host are placed alike: each job's plan puts its first rank on the first core. To keep
// two jobs from sharing cores, the process manager of each job claims the core of each rank that is
// bound to one core only. If another job has claimed that core, and Prepare.Rebind is set, the
// process manager binds the rank to a free core instead. For a rank that may run on several cores
// the process manager claims none, because the kernel moves such a rank to an idle core.
//
//	rank's core ── claim ──► ok: the rank stays
//	                   └──► taken ── claim of a core that the plan does not use ──► ok: the rank goes there
//	                                                                          └──► none is free: the rank stays
//
// A claim is a socket bound to an abstract name (unix(7)) with the number of the core's first
// hardware thread. The kernel gives each name to one socket, so two process managers that start at
// the same time get different cores. When a process manager ends, even by SIGKILL, the kernel
// closes the socket and so ends the claim. The name does not contain the user, so jobs of different
// users avoid each other, too. If some process has bound all names, ranks stay on the cores of the
// plan. Names belong to a network namespace. Jobs in different namespaces do not see each other's
// claims.

// coreNames is the beginning of the socket names of claims. The @ stands for the zero byte with
// which abstract names begin. Tests change coreNames.
var coreNames = "@weft-core-"

// claimCore claims a core until endClaims or the end of this process. core lists the numbers of the
// core's hardware threads. The error is unix.EADDRINUSE if another job has claimed the core.
func (c *Manager) claimCore(core []int) error {
	fd, err := sys.Socket(unix.AF_UNIX, unix.SOCK_DGRAM)
	if err != nil {
		return err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: coreNames + strconv.Itoa(core[0])}); err != nil {
		_ = unix.Close(fd)
		return err
	}
	c.claims = append(c.claims, fd)
	return nil
}

// claimCores claims the core of each rank that is bound to one core. If another job has claimed
// that core and Prepare.Rebind is set, claimCores binds the rank to a free core, if there is one.
func (c *Manager) claimCores() {
	if !slices.ContainsFunc(c.ranks, func(r rank) bool { return len(r.cpus) > 0 }) {
		return
	}
	cores := c.topo().Cores
	of := make(map[int]int) // by hardware thread: the index of its core in cores
	for i, core := range cores {
		for _, cpu := range core {
			of[cpu] = i
		}
	}
	planned := make([]bool, len(cores)) // by core: a rank of this job may run there
	bound := make(map[int][]int)        // by core: the ranks that may run only there
	for i, r := range c.ranks {
		single := -1
		for k, cpu := range r.cpus {
			core, known := of[cpu]
			if known {
				planned[core] = true
			}
			switch {
			case !known || k > 0 && core != single:
				single = -1
			case k == 0:
				single = core
			}
		}
		if single >= 0 {
			bound[single] = append(bound[single], i)
		}
	}
	var taken []int
	for i := range cores {
		if len(bound[i]) > 0 && errors.Is(c.claimCore(cores[i]), unix.EADDRINUSE) {
			taken = append(taken, i)
		}
	}
	if !c.job.Rebind {
		return
	}
	for _, from := range taken {
		for k := range cores {
			to := (from + k) % len(cores)
			if planned[to] || c.claimCore(cores[to]) != nil {
				continue
			}
			planned[to] = true
			for _, i := range bound[from] {
				c.ranks[i].cpus, c.ranks[i].rebound = cores[to], true
			}
			break
		}
	}
}

// endClaims ends all claims of this process manager.
func (c *Manager) endClaims() {
	for _, fd := range c.claims {
		_ = unix.Close(fd)
	}
	c.claims = nil
}
