package procs

import (
	"bytes"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/trace"
)

const drainBits = 12 // of the rings in these tests

// drainedRanks is a drainer for the tests, whose ranks are goroutines.
type drainedRanks struct {
	*drainer
	files     rankFiles
	recorders []*record.Recorder
	mem       [][]byte // by rank: the memory of its record
}

// newDrained returns a drainer for ranks that have begun their records. The test drains them, or starts
// the drainer's goroutine when the ranks do not write any more: in one process, the race detector sees
// what a reader of a rank that runs does.
func newDrained(t *testing.T, ranks int) *drainedRanks {
	t.Helper()
	d := &drainedRanks{}
	d.drainer = newDrainer(&d.files, 0)
	for i := range ranks {
		mem := make([]byte, record.Size(ranks, drainBits))
		rd, err := record.NewReader(mem, ranks, drainBits)
		require.NoError(t, err)
		rd.SetDetail(true)
		r, err := record.New(mem, i, ranks, drainBits)
		require.NoError(t, err)
		d.recorders, d.mem = append(d.recorders, r), append(d.mem, mem)
		files, err := d.files.make(i, []proto.RankFile{{Name: "trace", Large: true, Host: true}})
		require.NoError(t, err)
		d.spools = append(d.spools, &spool{rank: i, ranks: 1 << 10, reader: rd, out: files[0]})
	}
	t.Cleanup(d.files.close)
	t.Cleanup(d.wait)
	return d
}

// result converts the spool of a rank, and returns what Writer.Rank says and the trace.
func (d *drainedRanks) result(t *testing.T, rank int) (trace.Result, string) {
	t.Helper()
	d.wait()
	var spool []byte
	answers := make(chan proto.Message, 1)
	for {
		d.files.fetch(proto.Fetch{Rank: rank, Offset: int64(len(spool))}, func(m proto.Message) { answers <- m })
		p := (<-answers).(proto.Part)
		require.False(t, p.Failed, string(p.Data))
		spool = append(spool, p.Data...)
		if len(p.Data) < proto.MaxPart {
			break
		}
	}
	var out bytes.Buffer
	w := trace.NewWriter(&out, trace.Chrome, len(d.recorders), 0, time.Unix(1, 0))
	res, err := w.Rank(trace.Rank{Number: rank, Size: len(d.recorders)}, bytes.NewReader(spool))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return res, out.String()
}

func (d *drainedRanks) send(rank, n int, op record.Op) {
	r := d.recorders[rank]
	for i := range n {
		start := r.Clock()
		r.Messages.Sent(0, 0, int32(i), 8, record.Eager, uint32(i))
		r.Call(&record.Event{Start: start, Op: op, Peer: 0, Tag: int32(i), Bytes: 8}, true)
	}
}

// TestDrain: the spool has all events of ranks that record many times what their rings hold, and the names
// at the time of the events. The last events of a rank that was killed are there, too.
func TestDrain(t *testing.T) {
	const ranks, rounds, n = 3, 40, 1 << (drainBits - 1)
	d := newDrained(t, ranks)
	for i, r := range d.recorders {
		op := r.Op("Send", false)
		comm := r.Comm(0, "first")
		for range rounds {
			d.send(i, n, op)
			d.spools[i].drain()
		}
		r.Messages.Idle()
		d.spools[i].drain()
		r.FreeComm(comm)
		for r.Comm(0, "second") != comm { // until the number is used again
		}
		d.send(i, 7, op)
		d.rankEnded(i)
	}
	d.start()
	for i := range ranks {
		res, out := d.result(t, i)
		require.Equal(t, trace.Result{Begun: true}, res)
		require.Equal(t, rounds*n+7, strings.Count(out, `"name":"Send"`))
		require.Equal(t, rounds*n+7, strings.Count(out, `"name":"sent"`))
		require.Equal(t, 2*rounds*n, strings.Count(out, `"communicator":"first"`))
		require.Equal(t, 2*7, strings.Count(out, `"communicator":"second"`))
	}
}

// TestDrainOverrun: if a rank records faster than the drainer reads, the spool has the events that were left,
// and the number of the lost ones.
func TestDrainOverrun(t *testing.T) {
	d := newDrained(t, 2)
	const n = 5 << drainBits
	room := d.spools[0].reader.Room()
	d.send(0, n, d.recorders[0].Op("Send", false))
	d.start()
	res, out := d.result(t, 0)
	require.Equal(t, trace.Result{Begun: true, Overrun: 2 * uint64(n-room)}, res)
	require.Equal(t, room, strings.Count(out, `"name":"sent"`))
	require.Equal(t, 1, strings.Count(out, `"name":"events are missing"`))
	res, _ = d.result(t, 1)
	require.Equal(t, trace.Result{Begun: true}, res)
}

