package bootstrap

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"golang.org/x/sys/unix"
)

// A rendezvous: how ranks find each other if their launcher gives them only their numbers (ADR
// 16)
//
//	rank 0                 a directory that all hosts share       rank 1 …
//	listens
//	writes the notice ───────► launcher-job ────────────────────► reads it
//	   ◄──────────────────── connects, proves that it knows the secret
//	   ────────────────────► rank 0 proves it too
//	   ◄──────────────────── enters the first fence, with the name of its host
//	all ranks have entered: removes the notice, stops listening
//	   ────────────────────► the names of all hosts
//
// The connections stay open for further fences and for an abort.
type rendezvous struct {
	*place
	path    string                      // path of the notice
	timeout time.Duration               // limit of the rendezvous and of each later fence (bootstrap.timeout)
	exit    func(code int, line string) // called after an abort by another rank: the function exit, except in tests
}

// openByRendezvous returns the World of a rank after a rendezvous with the other ranks.
func (p *place) openByRendezvous(ctx context.Context, getenv func(string) string) (*World, error) {
	set, err := paramsOf(getenv)
	if err != nil {
		return nil, err
	}
	r := &rendezvous{place: p, timeout: set.Duration("bootstrap.timeout"), exit: exit}
	if r.timeout <= 0 {
		return nil, fmt.Errorf("bootstrap.timeout=%v must be positive", r.timeout)
	}
	if r.path, err = noticePath(getenv, set, p.job); err != nil {
		return nil, err
	}
	m := &hubKVS{rank: p.rank}
	secret, nodes, err := r.run(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("rank %d of %d of %s: %w", p.rank, p.size, p.what, err)
	}
	id := derive(secret, "job id")
	return &World{
		Rank: p.rank, Size: p.size, AppNum: p.app, HostOf: nodes, Cores: coresOfHost(getenv),
		JobID: hex.EncodeToString(id[:8]), Secret: derive(secret, "job secret"),
		Launcher: p.launcher, Params: set, KVS: m,
	}, nil
}

// run blocks until all ranks have entered the first fence. It returns the secret and the number of
// the host of each rank.
func (r *rendezvous) run(ctx context.Context, m *hubKVS) (secret []byte, nodes []int, err error) {
	var text []byte // content of the notice by which this rank has found rank 0; nil in rank 0
	if r.rank == 0 {
		secret, err = r.host(ctx, m)
	} else {
		secret, text, err = r.join(ctx, m)
	}
	if err != nil {
		return nil, nil, err
	}
	if nodes, err = m.firstFence(ctx, r.size); err != nil {
		_ = m.transport.close() // the error above says more
		if text != nil {
			_ = removeNotice(r.path, text) // rank 0 may have died before it could remove the notice
		}
	}
	return secret, nodes, err
}

// exit ends this process with code after another rank has aborted the job. line says which rank, and
// why. Tests replace exit by a function that returns.
func exit(code int, line string) {
	fmt.Fprintf(os.Stderr, "weft: the job was aborted by %s\n", strings.TrimRight(line, " :"))
	os.Exit(code)
}

// firstFence puts the hostKey of this rank, runs the first fence, and returns the number of the
// host of each rank. Rank 0 calls it when all other ranks have entered that fence.
func (m *hubKVS) firstFence(ctx context.Context, size int) ([]int, error) {
	if err := m.Put(hostName(m.rank), hostKey()); err != nil {
		return nil, err
	}
	if err := m.Fence(ctx); err != nil {
		return nil, err
	}
	hosts := make([]string, size)
	for r := range hosts {
		var err error
		if hosts[r], err = m.Get(hostName(r)); err != nil {
			return nil, err
		}
	}
	return dense(hosts), nil
}

// derive returns a secret that is derived from another one for the purpose label.
func derive(secret []byte, label string) [32]byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("weft rendezvous " + label))
	return [32]byte(h.Sum(nil))
}

func (r *rendezvous) session(secret []byte) wire.TCPSession {
	return wire.TCPSession{Secret: derive(secret, "handshake"), JobID: r.job, Size: uint32(r.size), From: uint32(r.rank)}
}

// noticeTick is the interval at which rank 0 checks that its notice still exists.
const noticeTick = 250 * time.Millisecond

