package tree

import (
	"maps"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// What waits on a link to be written:
//
//	urgent  Of each message that a whole subtree answers there is one at a time. Upward
//	        comes what is told of its own accord, which merge.go counts: a few for each
//	        host of the subtree and for each of its ranks. Downward a Reply for each
//	        rank and a Release, as nobody gets another before it has read the last one,
//	        see unread; and what gorun says by itself, which is a few for each rank of
//	        the job. Credits that follow on each other are one.
//	states  the newest State of each host
//	bulk    Output within proto.Window; Stdin within proto.Window; FilePart within
//	        filesAhead and proto.FileWindow, see files.go; for each Inspect a Stacks of
//	        each rank and an Inspected of each host; an Ended and a Bye.

// frame is a message in a queue. Links that send the same message share the frame and its
// bytes.
type frame struct {
	m      proto.Message
	shared bool

	once  sync.Once // guards what follows
	bytes []byte
	err   error
}

func (f *frame) append(dst []byte) ([]byte, error) {
	if !f.shared {
		return proto.Append(dst, f.m)
	}
	f.once.Do(func() { f.bytes, f.err = proto.Append(nil, f.m) })
	return append(dst, f.bytes...), f.err
}

// size is what a message counts among what waits.
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
	}
	return 0
}

// send queues a message. It does not block; after the link's end it does nothing.
func (l *link) send(m proto.Message) { l.sendFrame(&frame{m: m}) }

func (l *link) sendFrame(f *frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.mute != nil {
		return
	}
	switch m := f.m.(type) {
	case proto.Output, proto.Stdin, proto.Stacks, proto.Inspected, proto.Ended:
		l.push(f)
	case proto.FilePart:
		l.files.add(l.gate, len(m.Data))
		l.push(f)
	case proto.Bye:
		l.dropFiles()
		l.push(f)
	case proto.State:
		if l.states == nil {
			l.states = make(map[int]*frame)
		}
		l.states[m.Index] = f
	case proto.Credit, proto.StdinCredit:
		if !l.joined(m) {
			l.urgent = append(l.urgent, f)
		}
	case proto.Reply:
		l.replies++
		l.urgent = append(l.urgent, f)
	case proto.Release:
		l.releases++
		l.urgent = append(l.urgent, f)
	default:
		l.urgent = append(l.urgent, f)
	}
	l.signal()
}

// push queues what others overtake.
func (l *link) push(f *frame) {
	l.bulk = append(l.bulk, f)
	l.count.queue(size(f.m))
}

// joined makes one of a credit and of the one that waits right before it.
func (l *link) joined(m proto.Message) bool {
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

// unread is how many Reply and Release wait still, which the other side cannot have read.
func (l *link) unread() (replies, releases int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replies, l.releases
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// drop is called with mu held.
func (l *link) drop() {
	for _, f := range l.bulk {
		l.count.queue(-size(f.m))
	}
	l.urgent, l.states, l.bulk, l.replies, l.releases = nil, nil, nil, 0, 0
	l.files.add(l.gate, -l.files.bytes)
}

// next waits for something to write.
func (l *link) next() (batch []*frame, beat, ok bool) {
	for {
		l.mu.Lock()
		l.busy = false
		if l.err != nil {
			l.mu.Unlock()
			return nil, false, false
		}
		l.pay()
		switch {
		case len(l.urgent) > 0:
			batch, l.urgent, l.replies, l.releases = l.urgent, nil, 0, 0
		case len(l.states) > 0:
			batch, l.states = slices.Collect(maps.Values(l.states)), nil
		default:
			batch = l.nextBulk()
		}
		beat, l.beat = l.beat && len(batch) == 0 && l.mute == nil, false
		l.busy = len(batch) > 0
		l.mu.Unlock()
		if len(batch) > 0 || beat {
			return batch, beat, true
		}
		<-l.wake
	}
}

// nextBulk is called with mu held.
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

// flushed says whether nothing urgent waits, or is being written.
func (l *link) flushed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil || len(l.urgent) == 0 && !l.busy
}

// written accounts for a batch. After an error the reader finds the stream's end,
// and before it the peer's last words; or tick has seen enough.
func (l *link) written(batch []*frame, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range batch {
		if n := size(f.m); n > 0 {
			l.count.queue(-n)
		}
		if _, ok := f.m.(proto.FilePart); ok && l.err == nil {
			l.files.add(l.gate, -size(f.m))
		}
	}
	if err != nil && l.err == nil {
		l.mute = err
		l.drop()
	}
}
