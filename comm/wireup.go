package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// wireUp opens the transports that the job is told to use, in their order, and
// fills their address vectors: index is rank. Each rank is reached by the first
// of them that leads there, and those after the one that completes the ranks
// are not opened. to says which it is. A world of one needs none.
func wireUp(ctx context.Context, w *bootstrap.World, given []transport.Provider) (rails []engine.Rail, to *ways, err error) {
	if w.Memory != nil {
		defer func() {
			_ = w.Memory.Close() // the domain has its own descriptor
			w.Memory = nil
		}()
	}
	if w.Size == 1 {
		return nil, &ways{}, nil
	}
	if given == nil {
		for _, name := range w.Params.List("transport.use") {
			p, ok := providers[name]
			if !ok {
				return nil, nil, fmt.Errorf("transport %q: %w: this program was built without it", name, ErrNotSupported)
			}
			given = append(given, p())
		}
	}
	defer func() {
		if err != nil {
			closeRails(rails)
			rails, to = nil, nil
		}
	}()
	ways := newWays(w)
	left := *w // what of it is left for the next
	for i, p := range given {
		r, reaches, err := openRail(ctx, &left, p)
		if errors.Is(err, transport.ErrUnavailable) && i+1 < len(given) {
			if err := abstain(ctx, w, p, given[i+1], err); err != nil {
				return rails, nil, fmt.Errorf("transport %s: %w", p.Name(), err)
			}
			ways.shares = true // as on a rank that is alone on its host
			continue
		}
		if err != nil {
			return rails, nil, fmt.Errorf("transport %s: %w", p.Name(), err)
		}
		rails = append(rails, r)
		ways.shares = ways.shares || r.Domain.Attr().Caps.Has(transport.CapSharedMemory)
		switch some := ways.take(len(rails)-1, reaches); {
		case ways.left == 0:
			return rails, ways, nil
		case !some: // as shared memory where a rank is alone on its host
			rails = rails[:len(rails)-1]
			if err := r.Domain.Close(); err != nil {
				return rails, nil, fmt.Errorf("transport %s: %w", p.Name(), err)
			}
		}
	}
	return rails, nil, ways.missing(given)
}

// abstain takes part in the exchange of a transport that this rank cannot open, so that the
// other ranks know that the transport does not reach this rank. cause is the error of Open.
// next is the transport that this rank tries next.
func abstain(ctx context.Context, w *bootstrap.World, p, next transport.Provider, cause error) error {
	if verbose() && w.Rank == slices.Index(w.HostOf, w.HostOf[w.Rank]) {
		fmt.Fprintf(os.Stderr, "weft: rank %d and the others of its host try %s: %v\n", w.Rank, next.Name(), cause)
	}
	if w.NoMemory != "" {
		return nil // ranks of other hosts have inherited their memory, and exchange nothing
	}
	if err := w.KVS.Put(addressKey(p.Name(), w.Rank), noAddress); err != nil {
		return fmt.Errorf("publish that there is no address: %w", err)
	}
	for range 2 { // in exchange, and in openRail
		if err := w.KVS.Fence(ctx); err != nil {
			return fmt.Errorf("wait for the addresses of all ranks: %w", err)
		}
	}
	return nil
}

// ways is which rail leads to each rank.
type ways struct {
	self  int
	route []uint8
	found []bool // by rank: route says it
	left  int    // ranks not found

	// shares says that one of the transports is of shared memory, whether or not
	// this rank shares it with any other. Ranks open the same, in the same order,
	// so that they agree on it.
	shares bool
}

func newWays(w *bootstrap.World) *ways {
	v := &ways{self: w.Rank, route: make([]uint8, w.Size), found: make([]bool, w.Size), left: w.Size - 1}
	v.found[w.Rank] = true // by no rail
	return v
}

// take makes a rail the way to the ranks that it reaches and none before it
// does. It says whether the rail reaches any but this one.
func (v *ways) take(rail int, reaches func(transport.Addr) bool) (some bool) {
	for rank, found := range v.found {
		if rank == v.self || !reaches(transport.Addr(rank)) {
			continue
		}
		some = true
		if !found {
			v.route[rank], v.found[rank] = uint8(rail), true
			v.left--
		}
	}
	return some
}

// missing names a rank that no rail reaches.
func (v *ways) missing(tried []transport.Provider) error {
	if len(tried) == 0 {
		return errors.New("no transport is named for a job of several ranks")
	}
	names := make([]string, len(tried))
	for i, p := range tried {
		names[i] = p.Name()
	}
	for rank, found := range v.found {
		if !found {
			return fmt.Errorf("rank %d is not reached by %s", rank, strings.Join(names, ", "))
		}
	}
	return nil
}

func closeRails(rails []engine.Rail) {
	for _, r := range rails {
		_ = r.Domain.Close() // the error that brought us here says more
	}
}

// openRail opens one transport and says which ranks it reaches. The first that needs
// the rank's port takes w.Listener away.
func openRail(ctx context.Context, w *bootstrap.World, p transport.Provider) (r engine.Rail, reaches func(transport.Addr) bool, err error) {
	r.Domain, err = p.Open(config(w))
	if err != nil {
		return r, nil, err
	}
	defer func() {
		if err != nil {
			_ = r.Domain.Close()
		}
	}()
	if r.CQ, err = r.Domain.OpenCQ(); err != nil {
		return r, nil, err
	}
	av, err := r.Domain.OpenAV()
	if err != nil {
		return r, nil, err
	}
	if r.Endpoint, err = r.Domain.OpenEndpoint(av, r.CQ); err != nil {
		return r, nil, err
	}
	attr := r.Domain.Attr()
	how, err := insertAddresses(ctx, w, p.Name(), attr, av, r.Endpoint)
	if w.Listener != nil {
		if _, closed := w.Listener.Stat(); how != exchanged && how != there || errors.Is(closed, os.ErrClosed) {
			w.Listener = nil
		}
	}
	if err != nil {
		return r, nil, err
	}
	if w.Rank == 0 && verbose() {
		fmt.Fprintf(os.Stderr, "weft: %s: %d addresses inserted %s\n", attr.Provider, w.Size, how)
	}
	partial, ok := av.(transport.Reacher)
	if !ok {
		return r, func(transport.Addr) bool { return true }, nil
	}
	if how != there { // inserting shows which ranks can be reached
		if err = w.KVS.Fence(ctx); err != nil {
			return r, nil, fmt.Errorf("wait for all ranks to have inserted addresses: %w", err)
		}
	}
	return r, partial.Reaches, nil
}

