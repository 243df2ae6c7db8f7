package mpi

import (
	"os"
	"slices"
)

// Job describes the job; see comm.Job, which has the same fields.
type Job struct {
	ID, Launcher         string
	Rank, Size           int
	LocalRank, LocalSize int
	App, Epoch, Slots    int
	Hosts                []string
	HostOf               []int
	StageDir             string
}

// Job implements comm.Comm.Job, which documents the call.
func (c *Comm) Job() Job {
	if c == nil || c.s == nil {
		return Job{}
	}
	w := c.s.job.home.world
	j := Job{
		ID: w.JobID, Launcher: w.Launcher, Rank: w.Rank, Size: w.Size, App: w.AppNum, Epoch: w.Epoch,
		Slots: max(w.Slots, w.Size), Hosts: slices.Clone(w.Names), HostOf: slices.Clone(w.HostOf),
		StageDir: os.Getenv("WEFT_STAGE_DIR"),
	}
	own := w.HostOf[w.Rank]
	for r, h := range w.HostOf {
		if h != own {
			continue
		}
		if r < w.Rank {
			j.LocalRank++
		}
		j.LocalSize++
	}
	if len(j.Hosts) == 0 { // the launcher has given no names
		j.Hosts = make([]string, slices.Max(w.HostOf)+1)
		j.Hosts[own], _ = os.Hostname()
	}
	return j
}
