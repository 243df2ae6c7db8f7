package rma

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// stranger is rank 1 of a job of two. It sends arbitrary messages to the window of rank 0.
type stranger struct {
	ep  transport.Endpoint
	cq  transport.CompletionQueue
	seq uint32
}

const windowID = 2

// againstStranger opens a window of four int64 on rank 0, whose part is in the middle of memory.
func againstStranger(t testing.TB, opts ...inproc.Option) (m *member, memory []byte, s *stranger) {
	return againstStrangerIn(t, ofInt64(), opts...)
}

// againstStrangerIn is againstStranger for a window with a configuration. If the window is dynamic, the
// caller attaches m.local.
func againstStrangerIn(t testing.TB, cfg Config, opts ...inproc.Option) (m *member, memory []byte, s *stranger) {
	f := inproc.NewFabric(append(opts, inproc.WithoutRMA())...)
	var rails []engine.Rail
	var vectors []transport.AddressVector
	var addrs []transport.Address
	for i := range 2 {
		d, err := f.Open(transport.Config{Self: transport.Addr(i), Size: 2})
		require.NoError(t, err)
		t.Cleanup(func() { _ = d.Close() })
		cq, err := d.OpenCQ()
		require.NoError(t, err)
		av, err := d.OpenAV()
		require.NoError(t, err)
		ep, err := d.OpenEndpoint(av, cq)
		require.NoError(t, err)
		rails = append(rails, engine.Rail{Domain: d, CQ: cq, Endpoint: ep})
		vectors = append(vectors, av)
		addrs = append(addrs, ep.Address())
	}
	for _, av := range vectors {
		_, err := av.Insert(addrs)
		require.NoError(t, err)
	}
	e, err := engine.New(engine.Config{Rank: 0, Size: 2, Rails: rails[:1], LocalRanks: 2})
	require.NoError(t, err)
	t.Cleanup(e.Kill)
	memory = make([]byte, 96)
	m = &member{size: 2, e: e, local: memory[32:64:64], ctx: e.OpenContext(windowID, []int{0, 1})}
	cfg.Ctx, cfg.Local = m.ctx, m.local
	var part Part
	m.Window, part, err = New(cfg)
	require.NoError(t, err)
	require.NoError(t, value(m.Connect([]Part{part, part})))
	return m, memory, &stranger{ep: rails[1].Endpoint, cq: rails[1].CQ}
}

// sendNumbered sends a message with the sequence number that a correct peer would use.
func (s *stranger) sendNumbered(w wire.Window, data ...byte) error {
	s.seq++
	m := w.Message(windowID, len(data))
	m.Seq = s.seq
	return s.send(m, data)
}

func (s *stranger) send(m wire.Message, data []byte) error {
	var op transport.Op
	op.HeaderLen = m.Put(op.Header[:])
	op.Data = data
	_, err := s.ep.Send(&op)
	return err
}

// receive returns the next message that arrives.
func (s *stranger) receive(t testing.TB) (w wire.Window) {
	for {
		var c [1]transport.Completion
		n, err := s.cq.Read(c[:])
		require.NoError(t, err)
		if n == 1 && c[0].Kind == transport.RecvDone {
			var m wire.Message
			_, err = m.Parse(c[0].Msg)
			require.NoError(t, err)
			require.NoError(t, w.Parse(&m))
			return w
		}
	}
}

// drainMessages makes progress on m until it has read all messages of the stranger.
func (m *member) drainMessages(t testing.TB, s *stranger) {
	require.NoError(t, s.sendNumbered(wire.Window{Kind: wire.WinSync}))
	for len(m.e.Failed()) == 0 {
		_ = m.Sync()
		var c [1]transport.Completion
		if n, _ := s.cq.Read(c[:]); n == 1 && c[0].Kind == transport.RecvDone {
			var got wire.Message
			var w wire.Window
			if _, err := got.Parse(c[0].Msg); err == nil && w.Parse(&got) == nil && w.Kind == wire.WinAck {
				return
			}
		}
	}
}

