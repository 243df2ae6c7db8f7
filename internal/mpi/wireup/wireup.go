// Package wireup connects a rank with the other ranks: it opens the transports of the job, fills
// their address vectors, and chooses the transport that leads to each rank.
package wireup

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

// Open opens the transports of a job in the order of their preference. Index r of each address
// vector is the address of rank r. Each rank is reached by the first transport that leads to it, so
// Open does not open the transports after the one that reaches the last ranks. given, if not nil,
// replaces the transports that the tunable transport.use names. A job of one rank needs no
// transport. Open blocks while the ranks exchange addresses. After an error no transport is open.
func Open(ctx context.Context, w *bootstrap.World, given []transport.Provider) (rails []engine.Rail, routes *Routes, err error) {
	if w.Memory != nil {
		defer func() {
			_ = w.Memory.Close() // the transport that uses the memory has duplicated the descriptor
			w.Memory = nil
		}()
	}
	if w.Size == 1 {
		return nil, &Routes{}, nil
	}
	if given == nil {
		for _, name := range w.Params.List("transport.use") {
			p, ok := providers[name]
			if !ok {
				return nil, nil, fmt.Errorf("transport %q: %w: this program was built without it", name, transport.ErrNotSupported)
			}
			given = append(given, p())
		}
	}
	defer func() {
		if err != nil {
			Close(rails)
			rails, routes = nil, nil
		}
	}()
	found := newRoutes(w)
	rest := *w // a copy of w; openRail sets its Listener to nil when a transport owns the listener
	for i, p := range given {
		r, reaches, err := openRail(ctx, &rest, p)
		if errors.Is(err, transport.ErrUnavailable) && i+1 < len(given) {
			if err := publishNoAddress(ctx, w, p, given[i+1], err); err != nil {
				return rails, nil, fmt.Errorf("transport %s: %w", p.Name(), err)
			}
			// The transport is shared memory, because no other returns ErrUnavailable; the ranks
			// that can open it set this, too.
			found.SharesMemory = true
			continue
		}
		if err != nil {
			return rails, nil, fmt.Errorf("transport %s: %w", p.Name(), err)
		}
		rails = append(rails, r)
		found.SharesMemory = found.SharesMemory || r.Domain.Attr().Caps.Has(transport.CapSharedMemory)
		switch some := found.take(len(rails)-1, reaches); {
		case found.left == 0:
			return rails, found, nil
		// The transport reaches no other rank: for example shared memory, if the rank is alone on
		// its host.
		case !some:
			rails = rails[:len(rails)-1]
			if err := r.Domain.Close(); err != nil {
				return rails, nil, fmt.Errorf("transport %s: %w", p.Name(), err)
			}
		}
	}
	return rails, nil, found.missing(given)
}

// publishNoAddress takes part in the address exchange of the transport p, which this rank cannot
// open, so that the other ranks know that the transport does not reach this rank. cause is the
// error of p.Open. next is the transport that this rank tries next.
func publishNoAddress(ctx context.Context, w *bootstrap.World, p, next transport.Provider, cause error) error {
	if Verbose() && w.Rank == slices.Index(w.HostOf, w.HostOf[w.Rank]) {
		fmt.Fprintf(os.Stderr, "weft: rank %d and the others of its host try %s: %v\n", w.Rank, next.Name(), cause)
	}
	if w.NoMemory != "" {
		return nil // ranks of other hosts have inherited their memory files, and exchange nothing
	}
	if err := publish(ctx, w, p.Name(), noAddress); err != nil {
		return err
	}
	if err := w.KVS.Fence(ctx); err != nil { // as in openRail
		return fmt.Errorf("wait for all ranks to have inserted addresses: %w", err)
	}
	return nil
}

// Routes says which transport leads to each rank.
type Routes struct {
	// Rail holds, by rank, the index of its transport in the rails that Open returns. The entry of
	// the caller's own rank has no meaning.
	Rail []uint8

	// SharesMemory reports that one of the transports is shared memory, even if this rank shares
	// it with no other rank. All ranks open the same transports in the same order, so the value is
	// the same on all ranks.
	SharesMemory bool

	self  int    // the caller's rank
	found []bool // by rank: Rail is valid for it, or it is the caller's own rank
	left  int    // number of ranks without a route
}