// fullDisk is a spoolFile on a disk with little room.
type fullDisk struct {
	spoolFile
	room int64
}

func (f *fullDisk) WriteAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) <= f.room {
		return f.spoolFile.WriteAt(b, at)
	}
	n, err := f.spoolFile.WriteAt(b[:f.room-at], at)
	if err == nil {
		err = &fs.PathError{Op: "write", Path: "/tmp/weft-trace-1", Err: unix.ENOSPC}
	}
	return n, err
}

// TestDrainFullDisk: if the disk is full, the spool has what was written before, and the number of the other
// events, which is exact.
func TestDrainFullDisk(t *testing.T) {
	const rounds, n = 40, 1 << (drainBits - 1)
	for _, room := range []int64{0, 1, spoolBuffer + 500, 3*spoolBuffer + 1000} {
		d := newDrained(t, 1)
		d.spools[0].out = &fullDisk{d.spools[0].out, room}
		for range rounds {
			d.send(0, n, d.recorders[0].Op("Send", false))
			d.spools[0].drain()
		}
		d.send(0, 3<<drainBits, d.recorders[0].Op("Send", false)) // the ring overruns, too
		d.start()
		res, out := d.result(t, 0)
		require.NoError(t, res.Cut)
		require.Equal(t, unix.ENOSPC.Error(), res.Reason)
		written := strings.Count(out, `"name":"sent"`) + strings.Count(out, `"name":"Send"`)
		require.Equal(t, room > spoolBuffer, written > 0)
		require.EqualValues(t, 2*(rounds*n+3<<drainBits)-written, res.Unwritten)
	}
}

// TestDrainSecondProgram: if a second program begins a new record in a rank, its events are there, too, also if
// there are more of them than of the first one.
func TestDrainSecondProgram(t *testing.T) {
	d := newDrained(t, 1)
	d.send(0, 10, d.recorders[0].Op("First", false))
	d.recorders[0].Messages.Idle()
	d.spools[0].drain()
	r, err := record.New(d.mem[0], 0, 1, drainBits)
	require.NoError(t, err)
	d.recorders[0] = r
	d.send(0, 20, r.Op("Second", false))
	d.start()
	res, out := d.result(t, 0)
	require.Equal(t, trace.Result{Begun: true}, res)
	require.Equal(t, 10, strings.Count(out, `"name":"First"`))
	require.Equal(t, 20, strings.Count(out, `"name":"Second"`))
	require.Equal(t, 30, strings.Count(out, `"name":"sent"`))
}

// TestUnbegunRecord: a rank that is no weft program has an empty spool.
func TestUnbegunRecord(t *testing.T) {
	d := newDrained(t, 1)
	rd, err := record.NewReader(make([]byte, record.Size(1, drainBits)), 1, drainBits)
	require.NoError(t, err)
	d.spools[0].reader = rd
	d.start()
	d.rankEnded(0)
	res, _ := d.result(t, 0)
	require.Equal(t, trace.Result{}, res)
}

// TestRestOfFile: the bytes after those of a file come with the file's own, in parts of any size.
func TestRestOfFile(t *testing.T) {
	for _, size := range []int{0, 1, proto.MaxPart - 3, proto.MaxPart, proto.MaxPart + 7} {
		for _, more := range []int{1, 5, proto.MaxPart, 2 * proto.MaxPart} {
			var s rankFiles
			files, err := s.make(0, []proto.RankFile{{Name: "trace", Large: true, Host: true}})
			require.NoError(t, err)
			f := files[0]
			want := bytes.Repeat([]byte("file"), size)[:size]
			_, err = f.Write(want)
			require.NoError(t, err)
			rest := bytes.Repeat([]byte("rest"), more)[:more]
			s.setRest(0, 0, rest)
			want = append(want, rest...)
			var got []byte
			for {
				p := part(f, rest, proto.Fetch{Offset: int64(len(got))})
				require.False(t, p.Failed)
				require.LessOrEqual(t, len(p.Data), proto.MaxPart)
				got = append(got, p.Data...)
				if len(p.Data) < proto.MaxPart {
					break
				}
			}
			require.True(t, bytes.Equal(want, got), "%d bytes and %d more", size, more)
			s.close()
		}
	}
}
