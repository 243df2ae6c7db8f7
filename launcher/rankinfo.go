package launcher

import (
	"io"
	"path/filepath"
	"syscall"

	"github.com/weft-hpc/weft/launcher/internal/trace"
)

// rankInfo is what gorun says about a rank in a trace or a profile. It does not refer to the run, so goroutines other
// than that of [run.control] may use it.
type rankInfo struct {
	trace.Rank        // without the clock
	host       int    // index of the host
	group      int    // number of the group
	label      string // name of the rank, such as "3", or "1.3" for rank 3 of group 1
	app        string // name of the program; "": all ranks have the same
	nothing    string // reason to report if the rank's file is empty
	cut        string // reason to report if the file is not complete
}

// rankInfos returns the ranks that have been started or, with running, those of them that have not ended.
func (r *run) rankInfos(running bool) (list []rankInfo) {
	for i := range r.ranks {
		k := &r.ranks[i]
		if k.pid == 0 || running && (k.exit != nil || k.failed || r.hosts[k.host].state == hostLost) {
			continue
		}
		g := r.groupOf(i)
		info := rankInfo{
			Rank: trace.Rank{Number: i, First: i - g.rank(i), Size: g.size, Name: "rank " + r.nameOfRank(i), Host: r.hostOfRank(i), PID: k.pid},
			host: k.host, group: g.id, label: r.nameOfRank(i), nothing: r.noProfile(i, false), cut: r.noProfile(i, true),
		}
		if running {
			info.cut = "it has ended, or has not answered in time"
		}
		if len(r.job.Apps) > 1 || len(r.groups) > 1 {
			info.app = filepath.Base(r.programOf(i).program)
		}
		list = append(list, info)
	}
	return list
}

// readAhead is the number of files of ranks that gorun reads at the same time, because most are so short
// that each takes one round trip.
const readAhead = 16

// readFiles calls f with the file with this number of each rank, in their order. It returns the first error of f.
func (r *run) readFiles(infos []rankInfo, file int, f func(rk *rankInfo, in io.Reader) error) error {
	var open []*rankFile // the next ones
	defer func() {
		for _, in := range open {
			in.Close()
		}
	}()
	next := 0
	for i := range infos {
		for ; next < min(i+readAhead, len(infos)); next++ {
			open = append(open, r.files.file(infos[next].host, infos[next].Number, file))
		}
		if err := f(&infos[i], open[0]); err != nil {
			return err
		}
		open[0].Close()
		open = open[1:]
	}
	return nil
}

// hostOfRank returns the name of a rank's host, as the user knows it.
func (r *run) hostOfRank(number int) string {
	if r.onlyThisHost() {
		return r.host
	}
	return r.nameOf(r.ranks[number].host)
}

// noProfile returns why a rank has not written its profile. begun means that it has called Init.
func (r *run) noProfile(number int, begun bool) string {
	e := r.ranks[number].exit
	switch {
	case e != nil && e.Signal != 0 && e.AfterEnd:
		return "gorun ended it"
	case e != nil && e.Signal != 0:
		return "it was killed by " + signalName(syscall.Signal(e.Signal))
	case begun:
		return "it ended without Finalize"
	}
	return r.programOf(number).program + " is not a weft program, or has not called comm.Init"
}
