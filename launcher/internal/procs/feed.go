package procs

import (
	"os"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// feed writes the standard input that comes in Stdin messages to a pipe. The sender may have at most
// proto.Window bytes on the way for which it has not got StdinCredit, so parts holds no more bytes
// than that.
type feed struct {
	emit func(proto.Message)
	w    *os.File
	done chan struct{} // closed when pump has ended

	mu    sync.Mutex // guards the following fields
	parts [][]byte   // input that pump has not written yet
	some  *sync.Cond // pump waits here for a change of parts or ended
	ended bool       // the end of the input has come, or close was called
}

// newFeed starts a feed and returns it with the read end of its pipe, which the caller must close.
func newFeed(emit func(proto.Message)) (*feed, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	f := &feed{emit: emit, w: w, done: make(chan struct{})}
	f.some = sync.NewCond(&f.mu)
	go f.pump() // ends at the end of the input or when close is called; close waits for it
	return f, r, nil
}

// add takes the next part of the input. An empty part is its end.
func (f *feed) add(data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	if len(data) == 0 {
		f.ended = true
	} else {
		f.parts = append(f.parts, data)
	}
	f.some.Signal()
}

// pump writes the parts to the pipe and emits StdinCredit for each.
func (f *feed) pump() {
	defer close(f.done)
	defer func() { _ = f.w.Close() }()
	for {
		f.mu.Lock()
		for len(f.parts) == 0 && !f.ended {
			f.some.Wait()
		}
		if len(f.parts) == 0 {
			f.mu.Unlock()
			return
		}
		data := f.parts[0]
		f.parts = f.parts[1:]
		f.mu.Unlock()
		_, _ = f.w.Write(data) // fails if no reader is left; the sender gets credit all the same
		f.emit(proto.StdinCredit{Bytes: len(data)})
	}
}

// close ends the feed. The caller makes sure that no rank runs.
func (f *feed) close() {
	f.mu.Lock()
	f.ended, f.parts = true, nil
	f.some.Signal()
	f.mu.Unlock()
	_ = f.w.Close() // unblocks a Write
	<-f.done
}