// TestStrangeMessages checks that a rank that gets a message that no correct peer sends marks the
// sender as failed, and changes no byte.
func TestStrangeMessages(t *testing.T) {
	e := make([]byte, 8)
	for name, x := range map[string]struct {
		w    wire.Window
		data []byte
	}{
		"put behind":           {wire.Window{Kind: wire.WinPut, Addr: 25}, e},
		"put far behind":       {wire.Window{Kind: wire.WinPut, Addr: 33}, nil},
		"put before":           {wire.Window{Kind: wire.WinPut, Addr: math.MaxUint64 - 7}, e},
		"get behind":           {wire.Window{Kind: wire.WinGet, Addr: 8, Bytes: 25}, nil},
		"get before":           {wire.Window{Kind: wire.WinGet, Addr: math.MaxUint64, Bytes: 2}, nil},
		"get of all":           {wire.Window{Kind: wire.WinGet, Bytes: math.MaxUint64}, nil},
		"accumulate behind":    {wire.Window{Kind: wire.WinAcc, Op: uint8(Sum), Addr: 32}, e},
		"accumulate by what":   {wire.Window{Kind: wire.WinAcc, Op: uint8(Ops)}, e},
		"half an element":      {wire.Window{Kind: wire.WinAcc, Op: uint8(Sum)}, e[:4]},
		"across elements":      {wire.Window{Kind: wire.WinAcc, Op: uint8(Sum), Addr: 4}, e},
		"fetch behind":         {wire.Window{Kind: wire.WinFetch, Op: uint8(NoOp), Addr: 32, Bytes: 8}, nil},
		"fetch more than sent": {wire.Window{Kind: wire.WinFetch, Op: uint8(Sum), Bytes: 16}, e},
		"fetch for data":       {wire.Window{Kind: wire.WinFetch, Op: uint8(NoOp), Bytes: 8}, e},
		"fetch of all":         {wire.Window{Kind: wire.WinFetch, Op: uint8(NoOp), Bytes: 1 << 63}, nil},
		"swap of one":          {wire.Window{Kind: wire.WinSwap}, e},
		"swap behind":          {wire.Window{Kind: wire.WinSwap, Addr: 32}, make([]byte, 16)},
		"reply":                {wire.Window{Kind: wire.WinReply}, e},
		"counted reply":        {wire.Window{Kind: wire.WinReply, Count: 1}, e},
		"ack":                  {wire.Window{Kind: wire.WinAck, Count: 1}, nil},
		"ack from before":      {wire.Window{Kind: wire.WinAck, Count: math.MaxUint64}, nil},
		"grant":                {wire.Window{Kind: wire.WinGrant}, nil},
		"unlock":               {wire.Window{Kind: wire.WinUnlock}, nil},
		"sync with data":       {wire.Window{Kind: wire.WinSync}, e},
		"refused":              {wire.Window{Kind: wire.WinRefused, Count: 1}, nil},
		"no runs":              {wire.Window{Kind: wire.WinPut, Runs: true}, appendRuns(nil, nil, 0)},
		"half a run":           {wire.Window{Kind: wire.WinPut, Runs: true}, appendRuns(nil, []layout.Run{{Len: 8, Count: 1}}, 0)[:32]},
		"short runs":           {wire.Window{Kind: wire.WinPut, Runs: true}, e[:7]},
		"too many runs":        {wire.Window{Kind: wire.WinPut, Runs: true}, append(appendRuns(nil, make([]layout.Run, maxRuns+1), 0), e...)},
		"run without data":     {wire.Window{Kind: wire.WinPut, Runs: true}, appendRuns(nil, []layout.Run{{Len: 8, Count: 1}}, 0)},
		"run behind":           {wire.Window{Kind: wire.WinPut, Runs: true}, append(appendRuns(nil, []layout.Run{{Off: 25, Len: 8, Count: 1}}, 0), e...)},
		"run before":           {wire.Window{Kind: wire.WinPut, Runs: true}, append(appendRuns(nil, []layout.Run{{Off: -1, Len: 8, Count: 1}}, 0), e...)},
		"run that leaves":      {wire.Window{Kind: wire.WinPut, Runs: true}, append(appendRuns(nil, []layout.Run{{Len: 4, Stride: 29, Count: 2}}, 0), e...)},
		"run that comes back":  {wire.Window{Kind: wire.WinPut, Runs: true}, append(appendRuns(nil, []layout.Run{{Off: 8, Len: 4, Stride: -9, Count: 2}}, 0), e...)},
		"run far out":          {wire.Window{Kind: wire.WinPut, Runs: true}, append(appendRuns(nil, []layout.Run{{Len: 1, Stride: math.MaxInt, Count: 8}}, 0), e...)},
		"run far back":         {wire.Window{Kind: wire.WinPut, Runs: true}, append(appendRuns(nil, []layout.Run{{Len: 1, Stride: math.MinInt, Count: 8}}, 0), e...)},
		"run of nothing":       {wire.Window{Kind: wire.WinGet, Runs: true}, appendRuns(nil, []layout.Run{{Count: 1}}, 0)},
		"run of less":          {wire.Window{Kind: wire.WinGet, Runs: true, Bytes: 16}, appendRuns(nil, []layout.Run{{Len: 8, Count: 1}}, 0)},
		"endless run":          {wire.Window{Kind: wire.WinGet, Runs: true, Bytes: 8}, appendRuns(nil, []layout.Run{{Len: 8, Count: math.MaxInt}}, 0)},
		"huge run":             {wire.Window{Kind: wire.WinGet, Runs: true, Bytes: 8}, appendRuns(nil, []layout.Run{{Len: math.MaxInt, Count: 1}}, 0)},
		"run of half elements": {wire.Window{Kind: wire.WinAcc, Op: uint8(Sum), Runs: true}, append(appendRuns(nil, []layout.Run{{Len: 4, Stride: 8, Count: 2}}, 0), e...)},
		"run across elements":  {wire.Window{Kind: wire.WinAcc, Op: uint8(Sum), Runs: true}, append(appendRuns(nil, []layout.Run{{Off: 4, Len: 8, Count: 1}}, 0), e...)},
		"runs of a swap":       {wire.Window{Kind: wire.WinSwap, Runs: true}, append(appendRuns(nil, []layout.Run{{Len: 8, Count: 1}}, 0), make([]byte, 16)...)},
		"nothing":              {wire.Window{}, nil},
		"unknown":              {wire.Window{Kind: 200}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, memory, s := againstStranger(t)
			for i := range memory {
				memory[i] = 0xa5
			}
			want := append([]byte{}, memory...)
			require.NoError(t, s.sendNumbered(x.w, x.data...))
			m.drainMessages(t, s)
			require.Equal(t, []int{1}, m.e.Failed())
			require.Equal(t, want, memory)
		})
	}
	t.Run("lock twice", func(t *testing.T) {
		m, _, s := againstStranger(t)
		require.NoError(t, s.sendNumbered(wire.Window{Kind: wire.WinLock}))
		require.NoError(t, s.sendNumbered(wire.Window{Kind: wire.WinLock}))
		m.drainMessages(t, s)
		require.Equal(t, []int{1}, m.e.Failed())
		require.NoError(t, m.Lock(background, 0, true), "a failed rank holds no lock")
	})
}

