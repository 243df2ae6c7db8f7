package coll

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPartsOfFold(t *testing.T) {
	for size := 1; size <= 33; size++ {
		for _, shift := range []int{0, size / 2, size - 1} {
			f := newFold(size, shift)
			seen := 0
			for rank := range size {
				m := f.member(rank)
				partner, paired := f.partner(rank)
				if m >= 0 {
					assert.Equal(t, rank, f.rank(m))
					seen++
				}
				if m < 0 {
					assert.True(t, paired)
				}
				if paired {
					back, ok := f.partner(partner)
					assert.True(t, ok)
					assert.Equal(t, rank, back)
					assert.NotEqual(t, m < 0, f.member(partner) < 0)
				}
			}
			assert.Equal(t, f.pow, seen)
			assert.Zero(t, f.member(shift))
		}
	}
}
