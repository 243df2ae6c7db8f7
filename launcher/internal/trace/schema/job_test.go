package schema

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/trace"
)

// sent is a message of a job.
type sent struct{ from, to, tag int }

// syntheticJob is a job whose ranks send each other messages, and take part in collectives without
// messages.
type syntheticJob struct {
	ranks    int
	messages []sent
	events   [][]record.Event // by rank
}

// The operations of randomJob.
const (
	opSend = iota + 3
	opRecv
	opAllreduce
)

const noPeer = -32766

// randomJob returns a job in which messages are sent between random ranks, in random order. A message
// has its number as its tag. The calls of a rank overlap.
func randomJob(ranks, messages, collectives int, seed uint64) *syntheticJob {
	r := rand.New(rand.NewPCG(seed, 1))
	j := &syntheticJob{ranks: ranks, events: make([][]record.Event, ranks)}
	seq := make(map[[2]int]uint32)
	add := func(rank int, call, message record.Event) {
		j.events[rank] = append(j.events[rank], message, call)
	}
	span := time.Duration(messages+1) * time.Microsecond
	for i := range messages {
		m := sent{r.IntN(ranks), r.IntN(ranks), i}
		j.messages = append(j.messages, m)
		pair := [2]int{m.from, m.to}
		seq[pair]++
		at := time.Duration(i)*time.Microsecond + 10*time.Microsecond
		bytes := int64(r.IntN(1 << 20))
		latency := time.Duration(1 + r.IntN(5000))
		late := time.Duration(r.IntN(2000))
		add(m.from, record.Event{Start: at - time.Duration(r.IntN(2000)), Duration: 2*time.Microsecond + late, Op: opSend, Peer: int32(m.to), Tag: int32(i), Bytes: bytes},
			record.Event{Start: at, Op: record.OpSent, Peer: int32(m.to), Tag: int32(i), Bytes: bytes, Seq: seq[pair] & (1<<24 - 1)})
		add(m.to, record.Event{Start: at + latency - late, Duration: 2 * time.Microsecond, Op: opRecv, Peer: -1, Tag: int32(i), Bytes: bytes},
			record.Event{Start: at + latency, Op: record.OpReceived, Peer: int32(m.from), Tag: int32(i), Bytes: bytes, Seq: seq[pair] & (1<<24 - 1)})
	}
	for rank := range j.events {
		for n := range collectives {
			j.events[rank] = append(j.events[rank], record.Event{
				Start: time.Duration(r.Int64N(int64(span))), Duration: time.Duration(r.IntN(1000)), Op: opAllreduce, Comm: 1, Peer: noPeer, Tag: int32(n + 1), Bytes: 8,
			})
		}
		slices.SortStableFunc(j.events[rank], func(a, b record.Event) int { return cmp.Compare(a.Start+a.Duration, b.Start+b.Duration) })
	}
	return j
}

// trace converts the events of the job.
func (j *syntheticJob) trace(t *testing.T, f trace.Format) []byte {
	t.Helper()
	var b bytes.Buffer
	begun := time.Unix(1, 0)
	w := trace.NewWriter(&b, f, j.ranks, time.Minute, begun)
	for i, events := range j.events {
		var e trace.Encoder
		e.Begin(record.Times{Wall: begun, Monotonic: time.Minute}, 0)
		e.Op(opSend, "Send")
		e.Op(opRecv, "Recv")
		e.Op(opAllreduce, "Allreduce")
		e.Comm(0, "world")
		e.Comm(1, "half")
		for k := range events {
			e.Event(&events[k])
		}
		res, err := w.Rank(trace.Rank{Number: i, Size: j.ranks, Name: fmt.Sprint("rank ", i), Host: fmt.Sprint("node", i/16), PID: 1000 + i}, bytes.NewReader(e.Bytes()))
		require.NoError(t, err)
		require.Equal(t, trace.Result{Begun: true}, res)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}
