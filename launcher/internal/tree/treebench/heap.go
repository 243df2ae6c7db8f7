package main

import (
	"context"
	"encoding/binary"
	"io"
	"runtime"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree"
)

// script is the stream to a child that does not exist. It answers Launch, Prepare and Start with
// bytes that were encoded before, as the head of a subtree would answer.
type script struct {
	io.Reader
	w       *io.PipeWriter
	answers [][]byte    // the answers that were not sent yet, in the order Up, Prepared, Started
	due     chan []byte // answers on their way to Read
	close   sync.Once
}

func newScript(answers [][]byte) *script {
	r, w := io.Pipe()
	s := &script{Reader: r, w: w, answers: answers, due: make(chan []byte, len(answers))}
	go func() { // ends after Close
		for b := range s.due {
			_, _ = w.Write(b) // fails when the stream is closed
		}
	}()
	return s
}

// Write takes whole frames, and answers those that need an answer.
func (s *script) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if k := proto.Kind(rest[4]); k == proto.KindLaunch || k == proto.KindPrepare || k == proto.KindStart {
			s.due <- s.answers[0]
			s.answers = s.answers[1:]
		}
		rest = rest[4+binary.LittleEndian.Uint32(rest):]
	}
	return len(p), nil
}

// Cause returns nil.
func (s *script) Cause() error { return nil }

// Close ends the stream. The caller does not call Write afterwards.
func (s *script) Close() error {
	s.close.Do(func() { close(s.due) })
	return s.w.Close()
}

// scripts returns the encoded answers of each of the root's children, by the name of the child's
// host.
func (s setting) scripts() map[string][][]byte {
	children := make(map[string][][]byte)
	parts := min(s.radix, s.agents)
	for first, k := 0, 0; k < parts; k++ {
		count := (s.agents - first + parts - k - 1) / (parts - k)
		var up proto.Up
		var started proto.Started
		for i := first; i < first+count; i++ {
			up.Agents = append(up.Agents, agent(i))
			for r := range s.ranks {
				started.Ranks = append(started.Ranks, proto.StartedRank{Rank: i*s.ranks + r, PID: 1000 + r, At: 1 << 60})
			}
		}
		for _, m := range []proto.Message{up, proto.Prepared{}, started} {
			b, err := proto.Append(nil, m)
			if err != nil {
				panic(err) // cannot happen: these messages are valid
			}
			children[hostName(first)] = append(children[hostName(first)], b)
		}
		first += count
	}
	return children
}

// rootHeap returns how many bytes of heap the tree's root keeps while ranks run. The messages
// between the root and gorun do not count, because gorun may keep them itself.
func rootHeap(s setting) int64 {
	launch, prepare, children := s.launch(), s.prepare(), s.scripts()
	said := make(chan proto.Message, 16)
	before := heap()
	root, err := tree.New(tree.Config{
		Launch: launch,
		Open: func(_ context.Context, h hosts.Host) (tree.Stream, error) {
			return newScript(children[h.Name]), nil
		},
		Up: func(m proto.Message) { said <- m },
	})
	if err != nil {
		panic(err) // cannot happen: parse has checked the setting
	}
	<-said
	root.Do(prepare)
	<-said
	root.Do(proto.Start{})
	<-said
	kept := heap() - before
	root.Close()
	runtime.KeepAlive(launch)
	runtime.KeepAlive(prepare)
	runtime.KeepAlive(children)
	return max(kept, 0)
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // frees what the first has moved out of sync.Pool
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
