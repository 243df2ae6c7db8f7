package tree

import (
	"maps"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// The queues of a link, and their bounds:
//
//	urgent  For each phase (see merge.go) at most one message, such as Prepare or its answer
//	        Prepared. Upward: messages that are not merged, a few for each host and rank of the
//	        subtree, which merge.go counts. Downward: one Reply for each rank and one Release of
//	        each group, because a node accepts the next Request or Fence only when the last Reply or Release
//	        has left the queue, see unread; and messages that gorun sends without a request, a
//	        few for each rank of the job. One AskTime or Time of each host. Credits that follow each other are joined.
//	states  The newest State of each group on each host.
//	bulk    Output within proto.Window; Stdin within proto.Window; FilePart within
//	        filesAhead and proto.FileWindow, see files.go; for each Inspect the Stacks of
//	        each rank and the Inspected of each host; for each Measure the Measured of each
//	        host; for each Capture the Captured of each host; one Part for each Fetch;
//	        one Ended and one Bye.

// frame is a message in a queue. Links that send the same message share the frame and its
// bytes.
type frame struct {
	m      proto.Message
	shared bool // several links may send the frame: encode it once and keep the bytes

	once  sync.Once // lets append set bytes and err once
	bytes []byte
	err   error
}

// append appends the encoded message to dst.
func (f *frame) append(dst []byte) ([]byte, error) {
	if !f.shared {
		return proto.Append(dst, f.m)
	}
	f.once.Do(func() { f.bytes, f.err = proto.Append(nil, f.m) })
	return append(dst, f.bytes...), f.err
}

// size returns how many bytes a message counts in counters.queued and in a batch. Messages of all
// other types count 0.
func size(m proto.Message) int {
	switch m := m.(type) {
	case proto.Output:
		return cost(m)
	case proto.FilePart:
		return len(m.Data)
	case proto.Stdin:
		return len(m.Data)
	case proto.Stacks:
		return len(m.Data)
	case proto.Part:
		return len(m.Data)
	}
	return 0
}

// send queues a message. It does not block. After the link's end it does nothing.
func (l *link) send(m proto.Message) { l.sendFrame(&frame{m: m}) }

func (l *link) sendFrame(f *frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.writeErr != nil {
		return
	}
	switch m := f.m.(type) {
	case proto.Output, proto.Stdin, proto.Stacks, proto.Inspected, proto.Measured, proto.Captured, proto.Part, proto.Ended:
		l.push(f)
	case proto.FilePart:
		l.files.add(l.flowControl, len(m.Data))
		l.push(f)
	case proto.Bye:
		l.dropFiles()
		l.push(f)
	case proto.State:
		if l.states == nil {
			l.states = make(map[stateKey]*frame)
		}
		l.states[stateKey{m.Index, m.Group}] = f
	case proto.Credit, proto.StdinCredit:
		if !l.joinCredit(m) {
			l.urgent = append(l.urgent, f)
		}
	case proto.Reply:
		l.replies++
		l.urgent = append(l.urgent, f)
	case proto.Release:
		if l.releases == nil {
			l.releases = make(map[int]int)
		}
		l.releases[m.Group]++
		l.urgent = append(l.urgent, f)
	default:
		l.urgent = append(l.urgent, f)
	}
	l.signal()
}

// push queues a message in bulk, where messages of the other queues overtake it. The caller holds mu.
func (l *link) push(f *frame) {
	l.bulk = append(l.bulk, f)
	l.count.queue(size(f.m))
}

// joinCredit adds a credit to the last message in urgent if that is a credit of the same kind. It
// reports whether it has done so. The caller holds mu.
func (l *link) joinCredit(m proto.Message) bool {
	if len(l.urgent) == 0 {
		return false
	}
	last := &l.urgent[len(l.urgent)-1]
	switch m := m.(type) {
	case proto.Credit:
		if was, ok := (*last).m.(proto.Credit); ok {
			*last = &frame{m: proto.Credit{Bytes: was.Bytes + m.Bytes}}
			return true
		}
	case proto.StdinCredit:
		if was, ok := (*last).m.(proto.StdinCredit); ok {
			*last = &frame{m: proto.StdinCredit{Bytes: was.Bytes + m.Bytes}}
			return true
		}
	}
	return false
}

// unread returns how many Replies, and how many Releases of a group, wait in urgent. The other side
// cannot have read these yet.
func (l *link) unread(group int) (replies, releases int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replies, l.releases[group]
}

// signal wakes the goroutine write.
func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// clearQueues empties the queues. The caller holds mu.
func (l *link) clearQueues() {
	for _, f := range l.bulk {
		l.count.queue(-size(f.m))
	}
	l.urgent, l.states, l.bulk, l.replies, l.releases = nil, nil, nil, 0, nil
	l.files.add(l.flowControl, -l.files.bytes)
}

// next blocks until there is something to write: a batch of messages or a Beat. ok is false when the
// link has ended.
func (l *link) next() (batch []*frame, beat, ok bool) {
	for {
		l.mu.Lock()
		l.busy = false
		if l.err != nil {
			l.mu.Unlock()
			return nil, false, false
		}
		l.giveFileCredit()
		switch {
		case len(l.urgent) > 0:
			batch, l.urgent, l.replies, l.releases = l.urgent, nil, 0, nil
		case len(l.states) > 0:
			batch, l.states = slices.Collect(maps.Values(l.states)), nil
		default:
			batch = l.nextBulk()
		}
		beat, l.beat = l.beat && len(batch) == 0 && l.writeErr == nil, false
		l.busy = len(batch) > 0
		l.mu.Unlock()
		if len(batch) > 0 || beat {
			return batch, beat, true
		}
		<-l.wake
	}
}

// nextBulk takes messages of at most batchBytes bytes from bulk, or one longer message. It stops
// before a FilePart for which this side has no credit. The caller holds mu.
func (l *link) nextBulk() (batch []*frame) {
	n, bytes := 0, 0
	for n < len(l.bulk) && (n == 0 || bytes+size(l.bulk[n].m) <= batchBytes) {
		if p, ok := l.bulk[n].m.(proto.FilePart); ok && !l.flow.start(len(p.Data)) {
			break
		}
		bytes += size(l.bulk[n].m)
		n++
	}
	batch = append(batch, l.bulk[:n]...)
	clear(l.bulk[:n])
	if l.bulk = l.bulk[n:]; len(l.bulk) == 0 {
		l.bulk = nil
	}
	return batch
}

// flushed reports whether all urgent messages are written, or the link has ended.
func (l *link) flushed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil || len(l.urgent) == 0 && !l.busy
}

// written accounts for a batch that was written, or that could not be written because of err. An
// error does not end the link at once, because the goroutine read may still get the peer's last
// messages before the stream's end. If the stream does not end, [link.tick] ends the link later.
func (l *link) written(batch []*frame, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range batch {
		if n := size(f.m); n > 0 {
			l.count.queue(-n)
		}
		if _, ok := f.m.(proto.FilePart); ok && l.err == nil {
			l.files.add(l.flowControl, -size(f.m))
		}
	}
	if err != nil && l.err == nil {
		l.writeErr = err
		l.clearQueues()
	}
}
