//go:build linux

package run

import (
	"encoding/json"
	"os"
	"testing"
)

// Trace is a trace in the format of Chrome, with what tests look for.
type Trace struct {
	Ranks map[int]string         // names of the processes, by number of the rank
	Init  map[int]map[string]any // arguments of the events Init
	Calls map[int]int            // number of calls
	// Messages are the messages that have both ends.
	Messages []TraceMessage
	Ends     int // number of ends of messages
}

// TraceMessage is a message between two ranks.
type TraceMessage struct {
	From, To       int
	Sent, Received float64 // times in microseconds
}

// ReadTrace reads a trace.
func ReadTrace(t testing.TB, file string) *Trace {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		TraceEvents []struct {
			Ph, Name, ID string
			PID          int
			TS           float64
			Args         map[string]any
		}
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	tr := &Trace{Ranks: make(map[int]string), Init: make(map[int]map[string]any), Calls: make(map[int]int)}
	flows := make(map[string]*TraceMessage)
	for _, e := range all.TraceEvents {
		switch {
		case e.Ph == "M" && e.Name == "process_name":
			tr.Ranks[e.PID], _ = e.Args["name"].(string)
		case e.Ph == "i" && e.Name == "Init":
			tr.Init[e.PID] = e.Args
		case e.Ph == "X" && e.Name != "sent" && e.Name != "received":
			tr.Calls[e.PID]++
		case e.Ph == "s" || e.Ph == "f":
			tr.Ends++
			m := flows[e.ID]
			if m == nil {
				m = &TraceMessage{From: -1, To: -1}
				flows[e.ID] = m
			}
			if e.Ph == "s" {
				m.From, m.Sent = e.PID, e.TS
			} else {
				m.To, m.Received = e.PID, e.TS
			}
			if m.From >= 0 && m.To >= 0 {
				tr.Messages = append(tr.Messages, *m)
			}
		}
	}
	return tr
}

// Clock returns the offset of the clock of a rank's host and its largest error, in ns.
func (tr *Trace) Clock(rank int) (offset, bound float64) {
	offset, _ = tr.Init[rank]["clock_offset_ns"].(float64)
	bound, _ = tr.Init[rank]["clock_error_ns"].(float64)
	return offset, bound
}
