package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// kind is the kind of an event.
type kind int

const (
	kindLayout kind = iota // names and hosts of the ranks
	kindState              // the state of the job and of each rank
	kindMatrix             // messages between ranks
	kindReport             // the last inspection
	kindEnd                // how the job has ended; no event follows
	kinds
)

// names of the events, as the page knows them.
var kindNames = [kinds]string{"layout", "state", "matrix", "report", "end"}

// board holds the newest event of each kind.
type board struct {
	data    [kinds][]byte // in JSON
	number  [kinds]int    // how many events of the kind there were
	changed chan struct{} // closed, and replaced, when an event is put on the board
	over    bool          // no more events follow
}

func newBoard() board { return board{changed: make(chan struct{})} }

// put replaces the event of a kind. v must have a form in JSON.
func (b *board) put(k kind, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		return // no value of this package is of a type without a form in JSON
	}
	b.data[k] = data
	b.number[k]++
	close(b.changed)
	b.changed = make(chan struct{})
}

// keepAlive is how often a browser gets a comment if there is no event, so that the server notices that
// the browser has gone, and proxies keep the connection.
const keepAlive = 15 * time.Second

// events sends events to a browser until the job has ended or the browser has gone. It is the handler of
// the page's stream of server-sent events.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	if p.listeners >= maxListeners {
		p.mu.Unlock()
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	p.listeners++
	history := p.history
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.listeners--
		p.mu.Unlock()
	}()
	signal(p.wake)
	c := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(name string, data []byte) error {
		// A browser that does not read for writeTime loses the connection.
		_ = c.SetWriteDeadline(time.Now().Add(p.writeTime))
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data); err != nil {
			return err
		}
		return c.Flush()
	}
	if data, err := json.Marshal(history); err != nil || send("history", data) != nil {
		return
	}
	var sent [kinds]int
	line := 0
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		p.mu.Lock()
		b := p.board
		p.mu.Unlock()
		lines, next := p.source.Output(line)
		if line = next; len(lines) > 0 {
			if data, err := json.Marshal(lines); err != nil || send("output", data) != nil {
				return
			}
		}
		for k := range kinds {
			if b.number[k] != sent[k] {
				if send(kindNames[k], b.data[k]) != nil {
					return
				}
				sent[k] = b.number[k]
			}
		}
		if b.over {
			return
		}
		select {
		case <-b.changed:
		case <-r.Context().Done():
			return
		case <-alive.C:
			if send("alive", []byte("0")) != nil {
				return
			}
		}
	}
}
