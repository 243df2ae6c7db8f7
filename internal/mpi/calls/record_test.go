package calls

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/weft-hpc/weft/internal/coll"
)

// TestRingAtOnce lets goroutines write records of calls to the same entry at the same time. It
// checks that Get returns the whole record of the call that it is asked for, or false. Then it
// stores all mixtures of the words of two records, and checks that Get accepts only the two
// records.
func TestRingAtOnce(t *testing.T) {
	const writers, rounds = 3, 2000
	record := func(seq uint32) Record {
		return NewRecord(seq, uint16(seq), &Call{What: coll.KindBcast, Root: int(seq % 7), Count: int(seq), Elem: 8, Type: uint16(seq)})
	}
	var ring Ring
	number := func(w, i uint32) uint32 { return 1 + (i*writers+w)*remembered } // all of them have the same entry
	var all sync.WaitGroup
	for w := range uint32(writers) {
		all.Go(func() { // ends with its rounds
			for i := range uint32(rounds) {
				ring.Put(record(number(w, i)))
				for _, seq := range []uint32{number(w, i), number((w+1)%writers, i), number((w+2)%writers, i)} {
					if r, ok := ring.Get(seq); ok && !assert.Equal(t, record(seq), r) {
						return
					}
				}
			}
		})
	}
	all.Wait()

	one, other := record(1), record(1+remembered)
	for mix := range 8 { // bit i: word i comes from other
		for i, words := range [3][2]uint64{{one[0], other[0]}, {one[1], other[1]}, {one[2], other[2]}} {
			ring[1][i].Store(words[mix>>i&1])
		}
		r, ok := ring.Get(1)
		assert.Equal(t, mix == 0, ok, "words %03b", mix)
		if ok {
			assert.Equal(t, one, r)
		}
		_, ok = ring.Get(1 + remembered)
		assert.Equal(t, mix == 7, ok, "words %03b", mix)
	}
}