// config is what a transport is told about this process.
func config(w *bootstrap.World) transport.Config {
	cfg := transport.Config{
		Self: transport.Addr(w.Rank), Size: w.Size, JobID: w.JobID, Secret: w.Secret,
		Params: w.Params, Listener: w.Listener, Memory: w.Memory, NoMemory: w.NoMemory, OneHost: true,
	}
	if w.Memory != nil {
		cfg.Locals = make([]transport.Addr, 0, w.Size)
	}
	for rank, n := range w.HostOf {
		cfg.OneHost = cfg.OneHost && n == w.HostOf[0]
		if w.Memory != nil && n == w.HostOf[w.Rank] {
			cfg.Locals = append(cfg.Locals, transport.Addr(rank))
		}
	}
	return cfg
}

// How a vector came to hold all addresses, where no launcher has laid them out.
const (
	exchanged = "in bulk, after an exchange"
	there     = "by the transport itself"
)

// insertAddresses makes index r of av the address of rank r, where it is not
// already: by arithmetic or from the list where the launcher laid the addresses
// out and the transport listens there, else through the launcher's key-value
// space.
func insertAddresses(ctx context.Context, w *bootstrap.World, name string, attr transport.Attr, av transport.AddressVector, ep transport.Endpoint) (how string, err error) {
	switch {
	case av.Len() == w.Size:
		how = there
	case w.Listener != nil && w.BasePort > 0 && attr.Caps.Has(transport.CapSymmetric):
		how = fmt.Sprintf("symmetrically, from port %d on", w.BasePort)
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

// insertSymmetric inserts the ranks that follow on each other on a host in one
// call, and checks both ends of what came of it.
func insertSymmetric(w *bootstrap.World, av transport.AddressVector) error {
	next := make([]int, len(w.Hosts)) // port, by host
	var ends [2]string
	for rank := 0; rank < w.Size; {
		host := w.HostOf[rank]
		n := 1
		for rank+n < w.Size && w.HostOf[rank+n] == host {
			n++
		}
		port := w.BasePort + next[host]
		first, err := av.InsertSym(w.Hosts[host], 1, strconv.Itoa(port), n)
		if err != nil {
			return fmt.Errorf("insert %d addresses from %s port %d: %w", n, w.Hosts[host], port, err)
		}
		if int(first) != rank {
			return fmt.Errorf("the address of rank %d has index %d", rank, first)
		}
		if rank == 0 {
			ends[0] = net.JoinHostPort(w.Hosts[host], strconv.Itoa(port))
		}
		next[host] += n
		rank += n
		ends[1] = net.JoinHostPort(w.Hosts[host], strconv.Itoa(port+n-1))
	}
	for i, rank := range []int{0, w.Size - 1} {
		got, err := av.Lookup(transport.Addr(rank))
		if err != nil {
			return fmt.Errorf("look rank %d up: %w", rank, err)
		}
		if !sameAddress(string(got), ends[i]) {
			return fmt.Errorf("rank %d should be at %s, and is taken to be at %s", rank, ends[i], got)
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

// noAddress is what a rank publishes if it has no address in a transport.
const noAddress = "-"

// addressKey is the key under which a rank publishes its address in a transport.
func addressKey(transport string, rank int) string {
	return "weft-" + transport + "-" + strconv.Itoa(rank)
}

// exchange tells this rank's address to all and learns theirs.
func exchange(ctx context.Context, w *bootstrap.World, name string, av transport.AddressVector, own transport.Address) error {
	if err := w.KVS.Put(addressKey(name, w.Rank), string(own)); err != nil {
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
		a, err := w.KVS.Get(addressKey(name, i))
		if err != nil {
			return fmt.Errorf("learn the address of rank %d: %w", i, err)
		}
		if a != noAddress {
			addrs[i] = transport.Address(a)
		}
	}
	return insertAll(av, addrs)
}

// sayTransports tells which transport leads where, and to how many ranks.
func sayTransports(w *bootstrap.World, rails []engine.Rail, route []uint8) {
	if len(rails) == 0 {
		fmt.Fprintln(os.Stderr, "weft: a world of one uses no transport")
		return
	}
	hosts := 0
	for _, n := range w.HostOf {
		hosts = max(hosts, n+1)
	}
	leads := make([]int, len(rails))
	for rank, rail := range route {
		if rank != w.Rank {
			leads[rail]++
		}
	}
	names := make([]string, len(rails))
	for i, r := range rails {
		a := r.Domain.Attr()
		names[i] = a.Provider
		if a.Name != "" {
			names[i] += " (" + a.Name + ")"
		}
		names[i] += " to " + strconv.Itoa(leads[i])
	}
	fmt.Fprintf(os.Stderr, "weft: ranks: %d, hosts: %d, started by %s, joined by %s\n", w.Size, hosts, w.Launcher, strings.Join(names, ", "))
}
