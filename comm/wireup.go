package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// wireUp opens the transports that the job is told to use, in their order, and
// fills their address vectors: index is rank. A world of one needs none.
func wireUp(ctx context.Context, w *bootstrap.World, given []transport.Provider) (rails []engine.Rail, err error) {
	if w.Size == 1 {
		return nil, nil
	}
	if given == nil {
		for _, name := range w.Params.List("transport.use") {
			p, ok := providers[name]
			if !ok {
				return nil, fmt.Errorf("transport %q: %w: this program was built without it", name, ErrNotSupported)
			}
			given = append(given, p())
		}
	}
	defer func() {
		if err != nil {
			closeRails(rails)
			rails = nil
		}
	}()
	left := *w // what of it is left for the next
	for _, p := range given {
		r, err := openRail(ctx, &left, p)
		if err != nil {
			return rails, fmt.Errorf("transport %s: %w", p.Name(), err)
		}
		rails = append(rails, r)
	}
	if len(rails) == 0 {
		return nil, errors.New("no transport is named for a job of several ranks")
	}
	return rails, nil
}

func closeRails(rails []engine.Rail) {
	for _, r := range rails {
		_ = r.Domain.Close() // the error that brought us here says more
	}
}

// openRail opens one transport. The first that needs the rank's port takes
// w.Listener away.
func openRail(ctx context.Context, w *bootstrap.World, p transport.Provider) (r engine.Rail, err error) {
	oneHost := true
	for _, n := range w.Nodes {
		oneHost = oneHost && n == w.Nodes[0]
	}
	r.Domain, err = p.Open(transport.Config{
		Self: transport.Addr(w.Rank), Size: w.Size, JobID: w.JobID, Secret: w.Secret,
		Params: w.Params, Listener: w.Listener, OneHost: oneHost,
	})
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			_ = r.Domain.Close()
		}
	}()
	if r.CQ, err = r.Domain.OpenCQ(); err != nil {
		return r, err
	}
	av, err := r.Domain.OpenAV()
	if err != nil {
		return r, err
	}
	if r.Endpoint, err = r.Domain.OpenEndpoint(av, r.CQ); err != nil {
		return r, err
	}
	attr := r.Domain.Attr()
	how, err := insertAddresses(ctx, w, p.Name(), attr, av, r.Endpoint)
	if w.Listener != nil {
		if _, closed := w.Listener.Stat(); how != exchanged || errors.Is(closed, os.ErrClosed) {
			w.Listener = nil
		}
	}
	if err == nil && w.Rank == 0 && verbose() {
		fmt.Fprintf(os.Stderr, "weft: %s: %d addresses inserted %s\n", attr.Provider, w.Size, how)
	}
	return r, err
}

// exchanged is how addresses are inserted that no launcher has laid out.
const exchanged = "in bulk, after an exchange"

// insertAddresses makes index r of av the address of rank r: by arithmetic or
// from the list where the launcher laid the addresses out and the transport
// listens there, else through the launcher's key-value space.
func insertAddresses(ctx context.Context, w *bootstrap.World, name string, attr transport.Attr, av transport.AddressVector, ep transport.Endpoint) (how string, err error) {
	switch {
	case w.Listener != nil && w.BasePort > 0 && attr.Caps.Has(transport.CapSymmetric):
		how = fmt.Sprintf("symmetrically, from %s port %d on", w.Node, w.BasePort)
		err = insertSymmetric(w, av)
	case w.Listener != nil && len(w.Addrs) == w.Size && sameAddress(string(ep.Address()), w.Addrs[w.Rank]):
		how = "in bulk, from the launcher's list"
		addrs := make([]transport.Address, w.Size)
		for i, a := range w.Addrs {
			addrs[i] = transport.Address(a)
		}
		err = insertAll(av, addrs)
	default:
		how = exchanged
		err = exchange(ctx, w, name, av, ep.Address())
	}
	if err != nil {
		return how, err
	}
	if n := av.Len(); n != w.Size {
		return how, fmt.Errorf("%d addresses for %d ranks", n, w.Size)
	}
	return how, nil
}

// insertSymmetric inserts all ranks in one call and checks both ends of what
// came of it.
func insertSymmetric(w *bootstrap.World, av transport.AddressVector) error {
	first, err := av.InsertSym(w.Node, 1, strconv.Itoa(w.BasePort), w.Size)
	if err != nil {
		return fmt.Errorf("insert %d addresses from %s port %d: %w", w.Size, w.Node, w.BasePort, err)
	}
	if first != 0 {
		return fmt.Errorf("the first address has index %d", first)
	}
	for _, i := range []int{0, w.Size - 1} {
		want := net.JoinHostPort(w.Node, strconv.Itoa(w.BasePort+i))
		got, err := av.Lookup(transport.Addr(i))
		if err != nil {
			return fmt.Errorf("look rank %d up: %w", i, err)
		}
		if !sameAddress(string(got), want) {
			return fmt.Errorf("rank %d should be at %s, and is taken to be at %s", i, want, got)
		}
	}
	return nil
}

// sameAddress compares two numeric addresses, which IPv6 may write in several
// ways.
func sameAddress(a, b string) bool {
	x, errX := netip.ParseAddrPort(a)
	y, errY := netip.ParseAddrPort(b)
	return errX == nil && errY == nil && x == y
}

func insertAll(av transport.AddressVector, addrs []transport.Address) error {
	first, err := av.Insert(addrs)
	if err != nil {
		return fmt.Errorf("insert %d addresses: %w", len(addrs), err)
	}
	if first != 0 {
		return fmt.Errorf("the first address has index %d", first)
	}
	return nil
}

// exchange tells this rank's address to all and learns theirs.
func exchange(ctx context.Context, w *bootstrap.World, name string, av transport.AddressVector, own transport.Address) error {
	key := func(rank int) string { return "weft-" + name + "-" + strconv.Itoa(rank) }
	if err := w.KVS.Put(key(w.Rank), string(own)); err != nil {
		return fmt.Errorf("publish address %q: %w", own, err)
	}
	if err := w.KVS.Fence(ctx); err != nil {
		return fmt.Errorf("wait for the addresses of all ranks: %w", err)
	}
	addrs := make([]transport.Address, w.Size)
	for i := range addrs {
		if err := ctx.Err(); err != nil {
			return err
		}
		a, err := w.KVS.Get(key(i))
		if err != nil {
			return fmt.Errorf("learn the address of rank %d: %w", i, err)
		}
		addrs[i] = transport.Address(a)
	}
	return insertAll(av, addrs)
}

// sayTransports tells which transport leads where.
func sayTransports(w *bootstrap.World, rails []engine.Rail) {
	if len(rails) == 0 {
		fmt.Fprintln(os.Stderr, "weft: a world of one uses no transport")
		return
	}
	hosts := 0
	for _, n := range w.Nodes {
		hosts = max(hosts, n+1)
	}
	names := make([]string, len(rails))
	for i, r := range rails {
		a := r.Domain.Attr()
		names[i] = a.Provider
		if a.Name != "" {
			names[i] += " (" + a.Name + ")"
		}
	}
	fmt.Fprintf(os.Stderr, "weft: ranks: %d, hosts: %d, started by %s, joined by %s\n", w.Size, hosts, w.Launcher, strings.Join(names, ", "))
}