// host is rank 0's part of the rendezvous: it writes the notice and accepts the other ranks. It
// returns when all other ranks have entered the first fence.
func (r *rendezvous) host(ctx context.Context, m *hubKVS) (secret []byte, err error) {
	l, addrs, err := r.listen()
	if err != nil {
		return nil, err
	}
	fresh := NewSecret()
	secret = fresh[:]
	h := newHub(l, r.session(secret), r.timeout, r.exit)
	defer func() {
		if err != nil {
			h.mu.Lock()
			h.fail(err)
			h.mu.Unlock()
			_ = h.close()
		}
	}()
	n := &notice{
		Job: r.job, Size: r.size, Host: hostKey(), Addrs: addrs, Port: l.Addr().(*net.TCPAddr).Port,
		Secret: secret, Seconds: int(r.timeout/time.Second) + 1,
	}
	text, err := n.write(r.path)
	if err != nil {
		return nil, fmt.Errorf("write the address of rank 0 for the other ranks: %w; set WEFT_BOOTSTRAP_DIR to another directory", err)
	}
	defer func() { _ = removeNotice(r.path, text) }()
	removeStaleNotices(r.path)
	err = h.awaitAll(ctx, r.timeout, func() error {
		switch _, now, err := readNotice(r.path); {
		case errors.Is(err, os.ErrNotExist):
			if text, err = n.write(r.path); err != nil {
				return fmt.Errorf("write the address of rank 0 for the other ranks again: %w", err)
			}
		case err == nil && !bytes.Equal(now, text), errors.Is(err, errNotice):
			return fmt.Errorf("another process has written %s: two processes are rank 0", r.path)
		}
		return nil
	})
	if errors.Is(err, errExpired) {
		err = fmt.Errorf("%w; rank 0 has written its address to %s%s", err, r.path, r.sharedDirAdvice())
	}
	if err != nil {
		return nil, err
	}
	m.transport = h
	return secret, nil
}

// errExpired is the error of awaitAll if its time limit is over.
var errExpired = errors.New("bootstrap.timeout")

// awaitAll blocks until all ranks have entered the first fence. Afterwards the hub accepts no more
// connections. awaitAll returns an error if ctx ends, if limit is over (0: there is none), if a
// fence fails, or if check, which it calls at intervals, returns an error.
func (h *hub) awaitAll(ctx context.Context, limit time.Duration, check func() error) error {
	begun := time.Now()
	var expired <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		expired = timer.C
	}
	tick := time.NewTicker(noticeTick)
	defer tick.Stop()
	for {
		select {
		case <-h.allArrived:
			h.gate.Close() // accept no more connections: all ranks are connected
			return nil
		case <-h.failed:
			return h.err
		case <-ctx.Done():
			return fmt.Errorf("after %v: %s not connected: %w", time.Since(begun).Round(time.Millisecond), haveRanks(h.notYetInFence()), ctx.Err())
		case <-expired:
			return fmt.Errorf("%s not connected to rank 0, on %s, within %v (%w)", haveRanks(h.notYetInFence()), hostname(), limit, errExpired)
		case <-tick.C:
			if err := check(); err != nil {
				select {
				case <-h.allArrived: // at the same time; the loop returns
					continue
				default:
				}
				return err
			}
		}
	}
}

// sharedDirAdvice returns the end of an error message: what the user can do if the hosts do not
// share the directory of the notice. If all ranks are on this host, it returns "".
func (r *rendezvous) sharedDirAdvice() string {
	if r.oneHost {
		return ""
	}
	of := ""
	if r.hosts != "" {
		of = " (" + r.hosts + ")"
	}
	return "; if the hosts" + of + " do not share that directory, set WEFT_BOOTSTRAP_DIR to one that they share"
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return name
}

