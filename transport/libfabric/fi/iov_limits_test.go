//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// pieces splits buf into n buffers of equal length.
func pieces(buf []byte, n int) (bufs [][]byte) {
	size := len(buf) / n
	for i := range n {
		bufs = append(bufs, buf[i*size:(i+1)*size])
	}
	return bufs
}

// TestIovLimits checks that operations accept as many buffers as IovLimit, and return ErrTooBig for
// one more. With more buffers, rxm would write beyond an array on its stack.
func TestIovLimits(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		tx, rx := a.info.Tx.IovLimit, a.info.Rx.IovLimit
		require.Positive(t, tx)
		require.Positive(t, rx)
		out, in := pattern(make([]byte, 64*tx), 1), make([]byte, 64*tx)
		send, recv := NewContext("send"), NewContext("recv")
		b.post(func() error { return b.ep.TRecvV(pieces(in, rx), nil, b.peer, 1, 0, recv) })
		a.post(func() error { return a.ep.TSendV(pieces(out, tx), nil, a.peer, 1, send) })
		a.wait(send)
		b.wait(recv)
		require.Equal(t, out, in)

		sends, recvs := pieces(out, tx+1), pieces(in, rx+1)
		smsg := &TMsg{Msg: Msg{Bufs: sends, Addr: a.peer, Context: send}}
		rmsg := &TMsg{Msg: Msg{Bufs: recvs, Addr: a.peer, Context: recv}}
		for name, err := range map[string]error{
			"SendV":    a.ep.SendV(sends, nil, a.peer, send),
			"SendMsg":  a.ep.SendMsg(&smsg.Msg, 0),
			"RecvV":    a.ep.RecvV(recvs, nil, a.peer, recv),
			"RecvMsg":  a.ep.RecvMsg(&rmsg.Msg, 0),
			"TSendV":   a.ep.TSendV(sends, nil, a.peer, 1, send),
			"TSendMsg": a.ep.TSendMsg(smsg, 0),
			"TRecvV":   a.ep.TRecvV(recvs, nil, a.peer, 1, 0, recv),
			"TRecvMsg": a.ep.TRecvMsg(rmsg, 0),
		} {
			require.Equal(t, ErrTooBig, err, name)
		}
		require.False(t, send.InFlight() || recv.InFlight())
	})
}

// TestInjectLimit checks that calls return ErrMsgSize for one byte more than can be injected.
func TestInjectLimit(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, _ := openPair(t, setup{prov: prov, caps: CapMsg | CapTagged | CapRMA})
		buf := make([]byte, a.info.Tx.InjectSize+1)
		msg := &TMsg{Msg: Msg{Bufs: halves(buf), Addr: a.peer}}
		for name, err := range map[string]error{
			"Inject":          a.ep.Inject(buf, a.peer),
			"InjectData":      a.ep.InjectData(buf, 1, a.peer),
			"SendMsg":         a.ep.SendMsg(&msg.Msg, FlagInject),
			"TInject":         a.ep.TInject(buf, a.peer, 1),
			"TInjectData":     a.ep.TInjectData(buf, 1, a.peer, 1),
			"TSendMsg":        a.ep.TSendMsg(msg, FlagInject),
			"InjectWrite":     a.ep.InjectWrite(buf, a.peer, 0, 1),
			"InjectWriteData": a.ep.InjectWriteData(buf, 1, a.peer, 0, 1),
			"WriteMsg":        a.ep.WriteMsg(&RMAMsg{Bufs: halves(buf), Addr: a.peer}, FlagInject),
			"InjectAtomic":    a.ep.InjectAtomic(buf, a.peer, 0, 1, TypeUint64, AtomicSum),
		} {
			require.Equal(t, ErrMsgSize, err, name)
		}
	})
}

// TestNoBuffers checks that a message can be sent and received without buffers, but that a
// multi-receive must have one.
func TestNoBuffers(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		send, recv := NewContext("send"), NewContext("recv")
		require.Equal(t, ErrInvalid, b.ep.RecvMsg(&Msg{Addr: b.peer, Context: recv}, FlagMultiRecv))
		b.post(func() error {
			return b.ep.TRecvMsg(&TMsg{Msg: Msg{Addr: b.peer, Context: recv}, Tag: 1}, FlagCompletion)
		})
		a.post(func() error {
			return a.ep.TSendMsg(&TMsg{Msg: Msg{Addr: a.peer, Context: send}, Tag: 1}, FlagCompletion)
		})
		a.wait(send)
		require.Zero(t, b.wait(recv).Len)
	})
}

