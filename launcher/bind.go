package launcher

import (
	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/launcher/place"
	"golang.org/x/sys/unix"
)

// topology is this machine as package place sees it; place has no quota in it.
type topology struct {
	cpus  []int
	quota int
	at    place.Topology
}

func readTopology(sys string, allowed []int) topology {
	t := place.ReadTopology(sys, allowed)
	return topology{cpus: t.CPUs, at: t}
}

func (t topology) place(bind job.Bind, rank, np int) []int { return t.at.Place(bind, rank, np) }

func (t topology) maxprocs(bound []int, np int) int {
	t.at.Quota = t.quota
	return t.at.MaxProcs(bound, np)
}

func cpuQuota() int { return place.Quota() }

func allowedCPUs() []int { return place.Allowed() }

// usableCores is how many hardware threads the ranks can keep busy at once.
func usableCores() int {
	return place.Topology{CPUs: place.Allowed(), Quota: place.Quota()}.Usable()
}

func cpuSet(cpus []int) *unix.CPUSet {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	return &set
}