// TestStrangeAnswers checks that a rank that gets an answer that does not match its request marks
// the peer as failed.
func TestStrangeAnswers(t *testing.T) {
	for name, w := range map[string]wire.Window{
		"no data":          {Kind: wire.WinReply, Count: 1},
		"an ack for data":  {Kind: wire.WinAck, Count: 1},
		"one too many":     {Kind: wire.WinAck, Count: 2},
		"the second first": {Kind: wire.WinReply, Count: 2},
		"none done":        {Kind: wire.WinReply},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, s := againstStranger(t)
			require.NoError(t, m.Fence(background, false))
			buf := make([]byte, 8)
			require.NoError(t, m.Get(background, 1, 0, buf))
			asked := s.receive(t)
			require.Equal(t, wire.Window{Kind: wire.WinGet, Bytes: 8}, asked)
			require.NoError(t, s.sendNumbered(w, make([]byte, map[bool]int{true: 8}[w.Count == 2 && w.Kind == wire.WinReply])...))
			require.ErrorIs(t, m.Flush(background, 1), engine.ErrProcFailed)
		})
	}
}

// TestFlood checks that a rank marks a peer as failed if the peer sends too many requests at once.
func TestFlood(t *testing.T) {
	for name, flood := range map[string]func(s *stranger) error{
		"get": func(s *stranger) error { return s.sendNumbered(wire.Window{Kind: wire.WinGet, Bytes: 32}) },
		"lock": func(s *stranger) error {
			if err := s.sendNumbered(wire.Window{Kind: wire.WinLock}); err != nil {
				return err
			}
			return s.sendNumbered(wire.Window{Kind: wire.WinUnlock})
		},
		"try": func(s *stranger) error {
			if err := s.sendNumbered(wire.Window{Kind: wire.WinLock, Try: true}); err != nil {
				return err
			}
			if err := s.sendNumbered(wire.Window{Kind: wire.WinUnlock}); err != nil {
				return err
			}
			return s.sendNumbered(wire.Window{Kind: wire.WinLock, Try: true, Flag: true})
		},
		"elsewhere": func(s *stranger) error {
			s.seq++
			w := wire.Window{Kind: wire.WinSync}
			m := w.Message(4, 0)
			m.Seq = s.seq
			return s.send(m, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, s := againstStranger(t, inproc.WithBacklog(1<<12)) // the stranger reads no answers
			for i := 0; len(m.e.Failed()) == 0; i++ {
				require.Less(t, i, 10000)
				_ = flood(s) // ignore a full queue: a later message has room
				require.NoError(t, m.Sync())
			}
		})
	}
}