// TestIovLimitsOfRMA checks that RMA and atomic operations with one local buffer or remote segment
// more than the limit return ErrTooBig.
func TestIovLimitsOfRMA(t *testing.T) {
	for _, prov := range []string{"shm", "tcp;ofi_rxm", "sockets"} {
		t.Run(prov, func(t *testing.T) {
			a, b := atomicPair(t, prov)
			w, l := b.remote(4096), a.local(4096)
			ctx, n, pieced := NewContext(nil), a.info.Tx.IovLimit+1, a.info.Tx.RMAIovLimit+1
			bufs, descs := pieces(l.mem[:8*n], n), make([]Desc, n)
			many, one := Vector{Bufs: bufs, Descs: descs}, Vector{Bufs: [][]byte{l.mem[:8*n]}}
			rma := &RMAMsg{Bufs: bufs, Descs: descs, Addr: a.peer, Context: ctx, RMA: []RMAIov{{w.base, uint64(8 * n), w.key}}}
			scattered := &RMAMsg{Bufs: [][]byte{l.mem[:8*pieced]}, Addr: a.peer, Context: ctx}
			msg := &AtomicMsg{
				Operand: many, Compare: many, Result: many, Addr: a.peer, Context: ctx,
				RMA: []RMAIoc{{w.base, uint64(n), w.key}}, Datatype: TypeUint64, Op: AtomicSum,
			}
			strewn := &AtomicMsg{
				Operand: Vector{Bufs: [][]byte{l.mem[:8*pieced]}}, Addr: a.peer, Context: ctx,
				Datatype: TypeUint64, Op: AtomicSum,
			}
			for i := range pieced {
				scattered.RMA = append(scattered.RMA, RMAIov{w.base + uint64(8*i), 8, w.key})
				strewn.RMA = append(strewn.RMA, RMAIoc{w.base + uint64(8*i), 1, w.key})
			}
			for name, err := range map[string]error{
				"ReadV":            a.ep.ReadV(bufs, descs, a.peer, w.base, w.key, ctx),
				"ReadMsg":          a.ep.ReadMsg(rma, 0),
				"ReadMsg, far":     a.ep.ReadMsg(scattered, 0),
				"WriteV":           a.ep.WriteV(bufs, descs, a.peer, w.base, w.key, ctx),
				"WriteMsg":         a.ep.WriteMsg(rma, 0),
				"WriteMsg, far":    a.ep.WriteMsg(scattered, 0),
				"AtomicV":          a.ep.AtomicV(many, a.peer, w.base, w.key, TypeUint64, AtomicSum, ctx),
				"FetchAtomicV":     a.ep.FetchAtomicV(one, many, a.peer, w.base, w.key, TypeUint64, AtomicSum, ctx),
				"CompareAtomicV":   a.ep.CompareAtomicV(one, many, one, a.peer, w.base, w.key, TypeUint64, AtomicCompareSwap, ctx),
				"AtomicMsg":        a.ep.AtomicMsg(msg, 0),
				"AtomicMsg, far":   a.ep.AtomicMsg(strewn, 0),
				"FetchAtomicMsg":   a.ep.FetchAtomicMsg(msg, 0),
				"CompareAtomicMsg": a.ep.CompareAtomicMsg(msg, 0),
			} {
				require.Equal(t, ErrTooBig, err, name)
			}
			rma.RMA, rma.Bufs, rma.Descs = nil, [][]byte{l.mem[:8]}, nil
			require.Equal(t, ErrInvalid, a.ep.WriteMsg(rma, 0), "no remote memory")
			require.False(t, ctx.InFlight())
			require.True(t, w.untouched())
		})
	}
}

// TestTriggersAreRefused checks that posting calls refuse FlagTrigger, because a Context cannot
// name a counter.
func TestTriggersAreRefused(t *testing.T) {
	a, _ := openPair(t, setup{prov: "shm"})
	ctx := NewContext(nil)
	msg := &TMsg{Msg: Msg{Bufs: [][]byte{make([]byte, 8)}, Addr: a.peer, Context: ctx}}
	for name, err := range map[string]error{
		"SendMsg":   a.ep.SendMsg(&msg.Msg, FlagTrigger),
		"RecvMsg":   a.ep.RecvMsg(&msg.Msg, FlagTrigger),
		"TSendMsg":  a.ep.TSendMsg(msg, FlagTrigger),
		"TRecvMsg":  a.ep.TRecvMsg(msg, FlagTrigger),
		"WriteMsg":  a.ep.WriteMsg(&RMAMsg{Context: ctx}, FlagTrigger),
		"AtomicMsg": a.ep.AtomicMsg(&AtomicMsg{Context: ctx}, FlagTrigger),
	} {
		require.ErrorIs(t, err, ErrNotSupported, name)
	}
	require.False(t, ctx.InFlight())
}
