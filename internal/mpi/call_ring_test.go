package mpi

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/weft-hpc/weft/internal/coll"
)

// TestCallRingAtOnce lets goroutines write records of calls to the same entry at the same time. It
// checks that a reader gets the record of the call that it asks for, or none.
func TestCallRingAtOnce(t *testing.T) {
	const writers, rounds = 3, 2000
	record := func(seq uint32) callRecord {
		return recordOf(seq, uint16(seq), &signedCall{what: coll.KindBcast, root: int(seq % 7), count: int(seq), elem: 8, typ: uint16(seq), opID: 0})
	}
	var ring callRing
	number := func(w, i uint32) uint32 { return 1 + (i*writers+w)*signedCalls } // all of them have the same entry
	var all sync.WaitGroup
	for w := range uint32(writers) {
		all.Go(func() { // ends with its rounds
			for i := range uint32(rounds) {
				ring.put(record(number(w, i)))
				for _, seq := range []uint32{number(w, i), number((w+1)%writers, i), number((w+2)%writers, i)} {
					if r, ok := ring.get(seq); ok && !assert.Equal(t, record(seq), r) {
						return
					}
				}
			}
		})
	}
	all.Wait()

	one, other := record(1), record(1+signedCalls)
	for mix := range 8 { // bit i: word i comes from other
		for i, words := range [3][2]uint64{{one[0], other[0]}, {one[1], other[1]}, {one[2], other[2]}} {
			ring[1][i].Store(words[mix>>i&1])
		}
		r, ok := ring.get(1)
		assert.Equal(t, mix == 0, ok, "words %03b", mix)
		if ok {
			assert.Equal(t, one, r)
		}
		_, ok = ring.get(1 + signedCalls)
		assert.Equal(t, mix == 7, ok, "words %03b", mix)
	}
}
