package wireup

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/transport"
)

// space is a key-value space of several ranks in one process.
type space struct {
	size int

	mu      sync.Mutex
	pairs   map[string]string
	visible map[string]string // the pairs as of the last fence
	waiting int
	release chan struct{} // closed when all ranks are in the fence
	gets    int
}

func newSpace(size int) *space {
	return &space{size: size, pairs: map[string]string{}, visible: map[string]string{}, release: make(chan struct{})}
}

func (s *space) Put(key, value string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.pairs[key]; twice || len(key) > bootstrap.MaxKey || len(value) > bootstrap.MaxValue {
		return fmt.Errorf("put %s: again, or too long", key)
	}
	s.pairs[key] = value
	return nil
}

func (s *space) Get(key string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	v, ok := s.visible[key]
	if !ok {
		return "", bootstrap.ErrNoKey
	}
	return v, nil
}

func (s *space) Fence(ctx context.Context) error {
	s.mu.Lock()
	release := s.release
	if s.waiting++; s.waiting == s.size {
		for k, v := range s.pairs {
			s.visible[k] = v
		}
		s.waiting, s.release = 0, make(chan struct{})
		close(release)
	}
	s.mu.Unlock()
	select {
	case <-release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *space) Finalize() error             { return nil }
func (s *space) Abort(bootstrap.Abort) error { return nil }

// vector is an address vector that only remembers.
type vector struct {
	transport.AddressVector
	addrs []transport.Address
}

func (v *vector) Insert(addrs []transport.Address) (transport.Addr, error) {
	first := len(v.addrs)
	v.addrs = append(v.addrs, addrs...)
	return transport.Addr(first), nil
}

func (v *vector) Len() int { return len(v.addrs) }

// TestExchange checks that all ranks get the addresses of all, an empty one for a rank that cannot open the
// transport, by about as many requests as there are hosts and values of lists.
func TestExchange(t *testing.T) {
	address := func(rank int) transport.Address {
		return transport.Address(fmt.Sprintf("[2001:db8::%d]:%d,hex:%s", rank, 1000+rank, strings.Repeat("f", rank%90)))
	}
	for name, c := range map[string]struct {
		hostOf []int
		absent map[int]bool
		gets   int // at most that many for each rank
	}{
		"few ranks per host":    {hostOf: []int{0, 0, 1, 1, 2}, gets: 5},
		"alone":                 {hostOf: []int{0}, gets: 1},
		"one host":              {hostOf: make([]int, 200), gets: 1 + 200*80/bootstrap.MaxValue + 2},
		"by turns":              {hostOf: []int{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, gets: 3},
		"an uneven host":        {hostOf: []int{1, 0, 0, 0, 0, 0, 0, 0, 0}, gets: 3},
		"without an address":    {hostOf: []int{0, 0, 0, 0, 1, 1, 1, 1}, absent: map[int]bool{0: true, 6: true}, gets: 3},
		"nobody has an address": {hostOf: []int{0, 0, 0, 0}, absent: map[int]bool{0: true, 1: true, 2: true, 3: true}, gets: 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := len(c.hostOf)
			s := newSpace(n)
			vectors := make([]vector, n)
			var g errgroup.Group
			for rank := range n {
				w := &bootstrap.World{Rank: rank, Size: n, HostOf: c.hostOf, KVS: s}
				g.Go(func() error {
					if c.absent[rank] {
						return publish(t.Context(), w, "x", noAddress)
					}
					return exchange(t.Context(), w, "x", &vectors[rank], address(rank))
				})
			}
			require.NoError(t, g.Wait())
			for rank, v := range vectors {
				if c.absent[rank] {
					continue
				}
				require.Len(t, v.addrs, n)
				for r, a := range v.addrs {
					if c.absent[r] {
						require.Empty(t, a)
					} else {
						require.Equal(t, address(r), a)
					}
				}
			}
			require.LessOrEqual(t, s.gets, n*c.gets)
		})
	}
}

// TestBadLists checks that lists that are not those of publish are errors.
func TestBadLists(t *testing.T) {
	for want, list := range map[string]string{
		"host 0 has 4 ranks and 3 addresses": lastOne + "a|b|c",
		"host 0 has 4 ranks and 1 addresses": "",
		"get the addresses of host 0":        moreFollow + "a|b|c|d",
	} {
		s := newSpace(1)
		s.visible[listKey("x", 0, 0)] = list
		_, err := collect(t.Context(), &bootstrap.World{Size: 4, HostOf: make([]int, 4), KVS: s}, "x")
		require.ErrorContains(t, err, want)
	}
	// The first rank of the host has failed after it had published its address.
	lost := newSpace(1)
	for rank, a := range []string{"a", "b", "c", "d"} {
		lost.visible[addressKey("x", rank)] = a
	}
	got, err := collect(t.Context(), &bootstrap.World{Size: 4, HostOf: make([]int, 4), KVS: lost}, "x")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c", "d"}, got)

	s := newSpace(1)
	s.pairs[addressKey("x", 1)], s.pairs[addressKey("x", 2)], s.pairs[addressKey("x", 3)] = "b", "c|c", "d"
	err = publish(t.Context(), &bootstrap.World{Size: 4, HostOf: make([]int, 4), KVS: s}, "x", "a")
	require.ErrorContains(t, err, `the address "c|c" contains "|"`)
}