// haveRanks returns a list of ranks as the beginning of a sentence: "ranks 1, 3-5 have".
func haveRanks(list []int) string {
	if len(list) == 1 {
		return "rank " + strconv.Itoa(list[0]) + " has"
	}
	var b strings.Builder
	b.WriteString("ranks ")
	for i, n := 0, 0; i < len(list); n++ {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if n > 0 {
			b.WriteString(", ")
		}
		if n == 10 {
			fmt.Fprintf(&b, "and %d more", len(list)-i)
			break
		}
		b.WriteString(strconv.Itoa(list[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(list[j]))
		}
		i = j + 1
	}
	return b.String() + " have"
}

// listen opens rank 0's listening socket: on all addresses, or on loopback if all ranks are on this
// host or the host has no other addresses. addrs are the addresses for the notice.
func (r *rendezvous) listen() (l *net.TCPListener, addrs []string, err error) {
	listen := func(addr string) (*net.TCPListener, error) {
		cfg := net.ListenConfig{KeepAliveConfig: keepAlive}
		l, err := cfg.Listen(context.Background(), "tcp", addr)
		if err != nil {
			return nil, err
		}
		return l.(*net.TCPListener), nil
	}
	if !r.oneHost {
		own, err := ownAddrs()
		if err != nil {
			return nil, nil, err
		}
		for _, a := range own {
			if ip := a.Addr(); !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && len(addrs) < noticeMaxAddrs {
				addrs = append(addrs, ip.String())
			}
		}
		if len(addrs) > 0 {
			l, err = listen(":0")
			return l, addrs, err
		}
	}
	for _, ip := range []string{"127.0.0.1", "::1"} {
		if l, err = listen(net.JoinHostPort(ip, "0")); err == nil {
			return l, []string{ip}, nil
		}
	}
	return nil, nil, err
}

// keepAlive makes the kernel detect within about 35 seconds that the host at the other end no longer
// answers.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// ownAddrs returns the addresses of this host's interfaces, IPv4 first, each with its network.
func ownAddrs() ([]netip.Prefix, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list network addresses: %w", err)
	}
	var own []netip.Prefix
	for _, a := range list {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		ones, _ := n.Mask.Size()
		if ok {
			own = append(own, netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	slices.SortStableFunc(own, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return own, nil
}

const (
	dialTimeout = 3 * time.Second // limit for the connection to one address, which may be unreachable
	// firstPause is the time between the first two attempts to find rank 0. Later pauses are
	// longer.
	firstPause = 4 * time.Millisecond
	lastPause  = 250 * time.Millisecond // longest time between two attempts
)

// join is the other ranks' part of the rendezvous: it reads the notice and connects with rank 0. It
// returns when rank 0 has accepted this rank. text is the content of the notice.
func (r *rendezvous) join(ctx context.Context, m *hubKVS) (secret, text []byte, err error) {
	begun := time.Now()
	wait, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	pause := firstPause
	for {
		n, text, err := readNotice(r.path)
		if err == nil {
			var c net.Conn
			var gone bool
			if c, gone, err = r.connect(wait, n); err == nil {
				m.transport = newSpoke(c, r.size, r.timeout, r.exit)
				return n.Secret, text, nil
			}
			if gone {
				_ = removeNotice(r.path, text)
			}
		}
		select {
		case <-time.After(pause):
			pause = min(pause*3/2, lastPause)
			continue
		case <-wait.Done():
		}
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s, which rank 0 writes, does not exist on %s", r.path, hostname())
		}
		limit := r.timeout.String() + " (bootstrap.timeout)"
		if ctx.Err() != nil {
			limit, err = time.Since(begun).Round(time.Millisecond).String(), fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return nil, nil, fmt.Errorf("rank 0 was not found within %s: %w%s", limit, err, r.sharedDirAdvice())
	}
}

// connect connects with the rank 0 that has written a notice, and runs the handshake. gone is true
// if that process no longer listens: at each address, nobody listens or a program without the
// secret does.
func (r *rendezvous) connect(ctx context.Context, n *notice) (c net.Conn, gone bool, err error) {
	if n.Job != r.job || n.Size != r.size {
		return nil, false, fmt.Errorf("%s belongs to job %s of %d ranks", r.path, n.Job, n.Size)
	}
	addrs := r.dialOrder(n)
	if len(addrs) == 0 {
		return nil, false, fmt.Errorf("%s, written on another host, names only addresses that this host, %s, has too: %v", r.path, hostname(), n.Addrs)
	}
	var errs []error
	gone = true
	for _, addr := range addrs {
		to := net.JoinHostPort(addr, strconv.Itoa(n.Port))
		c, err := (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}).DialContext(ctx, "tcp", to)
		if err != nil {
			gone = gone && errors.Is(err, unix.ECONNREFUSED)
			errs = append(errs, err)
			continue
		}
		_ = c.SetDeadline(time.Now().Add(handshakeTimeout))
		stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
		refused, err := handshake(c, r.session(n.Secret))
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err == nil {
			_ = c.SetDeadline(time.Time{})
			return c, false, nil
		}
		_ = c.Close()
		gone = gone && errors.Is(err, errNotAuthenticated)
		if !refused {
			err = fmt.Errorf("%s, the address in %s, does not answer as rank 0: %w", to, r.path, err)
		}
		errs = append(errs, err)
	}
	return nil, gone, inOneLine(errs)
}

// inOneLine joins errors in one line.
func inOneLine(errs []error) error {
	all := errs[0]
	for _, err := range errs[1:] {
		all = fmt.Errorf("%w; %w", all, err)
	}
	return all
}

// dialOrder returns the addresses of rank 0 in the order in which to try them: addresses of this
// host, then those in a network of this host, then others. If rank 0 is on another host, dialOrder
// leaves out addresses that this host has, too, for example that of a bridge for containers,
// because they do not lead to rank 0.
func (r *rendezvous) dialOrder(n *notice) []string {
	own, _ := ownAddrs()
	there := n.Host == hostKey()
	var near, far []string
	for _, a := range n.Addrs {
		ip, err := netip.ParseAddr(a)
		switch {
		case err != nil:
		case slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr() == ip }):
			if there || ip.IsLoopback() && r.oneHost {
				near = append([]string{a}, near...)
			}
		case slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(ip) }):
			near = append(near, a)
		default:
			far = append(far, a)
		}
	}
	return append(near, far...)
}