// TestGone checks that a rank answers WinGone to a message for a window that has been revoked.
func TestGone(t *testing.T) {
	m, _, s := againstStranger(t)
	m.ctx.Revoke(transport.ErrClosed)
	s.seq++
	question := wire.Window{Kind: wire.WinGet, Bytes: 8}
	msg := question.Message(windowID, 0)
	msg.Seq = s.seq
	var c [1]transport.Completion
	for n := 0; n == 0; { // the message about the revocation
		n, _ = s.cq.Read(c[:])
	}
	require.NoError(t, s.send(msg, nil))
	require.ErrorIs(t, m.Sync(), engine.ErrRevoked) // makes progress nevertheless
	got := s.receive(t)
	require.Equal(t, wire.Window{Kind: wire.WinGone, Flag: true}, got)
}

// TestStrangeRegions: in a dynamic window, a peer that names a region that is not attached, or bytes
// outside of it, gets WinRefused, and no byte changes. The peer does not fail.
func TestStrangeRegions(t *testing.T) {
	cfg := ofInt64()
	cfg.Dynamic = true
	e := make([]byte, 8)
	for name, w := range map[string]wire.Window{
		"none":   {Kind: wire.WinPut},
		"id":     {Kind: wire.WinPut, Count: 2 * maxRegions},
		"slot":   {Kind: wire.WinPut, Count: maxRegions + 1},
		"behind": {Kind: wire.WinPut, Count: maxRegions, Addr: 32},
		"far":    {Kind: wire.WinPut, Count: maxRegions, Addr: math.MaxUint64 - 3},
		"get":    {Kind: wire.WinGet, Count: maxRegions, Addr: 8, Bytes: 32},
		"fetch":  {Kind: wire.WinFetch, Op: uint8(Sum), Count: 5, Bytes: 8},
	} {
		t.Run(name, func(t *testing.T) {
			m, memory, s := againstStrangerIn(t, cfg)
			r, err := m.Attach(m.local)
			require.NoError(t, err)
			require.EqualValues(t, maxRegions, r.id)
			want := append([]byte{}, memory...)
			data := e
			if w.Kind == wire.WinGet {
				data = nil
			}
			require.NoError(t, s.sendNumbered(w, data...))
			require.NoError(t, m.Sync())
			require.Equal(t, wire.Window{Kind: wire.WinRefused, Count: 1}, s.receive(t))
			require.Empty(t, m.e.Failed())
			require.Equal(t, want, memory)
			require.NoError(t, s.sendNumbered(wire.Window{Kind: wire.WinPut, Count: r.id, Addr: 8, Flag: true}, 1, 2, 3))
			require.NoError(t, m.Sync())
			require.Equal(t, wire.Window{Kind: wire.WinAck, Count: 2}, s.receive(t))
			require.Equal(t, []byte{1, 2, 3}, m.local[8:11])
		})
	}
}

