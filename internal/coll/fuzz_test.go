package coll_test

import (
	"testing"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/coll/colltest"
)

// FuzzCall runs one random call by one forced algorithm.
func FuzzCall(f *testing.F) {
	all := coll.Algorithms()
	for i := range all {
		f.Add(uint8(i), uint8(2+i%8), uint8(i), uint16(i*97), uint64(i), uint8(i))
	}
	f.Add(uint8(0), uint8(1), uint8(0), uint16(0), uint64(0), uint8(0))
	f.Fuzz(func(t *testing.T, which, size, root uint8, maxBytes uint16, seed uint64, world uint8) {
		a := all[int(which)%len(all)]
		n := 1 + int(size)%17
		k := kinds[a.Family][int(world>>3)%len(kinds[a.Family])]
		opt := colltest.Options{Eager: world&1 != 0, Network: colltest.Network(world >> 1 % 3)}
		if err := try(k, a.Family, a.Name, n, int(root)%n, int(maxBytes), seed, opt); err != nil {
			t.Fatalf("%v by %s, %d ranks: %v", k, a.Name, n, err)
		}
	})
}
