package procs

import (
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// captured is the state of the latest Capture. The files are in rankFiles, where gorun reads them when it has
// Captured:
//
//	CaptureTrace:  rank ── ring ──► drainer, for Capture.Time ──► spool
//	a profile:     rank ◄── request ── Manager
//	               rank ── pieces of its answer ──► Manager ──► file
type captured struct {
	proto.Capture
	drainer *drainer  // of CaptureTrace; nil: there is none
	until   time.Time // when the Manager ends the Capture; zero: it has ended
	left    int       // number of files that are not complete; the spools count as one file
}

// captureLimit is how long after the time of a profile the Manager waits for the answers of the ranks.
const captureLimit = 5 * time.Second

// captureMax is the largest number of bytes of a rank's events. A message and its call take about 12.
const captureMax = 256 << 20

// spooled is the message that the drainer of a Capture has ended.
type spooled struct{ file int }

// capture handles Capture. If the Manager cannot keep the data of a rank, the rank's file is empty or says why.
func (c *Manager) capture(m proto.Capture) {
	c.endCapture()
	c.captured.drainer.join()
	c.captured = captured{Capture: m, left: 1}
	switch {
	case c.phase != phaseRunning:
	case m.Kind == proto.CaptureTrace:
		c.captureTrace()
	default:
		c.captureProfiles()
	}
	if c.captured.drainer == nil {
		c.completed()
	}
}

// completed records that a file is complete. If it was the last one, completed emits Captured.
func (c *Manager) completed() {
	if c.captured.left--; c.captured.left == 0 {
		c.captured.until = time.Time{}
		c.cfg.Emit(proto.Captured{File: c.captured.File, Index: c.cfg.Index})
	}
}

// captureTrace starts a drainer.
func (c *Manager) captureTrace() {
	readers, err := c.records.events(c.job.Card.Size)
	if err != nil || len(readers) == 0 {
		return
	}
	d := newDrainer(&c.cfg.shared.files, c.captured.File)
	for i, rd := range readers {
		s := &spool{rank: c.plan.Ranks[i].Rank, ranks: c.job.Card.Size, reader: rd, late: rd.Begun(), limit: captureMax}
		f, err := c.cfg.shared.files.capture(s.rank, c.captured.Capture)
		if s.out = f; err != nil {
			s.err = err
		}
		s.ended.Store(c.ranks[i].exited)
		rd.SetDetail(true)
		d.spools = append(d.spools, s)
	}
	c.captured.drainer, c.captured.until = d, time.Now().Add(c.captured.Time)
	d.start()
	file := c.captured.File
	go func() { // ends when the drainer has ended; release waits for that
		<-d.done
		c.post(spooled{file})
	}()
}

// spooled handles the end of a drainer.
func (c *Manager) spooled(m spooled) {
	if m.file == c.captured.File {
		c.completed()
	}
}

// captureProfiles asks the ranks for profiles.
func (c *Manager) captureProfiles() {
	m := c.captured.Capture
	c.captured.until = time.Now().Add(m.Time + captureLimit)
	question := wire.AppendInspect(nil, uint32(m.File), wire.InspectProfile, wire.AppendProfileRequest(nil, m.Kind, m.Time))
	begun := wire.AppendProfile(nil, wire.ProfileBegun, nil)
	for i := range c.ranks {
		rank, a := c.plan.Ranks[i].Rank, &c.ranks[i].answers
		if !a.ready {
			c.readAnswer(i) // the rank may just have said that it is
		}
		f, err := c.cfg.shared.files.capture(rank, m)
		reason := ""
		switch {
		case err != nil:
			reason = reasonOf(err)
		case c.ranks[i].exited:
			reason = "it has ended"
		case !a.ready: // not a weft program, or before Init
		case a.fd < 0:
			reason = "it has called Finalize"
		case send(a.fd, question) != len(question):
			reason = "it does not read what gorun asks"
		default:
			_, _ = f.Write(begun) // without more, gorun sees that the rank has not answered
			a.profile, a.room = f, wire.InspectMaxProfile
			c.captured.left++
		}
		if reason != "" {
			c.cfg.shared.files.setRest(rank, m.File, wire.AppendProfile(nil, wire.ProfileFailed, []byte(reason)))
		}
	}
}

// profiled handles a piece of a profile from local rank i.
func (c *Manager) profiled(i int, number uint32, piece []byte) {
	a := &c.ranks[i].answers
	if a.profile == nil || number != uint32(c.captured.File) {
		return
	}
	a.room -= len(piece)
	if len(piece) > 0 && a.room >= 0 {
		if _, err := a.profile.Write(piece); err == nil {
			return
		}
	}
	c.endProfile(i)
}

// endProfile records that the profile of local rank i is complete, or that no more of it comes.
func (c *Manager) endProfile(i int) {
	a := &c.ranks[i].answers
	if a.profile != nil {
		a.profile = nil
		c.completed()
	}
}

// endCapture ends the Capture under way, if there is one. It does not wait for the drainer.
func (c *Manager) endCapture() {
	c.captured.until = time.Time{}
	if c.captured.drainer != nil {
		c.captured.drainer.stop()
	}
	for i := range c.ranks {
		c.endProfile(i)
	}
}