// FuzzDeliver checks that no message of a peer changes bytes outside of the window or causes a
// panic, in a window with parts and in a dynamic one.
func FuzzDeliver(f *testing.F) {
	f.Add([]byte{1, 0, 0, 8, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 0, 0, 0, 8, 0})
	f.Add([]byte{3, 2, 1, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 0, 0, 0, 0, 16})
	f.Add([]byte{9, 0, 0, 1, 8, 8, 1, 2, 3, 4, 5, 6, 7, 8, 10, 0, 0, 5, 0, 0, 7, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0})
	run := append(appendRuns(nil, []layout.Run{{Off: 8, Len: 2, Stride: 6, Count: 2}, {Off: 30, Len: 2, Stride: -7, Count: 2}}, 0), make([]byte, 8)...)
	f.Add(append([]byte{1, 0, 2, 0, 0, byte(len(run))}, run...))
	f.Add(append([]byte{1, 0, 6, 0, 0, byte(len(run))}, run...))
	f.Add(append([]byte{2, 0, 2, 0, 8, byte(len(run) - 8)}, run[:len(run)-8]...))
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, dynamic := range []bool{false, true} {
			deliver(t, in, dynamic)
		}
	})
}

// deliver gives the window of a rank the messages in a byte string: a kind, an operation, flags, an
// address, a length, the number of data bytes, and the data.
func deliver(t *testing.T, in []byte, dynamic bool) {
	cfg := ofInt64()
	cfg.Dynamic = dynamic
	m, memory, _ := againstStrangerIn(t, cfg)
	for i := range memory {
		memory[i] = 0xa5
	}
	var region uint64
	if dynamic {
		r, err := m.Attach(m.local)
		require.NoError(t, err)
		region = r.id
	}
	require.NoError(t, m.Fence(background, false))
	got := make([]byte, 32)
	for i := range 8 {
		_ = m.Put(background, 1, 0, word(int64(i)))
		_ = m.Get(background, 1, 0, got)
	}
	m.port.Lock()
	for len(in) >= 6 {
		w := wire.Window{Kind: wire.WindowKind(in[0]), Op: in[1], Flag: in[2]&1 != 0, Runs: in[2]&2 != 0, Bytes: uint64(in[4])}
		w.Addr, w.Count = uint64(int8(in[3])), uint64(in[3])
		if in[2]&4 != 0 {
			w.Count = region
		}
		n := min(int(in[5]), len(in)-6)
		msg := w.Message(windowID, n)
		var parsed wire.Window
		if parsed.Parse(&msg) == nil && (*service)(m.Window).Deliver(1, parsed, in[6:6+n]) != nil {
			break
		}
		in = in[6+n:]
	}
	m.port.Unlock()
	for i, b := range memory {
		if b != 0xa5 && (i < 32 || i >= 64) {
			t.Fatalf("byte %d outside of the window is %d", i, b)
		}
	}
}

func FuzzPart(f *testing.F) {
	var b [PartSize]byte
	p := Part{Size: 100, Elem: 8, Chunk: 4096, Native: 1, Direct: 3}
	p.Regions[1].Key = math.MaxUint64
	p.Encode(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		var p Part
		if p.Decode(in) != nil {
			return
		}
		var b [PartSize]byte
		p.Encode(b[:])
		require.Equal(t, in[:PartSize], b[:])
	})
}
