package trace

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/record"
)

// items decodes a spool. It returns the items before the error that ends it, if that is not io.EOF.
func items(t *testing.T, b []byte, ranks int) (list []item, err error) {
	t.Helper()
	d := newDecoder(bytes.NewReader(b), ranks)
	for {
		var it item
		switch err := d.next(&it); {
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return list, err
		}
		list = append(list, it)
	}
}

// randomEvent returns an event. Half of its fields are those of the last one.
func randomEvent(r *rand.Rand, last record.Event) record.Event {
	e := last
	e.Start += time.Duration(r.IntN(5000))
	e.Op = record.Op(r.IntN(5) + 1)
	if r.IntN(2) == 0 {
		e.Comm, e.Protocol = uint16(r.IntN(1<<16)), record.Protocol(r.IntN(256))
	}
	if r.IntN(2) == 0 {
		e.Peer = int32(r.IntN(100))
	}
	if r.IntN(2) == 0 {
		e.Tag = int32(r.Uint32())
	}
	if r.IntN(2) == 0 {
		e.Bytes = r.Int64N(maxSize)
	}
	e.Duration, e.Seq = 0, 0
	switch {
	case e.Op > record.OpReceived:
		e.Duration = time.Duration(r.Int64N(1 << 40))
	case r.IntN(2) == 0:
		e.Seq = uint32(r.IntN(1 << seqBits))
	default:
		e.Seq = (last.Seq + 1) & (1<<seqBits - 1)
	}
	return e
}

// TestSpool encodes random items, and decodes them.
func TestSpool(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var e Encoder
	var want []item
	times := record.Times{Wall: time.Unix(1<<30, 5), Monotonic: time.Hour}
	e.Begin(times, time.Second)
	want = append(want, item{kind: itemBegin, times: times, from: time.Second})
	var last record.Event
	var text []byte
	for i := range 20000 {
		switch r.IntN(50) {
		case 0:
			name := strings.Repeat("n", r.IntN(maxName+1))
			e.Op(record.Op(i), name)
			want = append(want, item{kind: itemOp, number: uint64(uint8(i)), name: name})
		case 1:
			e.Comm(uint16(i), "comm")
			want = append(want, item{kind: itemComm, number: uint64(i), name: "comm"})
		case 2:
			e.Lost(uint64(i))
			want = append(want, item{kind: itemLost, number: uint64(i)})
		default:
			v := randomEvent(r, last)
			e.Event(&v)
			last = v
			want = append(want, item{kind: kindOf(&v), event: v})
		}
		if i%7 == 0 {
			text = append(text, e.Bytes()...)
			e.Reset()
		}
	}
	text = append(append(text, e.Bytes()...), Cut(7, "no space")...)
	want = append(want, item{kind: itemCut, number: 7, name: "no space"})
	got, err := items(t, text, 100)
	require.NoError(t, err)
	require.Equal(t, want, got)

	_, err = items(t, text[:len(text)-3], 100)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = items(t, text, 99)
	require.ErrorIs(t, err, errSpool, "a message with a rank that does not exist")
}

// TestSpoolSize checks that the events of a usual program take few bytes: messages of one size to and from
// two neighbours, and the calls of them.
func TestSpoolSize(t *testing.T) {
	var e Encoder
	at := time.Minute
	const n = 10000
	for i := range n {
		peer := int32(3 + i%2)
		for _, op := range []record.Op{record.OpSent, record.OpReceived} {
			at += 1700
			e.Event(&record.Event{Start: at, Op: op, Peer: peer, Tag: 7, Bytes: 8192, Seq: uint32(i/2 + 1)})
			e.Event(&record.Event{Start: at - 900, Duration: 1234, Op: 10 + op, Peer: peer, Tag: 7, Bytes: 8192})
		}
	}
	require.EqualValues(t, 4*n, e.Events())
	require.Less(t, len(e.Bytes()), 10*4*n)
	e.Reset()
	require.Zero(t, e.Events())
}

// FuzzSpool gives the decoder and the converter any bytes.
func FuzzSpool(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	var e Encoder
	e.Begin(record.Times{Wall: time.Unix(1, 0), Monotonic: time.Hour}, 0)
	e.Op(3, "Send")
	e.Comm(0, "world")
	var v record.Event
	for range 50 {
		v = randomEvent(r, v)
		e.Event(&v)
	}
	e.Lost(3)
	f.Add(append(bytes.Clone(e.Bytes()), Cut(1, "x")...))
	f.Add([]byte{byte(itemBegin), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, format := range []Format{Perfetto, Chrome} {
			var out bytes.Buffer
			w := NewWriter(&out, format, 100, time.Hour, time.Unix(1, 0))
			_, err := w.Rank(Rank{Number: 3, Size: 100, Name: "rank 3", Host: "node1"}, bytes.NewReader(b))
			require.NoError(t, err)
			require.NoError(t, w.Close())
			if format == Chrome {
				checkChrome(t, out.Bytes())
			}
		}
	})
}
