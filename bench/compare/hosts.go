//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/weft-hpc/weft/bench/contest"
	"github.com/weft-hpc/weft/internal/testbed"
)

// The comparisons between hosts use two ranks, one on each of two hosts, which are made of Linux
// namespaces. The launcher, gorun or mpirun, runs on the first host and starts the rank on the second
// by ssh. So all processes run on these hosts and end at the latest when the hosts are removed:
//
//	host 1                       host 2
//	launcher ───────ssh───────►  agent
//	 └ rank 0 ◄─────tcp───────►   └ rank 1

// openHosts makes the hosts. If that fails, openHosts sets b.noHosts to the reason, and there are no
// comparisons between hosts.
func (b *built) openHosts() {
	if os.Geteuid() != 0 {
		b.noHosts = errors.New("only root can make hosts of namespaces")
		return
	}
	b.hosts, b.noHosts = testbed.Open(2)
}

// onHost returns a command line that runs the given command line on the first host.
func (b *built) onHost(command []string) []string {
	return b.hosts.Hosts()[0].Command(context.Background(), command[0], command[1:]...).Args
}

// betweenHosts returns the contests that compare weft with Open MPI between two hosts.
func (b *built) betweenHosts(s *settings) []*contest.Contest {
	if b.hosts == nil || !b.hasOpenMPI() {
		return nil
	}
	slots := strings.Join(b.hosts.Names(), ":1,") + ":1"
	// Both hosts have the same cores, so Open MPI would bind both ranks to the first core. It
	// would also try every network of this machine.
	network := b.hosts.Hosts()[0].Address() + "/24"
	overWeft := append([]string{"-ssh", b.hosts.SSH(), "-host", slots}, overTCP...)
	overMPI := []string{"--host", slots, "--bind-to", "none", "--mca", "plm_rsh_agent", b.hosts.SSH(),
		"--mca", "oob_tcp_if_include", network, "--mca", "btl_tcp_if_include", network}
	var all []*contest.Contest
	for _, m := range []struct {
		bench, size string
		metric      contest.Metric
		what        string
		target      float64
	}{
		{"latency", "8", contest.Micros, "8 B, one way", 0},
		{"mr", "8", contest.Rate, "message rate, 8 B", 5},
		{"latency", "1048576", contest.Micros, "1 MiB, one way", 0.9},
		{"bcast", "1048576", contest.Micros, "bcast, 1 MiB", 0.9},
	} {
		f := m.metric
		ours := b.benchCommand(s, overWeft, m.bench, "-sizes", m.size)
		peer := b.mpiCommand(s, overMPI, m.bench, m.size)
		all = append(all, &contest.Contest{
			Name:  "hosts",
			Lines: []contest.Line{{What: "tcp between two hosts, " + m.what, Unit: f.Unit, Target: m.target, More: f.More}},
			Ours:  contest.Side{Name: "weft", Measure: objects(f.Key, f.Scale, b.onHost(ours)...)},
			Peers: []contest.Side{{Name: "Open MPI", Measure: objects(f.Key, f.Scale, b.onHost(peer)...)}},
		})
	}
	return all
}
