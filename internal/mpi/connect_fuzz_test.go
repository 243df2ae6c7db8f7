package mpi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/bootstrap"
)

// portAddr returns the address of a closed port for a number of processes.
func portAddr(tb testing.TB, size int) string {
	p, err := bootstrap.OpenPort(size)
	require.NoError(tb, err)
	require.NoError(tb, p.Close())
	return p.Addr()
}

// FuzzSide passes any text for the message from the root of the other side of a connection. What the
// parser accepts must have a root among its ranks, and remain the same when it is sent again.
func FuzzSide(f *testing.F) {
	for _, s := range []side{{Ranks: 1}, {Ranks: 5, Root: 4, Port: portAddr(f, 9)}} {
		text, err := encode(s)
		require.NoError(f, err)
		f.Add(text)
	}
	for _, text := range []string{"", "{}", "null", `{"Ranks":3,"Root":3}`, `{"Ranks":-1,"Root":-2}`, `{"Ranks":9223372036854775807}`, `{"Ranks":1}{}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSide(text)
		if err != nil {
			require.ErrorIs(t, err, ErrPort)
			return
		}
		require.True(t, s.Ranks > 0 && s.Ranks <= maxSide && s.Root >= 0 && s.Root < s.Ranks, "%+v", s)
		again, err := encode(s)
		require.NoError(t, err)
		same, err := parseSide(again)
		require.NoError(t, err)
		require.Equal(t, s, same)
	})
}

// FuzzPlan passes any text for the message from a root to the ranks of its side. What the parser
// accepts must describe two sides that fit the port.
func FuzzPlan(f *testing.F) {
	for _, size := range []int{3, 4} { // the second one does not fit the sides
		addr := portAddr(f, size)
		text, err := encode(connectPlan{Port: addr, Accept: side{Ranks: 2, Root: 1, Port: addr}, Dial: side{Ranks: 1}})
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add(`{"Port":"weft:","Accept":{"Ranks":-1},"Dial":{"Ranks":1}}`)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		x, err := parsePlan(text)
		if err != nil {
			return
		}
		size, err := bootstrap.PortSize(x.Port)
		require.NoError(t, err)
		require.Equal(t, size, x.Accept.Ranks+x.Dial.Ranks)
		for _, s := range []side{x.Accept, x.Dial} {
			require.True(t, s.Ranks > 0 && s.Root >= 0 && s.Root < s.Ranks, "%+v", x)
		}
	})
}

// FuzzIdentity passes any text for the identity of a process of a connection. What the parser accepts
// must have a number, and remain the same when it is sent again.
func FuzzIdentity(f *testing.F) {
	p := &processes{self: identity{"slurm:1.0", 2}, size: 4}
	for _, text := range []string{p.self.text(), "slurm:1.0:3", "slurm:1.0:4", "other:7", "other:-7", ":0", "", "other", "other:9223372036854775808", "other:+1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := &processes{self: p.self, size: p.size}
		id, err := p.parse(text)
		if err != nil {
			return
		}
		n := p.number(id)
		require.True(t, n >= 0 && (id.job != p.self.job || n < p.size) && (id.job == p.self.job || n >= p.size), "%+v has the number %d", id, n)
		again, err := p.parse(id.text())
		require.NoError(t, err)
		require.Equal(t, id, again)
	})
}

// TestPlanOfAnotherSize: a side rejects a port for another number of processes than the two sides have.
func TestPlanOfAnotherSize(t *testing.T) {
	text, err := encode(connectPlan{Port: portAddr(t, 4), Accept: side{Ranks: 2}, Dial: side{Ranks: 1}})
	require.NoError(t, err)
	_, err = parsePlan(text)
	require.True(t, errors.Is(err, ErrPort))
	require.ErrorContains(t, err, "a port for 4 processes")
}
