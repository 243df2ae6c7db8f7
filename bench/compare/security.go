//go:build linux

package main

import (
	"slices"
	"strings"

	"github.com/weft-hpc/weft/bench/contest"
)

// bySecurity returns the contests that compare the values of transport.tcp.security, within this host
// and between two hosts.
func (b *built) bySecurity(s *settings) []*contest.Contest {
	var all []*contest.Contest
	for _, m := range []struct {
		bench, size string
		metric      contest.Metric
		what        string
	}{
		{"latency", "8", contest.Micros, "8 B, one way"},
		{"mr", "8", contest.Rate, "message rate, 8 B"},
		{"latency", "1048576", contest.Micros, "1 MiB, one way"},
		{"bw", "1048576", contest.Bandwidth, "1 MiB, stream"},
	} {
		side := func(security string, hosts bool) contest.Side {
			over := append(slices.Clone(overTCP), "-p", "transport.tcp.security="+security)
			wrap := slices.Clone[[]string]
			if hosts {
				over = append(over, "-ssh", b.hosts.SSH(), "-host", strings.Join(b.hosts.Names(), ":1,")+":1")
				wrap = b.onHost
			}
			command := wrap(b.benchCommand(s, over, m.bench, "-sizes", m.size))
			return contest.Side{Name: security, Measure: objects(m.metric.Key, m.metric.Scale, command...)}
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
				Lines: []contest.Line{{What: "encrypt, " + where + ", " + m.what, Unit: m.metric.Unit, More: m.metric.More}},
				Ours:  side("encrypt", hosts),
				Peers: []contest.Side{side("none", hosts), side("integrity", hosts)},
			})
		}
	}
	return all
}
