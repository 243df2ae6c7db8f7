package procs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// inspectLimit is how long the Manager waits for the ranks' answers to an Inspect. A rank that is
// stopped, or that waits for a core, may answer later.
const inspectLimit = time.Second

// inspection is the state of the latest Inspect, a message by which gorun asks for the state of
// every rank: for example, the MPI calls in which it waits. The Manager asks the ranks, collects
// their answers and emits Inspected.
//
//	idle ──Inspect──► asked ──all have answered, or inspectLimit──► Inspected, idle
type inspection struct {
	proto.Inspect
	on     bool      // an Inspect was handled, and Inspected was not emitted yet
	until  time.Time // when Inspected is emitted even if ranks have not answered; zero if not on
	awaits int       // number of ranks that have been asked and have not answered
}

// answers is the state of a rank's channel for inspections.
type answers struct {
	fd    int             // this process's end; -1: closed
	in    []byte          // bytes that were read and not handled: the beginning of a frame
	ready bool            // the rank answers inspections: it is a weft program after Init
	state *wire.RankState // the rank's answer to the current Inspect; nil: it has not answered
	asked bool            // the rank was asked and has not answered yet

	profile *os.File // where the profile of the Capture under way is kept; nil: the rank makes none
	room    int      // number of bytes that the rank may still send for it
	stacks  int      // N of the last Inspect that asked the rank for its stacks; 0: none, or the rank has sent them
}

// inspect handles Inspect: it asks the ranks that answer inspections for their states, and for
// their stacks if m.Stacks is set.
func (c *Manager) inspect(m proto.Inspect) {
	c.inspection = inspection{Inspect: m, on: true, until: time.Now().Add(inspectLimit)}
	if c.phase == phaseRunning {
		kind := byte(wire.InspectState)
		if m.Stacks {
			kind = wire.InspectStacks
		}
		question := wire.AppendInspect(nil, uint32(m.N), kind, nil)
		for i := range c.ranks {
			a := &c.ranks[i].answers
			a.state, a.asked = nil, false
			if m.Stacks {
				a.stacks = 0
			}
			if a.ready && a.fd >= 0 && !c.ranks[i].exited && send(a.fd, question) == len(question) {
				a.asked = true
				c.inspection.awaits++
				if m.Stacks {
					a.stacks = m.N
				}
			}
		}
	}
	c.inspected()
}

// readAnswer reads once from rank i's channel for inspections, and handles the complete frames.
func (c *Manager) readAnswer(i int) {
	a := &c.ranks[i].answers
	if a.fd < 0 {
		return
	}
	buf := make([]byte, 64<<10)
	n, _, err := unix.Recvfrom(a.fd, buf, unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return
	case err != nil || n == 0:
		c.closeAnswers(i)
		return
	}
	rest := append(a.in, buf[:n]...)
	for {
		number, kind, body, behind, ok, err := wire.ParseInspect(rest)
		if err != nil {
			c.closeAnswers(i)
			return
		}
		if !ok {
			break
		}
		rest = behind
		c.answered(i, number, kind, body)
	}
	if a.in = rest; len(rest) == 0 {
		a.in = nil
	}
}

// answered handles a frame from local rank i. number is the N of the Inspect that the frame
// answers. answered ignores a state that answers an older Inspect. It passes on stacks even if they
// come after Inspected, but only once for each Inspect: gorun ends a job that sends more, see
// tree.Node.inspect.
func (c *Manager) answered(i int, number uint32, kind byte, body []byte) {
	a := &c.ranks[i].answers
	if kind == wire.InspectReady {
		a.ready = true
		return
	}
	if kind == wire.InspectProfile {
		c.profiled(i, number, body)
		return
	}
	if kind == wire.InspectStacks {
		if a.stacks > 0 && number == uint32(a.stacks) {
			m := proto.Stacks{N: a.stacks, Rank: c.plan.Ranks[i].Rank, Data: bytes.Clone(body)}
			a.stacks = 0
			c.cfg.Emit(m)
		}
		return
	}
	if !c.inspection.on || !a.asked || number != uint32(c.inspection.N) {
		return
	}
	state := &wire.RankState{}
	if json.Unmarshal(body, state) == nil {
		a.state = state
	}
	c.stopAsking(i)
}

// stopAsking records that a rank has answered the current Inspect, or cannot answer any more.
func (c *Manager) stopAsking(i int) {
	if a := &c.ranks[i].answers; a.asked {
		a.asked = false
		c.inspection.awaits--
		c.inspected()
	}
}

func (c *Manager) closeAnswers(i int) {
	a := &c.ranks[i].answers
	if a.fd >= 0 {
		// unix.Close alone does not remove the channel from the poller, because a rank that is
		// being forked may have a copy of it.
		c.poller.Remove(a.fd)
		_ = unix.Close(a.fd)
		a.fd, a.in = -1, nil
	}
	c.stopAsking(i)
	c.endProfile(i)
}

// inspected emits Inspected, once for each Inspect, if all ranks that were asked have answered or
// the time limit is over. It puts ranks with equal states into one group.
func (c *Manager) inspected() {
	if !c.inspection.on || c.inspection.awaits > 0 && time.Now().Before(c.inspection.until) {
		return
	}
	m := proto.Inspected{N: c.inspection.N, Index: c.cfg.Index}
	c.inspection = inspection{}
	at := make(map[string]int) // by state, as JSON: the index of its group in m.Groups
	for i := range c.ranks {
		rk := &c.ranks[i]
		if rk.exited || c.phase != phaseRunning {
			continue
		}
		c.mu.Lock()
		pid := rk.pid
		c.mu.Unlock()
		if pid <= 0 {
			continue
		}
		g := proto.Group{State: rk.answers.state}
		if g.State == nil {
			g.NoAnswer, g.Process = rk.answers.ready, processState(pid)
		}
		key, _ := json.Marshal(g)
		k, ok := at[string(key)]
		if !ok {
			k = len(m.Groups)
			at[string(key)] = k
			m.Groups = append(m.Groups, g)
		}
		m.Groups[k].Ranks = append(m.Groups[k].Ranks, c.plan.Ranks[i].Rank)
		if g.State == nil || len(g.State.Calls) == 0 {
			if text := c.lastText(i); text != "" {
				m.Last = append(m.Last, proto.RankText{Rank: c.plan.Ranks[i].Rank, Text: text})
			}
		}
		rk.answers.state, rk.answers.asked = nil, false
	}
	c.cfg.Emit(m)
}

// processState describes in words what the kernel reports about a process (proc_pid_stat(5)), for
// example "sh sleeps in do_wait".
func processState(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if err != nil || open < 0 || end < open || end+2 >= len(text) {
		return "process " + strconv.Itoa(pid) + " cannot be found"
	}
	does := map[byte]string{'R': "runs", 'S': "sleeps", 'D': "waits for a disk or a file server", 'T': "is stopped", 't': "is stopped by a debugger", 'Z': "has ended"}[text[end+2]]
	if does == "" {
		does = fmt.Sprintf("is in state %c", text[end+2])
	}
	name := strings.ToValidUTF8(string(text[open+1:end]), "?")
	where, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/wchan")
	if w := string(where); does == "sleeps" && w != "" && w != "0" {
		does += " in " + w
	}
	return name + " " + does
}
