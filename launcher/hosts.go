package launcher

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// findHosts finds the hosts of the job, and prepares the connections with their agents:
//
//	-launcher  hosts of the job                            the agents
//	local      this host                                   there are none
//	ssh        those of -host, -hostfile or [[host]],      are started by ssh, and form a tree
//	           else those of the allocation of PBS,
//	           LSF, Grid Engine or Slurm
//	slurm      those of the allocation, or those of        are started by srun, and connect with gorun
//	           them that -host and so on name
//	dial       those whose agents connect                  are started by others, and connect with gorun
//	auto       as dial with -listen; as local if no other host is named or allocated;
//	           as slurm in an allocation of Slurm; else as ssh
//
// With dial, findHosts waits for the agents, at most until ctx ends.
func (r *run) findHosts(ctx context.Context) error {
	if err := r.chooseHosts(); err != nil {
		return err
	}
	switch r.kind {
	case job.LaunchSSH:
		var err error
		r.connector, err = newSSH(r)
		return err
	case job.LaunchSlurm:
		return r.findSlurmHosts()
	case job.LaunchDial:
		return r.findDialedHosts(ctx)
	default:
		return nil
	}
}

// chooseHosts sets r.kind, to another value than auto, and r.hosts. With dial, r.hosts has only the
// hosts that the user names; if the user names none, the hosts are not known before their agents
// connect. chooseHosts opens no connection.
func (r *run) chooseHosts() error {
	j := r.job
	usage := func(err error) error { return &startError{proto.ExitUsage, err.Error()} }
	named := slices.Clone(j.Hosts)
	if r.kind = j.Launcher; r.kind == "" {
		r.kind = job.LaunchAuto
	}
	if j.Dials() {
		r.kind = job.LaunchDial
		r.setHosts(named)
		return nil
	}
	var alloc *hosts.Allocation
	if r.kind != job.LaunchLocal && (named == nil || hosts.Manager(os.Getenv) == hosts.Slurm) {
		var err error
		if alloc, err = hosts.FromEnvironment(os.Getenv, os.ReadFile); err != nil {
			return usage(err)
		}
	}
	if alloc != nil {
		all := alloc.Hosts
		switch {
		case named == nil:
			named, r.allocated = all, true
			j.ApplySlots(named)
		case r.kind != job.LaunchSSH:
			var err error
			if named, err = hosts.Restrict(all, named, allocationName(alloc)); err != nil {
				return usage(err)
			}
			r.allocated = true
		}
	}
	inSlurm := alloc != nil && alloc.Manager == hosts.Slurm
	switch r.kind {
	case job.LaunchSlurm:
		if !inSlurm {
			return usage(fmt.Errorf("-launcher slurm: there is no allocation of Slurm here"))
		}
	case job.LaunchAuto:
		switch {
		case len(named) == 0 || !slices.ContainsFunc(named, func(h hosts.Host) bool { return !hosts.IsLocal(h.Name) }):
			r.kind = job.LaunchLocal
		case inSlurm:
			r.kind = job.LaunchSlurm
		default:
			r.kind = job.LaunchSSH
		}
	case job.LaunchLocal:
		if len(named) == 0 {
			break
		}
		if i := slices.IndexFunc(named, func(h hosts.Host) bool { return !hosts.IsLocal(h.Name) }); i >= 0 {
			return usage(fmt.Errorf("-launcher local: %s is another host", named[i].Name))
		}
	default:
	}
	if len(named) == 0 {
		named = []hosts.Host{{Name: "localhost"}}
	}
	for _, h := range named {
		if _, err := netip.ParseAddr(h.Address); h.Address != "" && err != nil {
			return usage(fmt.Errorf("%s: expected a numeric address for its ranks to listen on, found %q", h.Name, h.Address))
		}
	}
	r.setHosts(named)
	if len(r.hosts) == 0 {
		return r.noneLeft()
	}
	return nil
}

// noneLeft returns the error of a restart for which no host is left, because all have failed in
// earlier runs. The error names one of these hosts.
func (r *run) noneLeft() error {
	for h, cause := range r.failed {
		if !strings.HasPrefix(cause, h) {
			cause = h + ": " + cause
		}
		return fmt.Errorf("no host is left: %s", cause)
	}
	return fmt.Errorf("no host is left")
}

// allocationName returns the name of an allocation for messages to the user. If gorun has got the
// allocation by salloc, the user does not know its job id, so the name says where the id comes
// from.
func allocationName(a *hosts.Allocation) string {
	if os.Getenv(envAllocated) != "" {
		return fmt.Sprintf("the allocation that -launcher slurm got by salloc (job %s)", a.JobID)
	}
	name := map[string]string{hosts.Slurm: "Slurm", hosts.PBS: "PBS", hosts.LSF: "LSF", hosts.SGE: "Grid Engine"}[a.Manager]
	if a.JobID != "" {
		return name + " job " + a.JobID
	}
	return name + "'s allocation"
}

// setHosts sets r.hosts and r.hostOrder from the named hosts, without those that have failed in
// earlier runs. If gorun itself runs the ranks of one of them ([run.isOwn]), that host gets index 0. The
// other hosts follow in the order in which they are named. r.hostOrder holds the indexes of all hosts,
// this one included, in the order in which they are named.
func (r *run) setHosts(named []hosts.Host) {
	j := r.job
	var list []hosts.Host
	own := -1
	unite := hosts.Unify
	if j.Dials() {
		unite = hosts.Merge // each name is that of an agent
	}
	for _, h := range unite(named) {
		if _, failed := r.failed[h.Name]; failed {
			continue
		}
		if h.Slots == 0 {
			h.Slots = j.Slots
		}
		if r.isOwn(h.Name) {
			own = len(list)
		}
		list = append(list, h)
	}
	r.hosts, r.hostOrder = nil, make([]int, len(list))
	if own >= 0 {
		r.hosts = []host{{Host: list[own]}}
	}
	if own >= 0 && len(list) == 1 {
		r.hosts[0].Name = r.host
	}
	for i, h := range list {
		if i == own {
			continue
		}
		r.hostOrder[i] = len(r.hosts)
		r.hosts = append(r.hosts, host{Host: h})
	}
}
