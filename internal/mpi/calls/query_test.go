package calls

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
)

// exampleQuery returns a query with the records of a Dup and of a Bcast and an Allreduce before it.
func exampleQuery() Query {
	var ring Ring
	for i, k := range []Call{
		{What: coll.KindAllreduce, Count: 80, Elem: 8, Type: elem.Signature(reflect.TypeFor[float64]()), OpID: 1},
		{What: coll.KindBcast, Root: 3, Count: 12, Elem: 1, Type: elem.RawSig},
		{What: KindDup},
	} {
		ring.Put(NewRecord(uint32(i+1), k.Fingerprint(), &k))
	}
	return ring.Query(0, 3)
}

// FuzzQuery parses arbitrary bytes as a query. It checks that encoding the parsed query gives the
// same bytes, that NewRecord makes the same record again of the call that a record describes, and
// that the text of each call is short.
func FuzzQuery(f *testing.F) {
	q := exampleQuery()
	f.Add([]byte(q))
	f.Add([]byte(q[:8]))
	f.Add(append(bytes.Clone(q), bytes.Repeat([]byte{0xff}, 24)...))
	f.Add(bytes.Repeat(q[8:], 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, records, ok := Query(b).Parse()
		if !ok {
			return
		}
		again := binary.LittleEndian.AppendUint64(nil, id)
		for _, r := range records {
			for _, w := range r {
				again = binary.LittleEndian.AppendUint64(again, w)
			}
			k, ok := r.Call()
			if !ok {
				continue
			}
			if text := k.String(); len(text) > 200 {
				t.Fatalf("a call is %q", text)
			}
			same := NewRecord(r.Seq(), r.Sig(), &k)
			same[0] |= r[0] &^ (1<<48 - 1) // bits 48 to 63 of the first word have no meaning
			if r.whole() && same != r {
				t.Fatalf("record %x became %x", r, same)
			}
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}
