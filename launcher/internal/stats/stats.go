// Package stats turns the figures of the ranks of a job into statistics: tables of calls and messages,
// and pictures of the communication matrix.
package stats

import (
	"cmp"
	"slices"
	"time"

	"github.com/weft-hpc/weft/internal/record"
)

// Summary are the statistics of a job or of a group of ranks. docs/sight.md describes its JSON form.
type Summary struct {
	Schema   int    `json:"schema_version"` // 1
	Job      string `json:"job_id"`
	Ranks    int    `json:"ranks"`              // number of ranks of the job
	Recorded int    `json:"recorded"`           // number of ranks that have recorded: weft programs after Init
	Elapsed  Spread `json:"elapsed_seconds"`    // from Init to Finalize
	InCalls  Spread `json:"in_calls_seconds"`   // in calls of package comm, without those in the background
	Calls    []Call `json:"calls"`              // those that took the longest come first
	Sizes    []Size `json:"sizes"`              // messages by size
	Matrix   []Cell `json:"matrix"`             // messages between ranks; pairs without messages have no cell
	PerRank  []Rank `json:"per_rank,omitempty"` // in the order of their numbers
}

// Spread describes a value that each rank has.
type Spread struct {
	Mean    float64 `json:"mean"`
	Max     float64 `json:"max"`
	MaxRank int     `json:"max_rank"` // a rank with the value Max
}

// Imbalance is Max / Mean: 1 if all ranks have the same value. It is 0 if the mean is 0.
func (s Spread) Imbalance() float64 {
	if s.Mean == 0 {
		return 0
	}
	return s.Max / s.Mean
}

// Call are the statistics of one operation over all ranks.
type Call struct {
	Name       string  `json:"name"`
	Calls      uint64  `json:"calls"`
	Bytes      uint64  `json:"bytes"`
	Seconds    Spread  `json:"seconds"` // ranks that have not made the call count with 0 seconds
	Share      float64 `json:"share"`   // of the elapsed time of all ranks
	Background bool    `json:"background,omitempty"`
}

// Size is a class of messages: those with From to To bytes.
type Size struct {
	From     uint64 `json:"from"`
	To       uint64 `json:"to"`
	Messages uint64 `json:"messages"`
}

// Cell are the messages that one rank has sent to another.
type Cell struct {
	From     int    `json:"from"`
	To       int    `json:"to"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Rank are the sums of one rank.
type Rank struct {
	Rank     int     `json:"rank"`
	Elapsed  float64 `json:"elapsed_seconds"`
	InCalls  float64 `json:"in_calls_seconds"`
	Messages uint64  `json:"messages"`
	Bytes    uint64  `json:"bytes"`
}

// Of returns the statistics of a job with this number of ranks. figures are those of the ranks that have
// recorded; the numbers in them are from 0 to ranks-1.
func Of(job string, ranks int, figures []record.Figures) *Summary {
	s := &Summary{Schema: 1, Job: job, Ranks: ranks, Recorded: len(figures), Calls: []Call{}, Sizes: []Size{}, Matrix: []Cell{}}
	figures = slices.SortedFunc(slices.Values(figures), func(a, b record.Figures) int { return a.Rank - b.Rank })
	calls := make(map[string]*gather)
	var elapsed, inCalls gather
	var sizes [record.Classes]uint64
	for _, f := range figures {
		own := Rank{Rank: f.Rank, Elapsed: f.Elapsed.Seconds(), Messages: f.Messages, Bytes: f.Bytes}
		for _, o := range f.Ops {
			c := calls[o.Name]
			if c == nil {
				c = &gather{call: Call{Name: o.Name, Background: o.Background}}
				calls[o.Name] = c
			}
			c.call.Calls += o.Calls
			c.call.Bytes += o.Bytes
			c.add(f.Rank, o.Time)
			if !o.Background {
				own.InCalls += o.Time.Seconds()
			}
		}
		elapsed.add(f.Rank, f.Elapsed)
		inCalls.addSeconds(f.Rank, own.InCalls)
		for i, n := range f.Sizes[:min(len(f.Sizes), len(sizes))] {
			sizes[i] += n
		}
		for _, p := range f.Peers {
			if p.Rank >= 0 && p.Rank < ranks {
				s.Matrix = append(s.Matrix, Cell{f.Rank, p.Rank, p.Messages, p.Bytes})
			}
		}
		s.PerRank = append(s.PerRank, own)
	}
	s.Elapsed, s.InCalls = elapsed.spread(len(figures)), inCalls.spread(len(figures))
	for _, c := range calls {
		c.call.Seconds = c.spread(len(figures))
		if elapsed.sum > 0 {
			c.call.Share = c.sum / elapsed.sum
		}
		s.Calls = append(s.Calls, c.call)
	}
	slices.SortFunc(s.Calls, func(a, b Call) int {
		return cmp.Or(cmp.Compare(b.Seconds.Mean, a.Seconds.Mean), cmp.Compare(a.Name, b.Name))
	})
	for i, n := range sizes {
		switch {
		case n == 0:
		case i == 0:
			s.Sizes = append(s.Sizes, Size{0, 0, n})
		default:
			s.Sizes = append(s.Sizes, Size{1 << (i - 1), 1<<i - 1, n})
		}
	}
	return s
}

// gather adds up a value of the ranks.
type gather struct {
	sum, max float64
	maxRank  int
	call     Call
}

func (g *gather) add(rank int, d time.Duration) { g.addSeconds(rank, d.Seconds()) }

func (g *gather) addSeconds(rank int, v float64) {
	g.sum += v
	if v > g.max {
		g.max, g.maxRank = v, rank
	}
}

func (g *gather) spread(n int) Spread {
	return Spread{g.sum / float64(max(n, 1)), g.max, g.maxRank}
}
