//go:build unix

package kernel

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fenced returns at least n bytes of memory between two pages without access permissions.
func fenced(t *testing.T, n int) []byte {
	page := unix.Getpagesize()
	n = (n + page - 1) / page * page
	all, err := unix.Mmap(-1, 0, n+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(all)) })
	require.NoError(t, unix.Mprotect(all[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(all[page+n:], unix.PROT_NONE))
	return all[page : page+n]
}

// TestFences runs every kernel with each operand at the beginning or at the end of its memory, next
// to a page without access permissions. An access outside of the operand there would fault, which
// fails the test.
func TestFences(t *testing.T) {
	const most = 300
	operands := [3][]byte{fenced(t, 24*most), fenced(t, 24*most), fenced(t, 24*most)}
	place := func(i, n int, atEnd bool) []byte {
		if atEnd {
			return operands[i][len(operands[i])-n:]
		}
		return operands[i][:n]
	}
	eachVariant(t, func(t *testing.T, kernels *table) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		at := ""
		defer func() {
			if fault := recover(); fault != nil {
				t.Fatalf("%s: %v", at, fault)
			}
		}()
		for _, s := range subjects() {
			r := rand.New(rand.NewPCG(uint64(s.op), uint64(s.typ)))
			k := kernels[s.op][s.typ]
			for i := range 120 {
				elems := i
				if i > 70 {
					elems = r.IntN(most + 1)
				}
				n, ends := elems*s.size, r.IntN(8)
				dst, left, right := place(0, n, ends&1 != 0), place(1, n, ends&2 != 0), place(2, n, ends&4 != 0)
				s.fill(r, left)
				s.fill(r, right)
				at = fmt.Sprintf("%v of %d elements, placed %03b", s, elems, ends)
				k.Reduce3(dst, left, right)
				k.Reduce2(dst, left)
			}
		}
	})
}
