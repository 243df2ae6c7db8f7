package launcher

import (
	"context"
	"slices"
	"time"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/live"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// measureLimit is how long gorun waits for the figures of the hosts. A host needs no answer of its
// ranks for them.
const measureLimit = 3 * time.Second

// measureRequest asks [run.control] for the figures of the ranks. Requests that come while gorun waits
// for figures get them together, so the hosts answer one question at a time, regardless of the number of
// requests.
type measureRequest struct {
	peers bool // also the messages to each rank
	// then is called once, by the goroutine that runs [run.control] or that ends the run. It must not
	// block. The snapshot is nil if no rank runs. It must not be changed.
	then func(*live.Snapshot)
}

// measurement is a question for figures under way.
type measurement struct {
	requests []measureRequest
	n        int          // Measure.N
	silent   map[int]bool // hosts that have not answered, by index
	figures  []record.Figures
}

// lateMeasurement is the message of a timer to [run.control]: the time for answers to the Measure with
// this N is over.
type lateMeasurement struct{ n int }

// measure begins a measurement for a request, or queues the request if one is under way.
func (r *run) measure(q measureRequest) {
	if r.phase != phaseRunning {
		q.then(nil)
		return
	}
	r.measureQueue = append(r.measureQueue, q)
	r.nextMeasurement()
}

// nextMeasurement begins a measurement for all queued requests, unless one is under way.
func (r *run) nextMeasurement() {
	if r.measuring != nil || len(r.measureQueue) == 0 {
		return
	}
	r.measureSeq++
	m := &measurement{requests: r.measureQueue, n: r.measureSeq, silent: make(map[int]bool)}
	r.measureQueue = nil
	if r.phase != phaseRunning {
		m.answer(nil)
		return
	}
	for i := range r.hosts {
		if r.hosts[i].state != hostLost && len(r.ranksOn(i)) > 0 {
			m.silent[i] = true
		}
	}
	r.measuring = m
	peers := slices.ContainsFunc(m.requests, func(q measureRequest) bool { return q.peers })
	r.node.Do(proto.Measure{N: m.n, Peers: peers})
	if len(m.silent) == 0 { // all hosts are lost
		r.endMeasurement()
		return
	}
	late := lateMeasurement{m.n}
	time.AfterFunc(measureLimit, func() { r.mail.post(late) })
}

// answer answers the requests of the measurement.
func (m *measurement) answer(a *live.Snapshot) {
	for _, q := range m.requests {
		q.then(a)
	}
}

// hostMeasured handles Measured, the answer of a host.
func (r *run) hostMeasured(a proto.Measured) {
	m := r.measuring
	if m == nil || a.N != m.n || !m.silent[a.Index] {
		return
	}
	delete(m.silent, a.Index)
	for _, f := range a.Figures {
		if r.valid(f.Rank) {
			m.figures = append(m.figures, f)
		}
	}
	if len(m.silent) == 0 {
		r.endMeasurement()
	}
}

// measureWithout ends the wait for the figures of a host that is lost.
func (r *run) measureWithout(host int) {
	if m := r.measuring; m != nil && m.silent[host] {
		delete(m.silent, host)
		if len(m.silent) == 0 {
			r.endMeasurement()
		}
	}
}

// endMeasurement answers the requests of the measurement under way, and begins the next one.
func (r *run) endMeasurement() {
	m := r.measuring
	r.measuring = nil
	a := r.snapshot(m.figures)
	for i := range m.silent {
		a.Silent = append(a.Silent, r.nameOf(i))
	}
	slices.Sort(a.Silent)
	m.answer(a)
	r.nextMeasurement()
}

// dropMeasurements answers all requests that have no answer yet, when the run is over. left are further
// requests.
func (r *run) dropMeasurements(left []measureRequest) {
	if m := r.measuring; m != nil {
		r.measuring = nil
		m.answer(nil)
	}
	for _, q := range append(r.measureQueue, left...) {
		q.then(nil)
	}
	r.measureQueue = nil
}

// snapshot returns the state of the job. figures are those of ranks that have begun a record.
func (r *run) snapshot(figures []record.Figures) *live.Snapshot {
	state := r.state()
	s := &live.Snapshot{Job: r.id, Name: r.job.Name, Phase: state.Phase, Begun: state.Began, At: time.Now(), Ranks: make([]live.Rank, len(r.ranks))}
	for _, h := range r.hosts {
		s.Hosts = append(s.Hosts, h.Name)
	}
	for i := range r.ranks {
		k := &r.ranks[i]
		s.Ranks[i] = live.Rank{Name: r.nameOfRank(i), Host: r.nameOf(k.host), State: "running"}
		switch {
		case k.failed || k.abort != nil || k.exit != nil && (k.exit.Code != 0 || k.exit.Signal != 0) && !k.exit.AfterEnd || r.hosts[k.host].state == hostLost:
			s.Ranks[i].State = "failed"
		case k.exit != nil:
			s.Ranks[i].State = "ended"
		}
	}
	for i := range figures {
		s.Ranks[figures[i].Rank].Figures = &figures[i]
	}
	return s
}

// askSnapshot returns the state of the job, with what its ranks have done. It blocks until gorun has
// it, at most for answerTime, and not after the end of ctx. After the ranks have ended, while gorun reads their
// traces and profiles, the snapshot says only how they ended. It is nil if no rank runs yet, or if gorun
// has not answered in time. peers is measureRequest.peers.
func (s *session) askSnapshot(ctx context.Context, peers bool) *live.Snapshot {
	r := s.current.Load()
	if r == nil {
		return nil
	}
	done := make(chan *live.Snapshot, 1)
	if !r.mail.post(measureRequest{peers, func(m *live.Snapshot) { done <- m }}) {
		return r.finalSnapshot()
	}
	select {
	case m := <-done:
		return m
	case <-ctx.Done():
		return nil
	case <-time.After(answerTime):
		return nil
	}
}