func newRoutes(w *bootstrap.World) *Routes {
	r := &Routes{self: w.Rank, Rail: make([]uint8, w.Size), found: make([]bool, w.Size), left: w.Size - 1}
	r.found[w.Rank] = true // a rank needs no transport to itself
	return r
}

// take adds the transport with the index rail: it becomes the route to each rank that it reaches
// and that has no route yet. some reports whether the transport reaches any rank other than the
// caller's.
func (v *Routes) take(rail int, reaches func(transport.Addr) bool) (some bool) {
	for rank, found := range v.found {
		if rank == v.self || !reaches(transport.Addr(rank)) {
			continue
		}
		some = true
		if !found {
			v.Rail[rank], v.found[rank] = uint8(rail), true
			v.left--
		}
	}
	return some
}

// missing returns an error that names a rank to which none of the tried transports leads, or nil if
// there is no such rank.
func (v *Routes) missing(tried []transport.Provider) error {
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

// Close closes the domains of transports that no engine owns.
func Close(rails []engine.Rail) {
	for _, r := range rails {
		_ = r.Domain.Close() // the caller has an earlier error
	}
}

// openRail opens the transport p and fills its address vector. reaches reports whether the
// transport leads to a rank. If the transport takes over w.Listener, a listening socket that the
// launcher has opened for this rank, openRail sets w.Listener to nil.
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
		if _, closed := w.Listener.Stat(); how != exchanged && how != byTransport || errors.Is(closed, os.ErrClosed) {
			w.Listener = nil
		}
	}
	if err != nil {
		return r, nil, err
	}
	if w.Rank == 0 && Verbose() {
		fmt.Fprintf(os.Stderr, "weft: %s: %d addresses inserted %s\n", attr.Provider, w.Size, how)
	}
	partial, ok := av.(transport.Reacher)
	if !ok {
		return r, func(transport.Addr) bool { return true }, nil
	}
	if how != byTransport { // Insert determines which ranks can be reached, so all ranks must have inserted
		if err = w.KVS.Fence(ctx); err != nil {
			return r, nil, fmt.Errorf("wait for all ranks to have inserted addresses: %w", err)
		}
	}
	return r, partial.Reaches, nil
}

// config returns the configuration with which this process opens a transport.
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
		if n != w.HostOf[w.Rank] {
			continue
		}
		if rank < w.Rank {
			cfg.HostRank++
		}
		cfg.HostSize++
		if w.Memory != nil {
			cfg.Locals = append(cfg.Locals, transport.Addr(rank))
		}
	}
	return cfg
}

// Values of the result how of insertAddresses, except for addresses that the launcher has chosen.
const (
	exchanged   = "in bulk, after an exchange"
	byTransport = "by the transport itself"
)

