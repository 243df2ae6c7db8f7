package record

import "testing"

// BenchmarkSent measures what the recorder adds to each message.
func BenchmarkSent(b *testing.B) {
	for name, detail := range map[string]bool{"flight": false, "detail": true} {
		b.Run(name, func(b *testing.B) {
			r, err := New(make([]byte, Size(2, FlightBits)), 0, 2, FlightBits)
			if err != nil {
				b.Fatal(err)
			}
			r.SetDetail(detail)
			for b.Loop() {
				r.Messages.Sent(0, 1, 7, 8, Eager, 1)
			}
		})
	}
}

// BenchmarkCall measures what the recorder adds to each collective.
func BenchmarkCall(b *testing.B) {
	for name, detail := range map[string]bool{"flight": false, "detail": true} {
		b.Run(name, func(b *testing.B) {
			r, err := New(make([]byte, Size(2, FlightBits)), 0, 2, FlightBits)
			if err != nil {
				b.Fatal(err)
			}
			r.SetDetail(detail)
			op := r.Op("Barrier", false)
			for b.Loop() {
				start, exact := r.Recent()
				r.Enter(op, 0, 1)
				r.Leave(&Event{Start: start, Op: op, Peer: -1, Tag: 1}, exact)
			}
		})
	}
}
