// Package live describes a running job to its user: as metrics, and as a table that changes. Package ui
// shows it as a page.
package live

import (
	"fmt"
	"time"

	"github.com/weft-hpc/weft/internal/record"
)

// Snapshot is the state of a job at one moment.
type Snapshot struct {
	Job    string    `json:"job"` // id of the job
	Name   string    `json:"name"`
	Phase  string    `json:"phase"` // as gorun -ps shows it
	Begun  time.Time `json:"begun"` // when gorun was started
	At     time.Time `json:"at"`    // when the snapshot was made
	Hosts  []string  `json:"hosts"`
	Ranks  []Rank    `json:"ranks"`            // all ranks, by number
	Silent []string  `json:"silent,omitempty"` // hosts that have not answered in time
}

// Rank is the state of a rank.
type Rank struct {
	Name  string `json:"name"` // its number; for a spawned rank with its group, such as "1.0"
	Host  string `json:"host"`
	State string `json:"state"` // running, ended or failed
	// Figures are what the rank has done; nil: it is no weft program, or has not called Init, or its host
	// has not answered.
	Figures *record.Figures `json:"figures,omitempty"`
}

// Row is what a rank has done between two snapshots.
type Row struct {
	*Rank
	Calls    float64 // calls per second, without nonblocking collectives
	Messages float64 // messages sent per second
	Bytes    float64 // bytes sent in messages per second
	InCalls  float64 // part of the time in calls of package comm, from 0 to 1; of several goroutines also more
}

// Rows returns what each rank has done between the snapshots before and now. If before is nil, the
// snapshots are not comparable, or a rank has no figures in both, the figures of its row are 0.
func Rows(before, now *Snapshot) []Row {
	rows := make([]Row, len(now.Ranks))
	for i := range rows {
		rows[i].Rank = &now.Ranks[i]
		if before == nil || before.Job != now.Job || i >= len(before.Ranks) || before.Ranks[i].Figures == nil || now.Ranks[i].Figures == nil {
			continue
		}
		was, is := before.Ranks[i].Figures, now.Ranks[i].Figures
		d := (is.Elapsed - was.Elapsed).Seconds()
		if d <= 0 {
			continue
		}
		calls, inCalls := sums(is)
		c, t := sums(was)
		rows[i].Calls = (calls - c) / d
		rows[i].InCalls = (inCalls - t) / d
		oneCall := was.Inside != nil && is.Inside != nil && *was.Inside == *is.Inside ||
			was.Waiting != nil && is.Waiting != nil && was.Waiting.Since == is.Waiting.Since
		if oneCall {
			rows[i].InCalls = max(rows[i].InCalls, 1) // the time of a call counts only when the call ends
		}
		rows[i].Messages = (float64(is.Messages) - float64(was.Messages)) / d
		rows[i].Bytes = (float64(is.Bytes) - float64(was.Bytes)) / d
	}
	return rows
}

// sums returns the number of calls of a rank, and the seconds that it has spent in them.
func sums(f *record.Figures) (calls, seconds float64) {
	for _, o := range f.Ops {
		if !o.Background {
			calls += float64(o.Calls)
			seconds += o.Time.Seconds()
		}
	}
	return calls, seconds
}

// Doing returns in words what the rank does, as far as its figures show it.
func (r *Rank) Doing() string {
	switch f := r.Figures; {
	case r.State != "running":
		return r.State
	case f == nil:
		return "not in weft"
	case f.Finalized:
		return "finalized"
	case f.Inside != nil:
		return fmt.Sprintf("in %s %d of %s", f.Inside.Op, f.Inside.Seq, f.Inside.Comm)
	case f.Waiting != nil:
		return f.Waiting.String()
	default:
		return "running"
	}
}
