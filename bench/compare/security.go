//go:build linux

package main

import (
	"slices"
	"strings"

	"github.com/weft-hpc/weft/bench/contest"
)

// bySecurity compares the values of transport.tcp.security, within this host and between two.
func (b *built) bySecurity(s *settings) []*contest.Contest {
	var all []*contest.Contest
	for _, m := range []struct {
		bench, size string
		figure      figure
		what        string
	}{
		{"latency", "8", micros, "8 B, one way"},
		{"mr", "8", rate, "message rate, 8 B"},
		{"latency", "1048576", micros, "1 MiB, one way"},
		{"bw", "1048576", bandwidth, "1 MiB, stream"},
	} {
		side := func(security string, hosts bool) contest.Side {
			over := append(slices.Clone(overTCP), "-p", "transport.tcp.security="+security)
			wrap := slices.Clone[[]string]
			if hosts {
				over = append(over, "-ssh", b.hosts.SSH(), "-host", strings.Join(b.hosts.Names(), ":1,")+":1")
				wrap = b.onHost
			}
			command := wrap(b.benchCommand(s, over, m.bench, "-sizes", m.size))
			return contest.Side{Name: security, Measure: objects(m.figure.key, m.figure.scale, command...)}
		}
		for _, hosts := range []bool{false, true} {
			where := "within a host"
			if hosts {
				where = "between two hosts"
			}
			if hosts && b.hosts == nil {
				continue
			}
			all = append(all, &contest.Contest{
				Name:  "security",
				Lines: []contest.Line{{What: "encrypt, " + where + ", " + m.what, Unit: m.figure.unit, More: m.figure.more}},
				Ours:  side("encrypt", hosts),
				Peers: []contest.Side{side("none", hosts), side("integrity", hosts)},
			})
		}
	}
	return all
}