// insertAddresses makes index r of av the address of rank r, unless the transport has done so. If
// the launcher has chosen the addresses and the transport listens there, insertAddresses computes
// them, or takes them from the launcher's list. Otherwise the ranks exchange them through the
// launcher's key-value space. how says, in words, which of these ways it was.
func insertAddresses(ctx context.Context, w *bootstrap.World, name string, attr transport.Attr, av transport.AddressVector, ep transport.Endpoint) (how string, err error) {
	switch {
	case av.Len() == w.Size:
		how = byTransport
	case w.Listener != nil && w.BasePort > 0 && attr.Caps.Has(transport.CapSymmetric):
		how, err = insertSymmetric(w, av)
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

// block is a range of ranks whose addresses one call of InsertSym inserts: services ranks on each of
// several hosts with consecutive IP addresses. On each host they have the ports from port on.
type block struct{ first, host, hosts, port, services int }

// blocksOf divides the ranks into as few blocks as possible. The ranks of a host have consecutive ports
// from w.BasePort on.
func blocksOf(w *bootstrap.World) (list []block) {
	next := make([]int, len(w.Hosts)) // by host: number of its ports that the ranks up to here use
	var after netip.Addr              // the IP address that follows those of the last block
	for rank := 0; rank < w.Size; {
		host := w.HostOf[rank]
		n := 1
		for rank+n < w.Size && w.HostOf[rank+n] == host {
			n++
		}
		port := w.BasePort + next[host]
		ip, _ := netip.ParseAddr(w.Hosts[host]) // the address vector returns an error if it is none
		if k := len(list) - 1; k >= 0 && ip.IsValid() && ip == after && list[k].port == port && list[k].services == n {
			list[k].hosts++
		} else {
			list = append(list, block{rank, host, 1, port, n})
		}
		after = ip.Next()
		next[host] += n
		rank += n
	}
	return list
}

// insertSymmetric computes the addresses of all ranks and inserts them into av, by one call of InsertSym
// for each block. If there are more blocks than hosts, or if InsertSym fails, one call of Insert inserts the
// remaining addresses. Afterwards insertSymmetric checks the first and the last address.
func insertSymmetric(w *bootstrap.World, av transport.AddressVector) (how string, err error) {
	how = fmt.Sprintf("symmetrically, from port %d on", w.BasePort)
	list := blocksOf(w)
	var failed error
	if len(list) <= len(w.Hosts) {
		for _, b := range list {
			var first transport.Addr
			if first, failed = av.InsertSym(w.Hosts[b.host], b.hosts, strconv.Itoa(b.port), b.services); failed != nil {
				failed = fmt.Errorf("insert %d addresses from %s port %d: %w", b.hosts*b.services, w.Hosts[b.host], b.port, failed)
				break
			}
			if int(first) != b.first {
				return how, fmt.Errorf("the address of rank %d has index %d", b.first, first)
			}
		}
	}
	next := make([]int, len(w.Hosts)) // by host: number of its ports that the ranks up to here use
	address := func(host int) transport.Address {
		return transport.Address(net.JoinHostPort(w.Hosts[host], strconv.Itoa(w.BasePort+next[host])))
	}
	var rest []transport.Address // those of the ranks that av lacks
	ends := make(map[int]transport.Address, 2)
	for rank, host := range w.HostOf {
		if rank == 0 || rank == w.Size-1 {
			ends[rank] = address(host)
		}
		if rank >= av.Len() {
			rest = append(rest, address(host))
		}
		next[host]++
	}
	if len(rest) > 0 {
		how = fmt.Sprintf("in bulk, computed from port %d on", w.BasePort)
		if err := insertAll(av, rest); err != nil {
			return how, errors.Join(failed, err)
		}
	}
	for rank, want := range ends {
		got, err := av.Lookup(transport.Addr(rank))
		if err != nil {
			return how, fmt.Errorf("look up the address of rank %d: %w", rank, err)
		}
		if !sameAddress(string(got), string(want)) {
			return how, fmt.Errorf("the address of rank %d should be %s, but the vector has %s", rank, want, got)
		}
	}
	return how, nil
}

// sameAddress reports whether two texts of an IP address and a port mean the same address. It
// parses them, because an IPv6 address can be written in several forms.
func sameAddress(a, b string) bool {
	x, errX := netip.ParseAddrPort(a)
	y, errY := netip.ParseAddrPort(b)
	return errX == nil && errY == nil && x == y
}

// insertAll inserts the addresses of all ranks that av does not have yet, in rank order.
func insertAll(av transport.AddressVector, addrs []transport.Address) error {
	n := av.Len()
	first, err := av.Insert(addrs)
	if err != nil {
		return fmt.Errorf("insert %d addresses: %w", len(addrs), err)
	}
	if int(first) != n {
		return fmt.Errorf("the first of %d further addresses has index %d, not %d", len(addrs), first, n)
	}
	return nil
}

// Report writes a line to stderr that names the transports, and for each the number of other ranks
// to which this rank's messages take it.
func Report(w *bootstrap.World, rails []engine.Rail, routes *Routes) {
	if len(rails) == 0 {
		fmt.Fprintln(os.Stderr, "weft: a world of one uses no transport")
		return
	}
	hosts := 0
	for _, n := range w.HostOf {
		hosts = max(hosts, n+1)
	}
	leads := make([]int, len(rails))
	for rank, rail := range routes.Rail {
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

// Verbose reports whether the environment variable WEFT_VERBOSE asks for lines about the
// transports.
func Verbose() bool {
	v, _ := strconv.ParseBool(os.Getenv("WEFT_VERBOSE"))
	return v
}
