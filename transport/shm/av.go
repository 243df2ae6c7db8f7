//go:build linux && !portable

package shm

import (
	crand "crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// address is the address of a rank. If Config.Memory was nil, the rank has made a memory file, and
// its address tells other ranks of the host how to open that file:
//
//	shm:3/5d1f…/4711/5/90ab…
//	    │  │     │   │  └ nonce that identifies the memory file
//	    │  │     │   └ descriptor of the file in that process
//	    │  │     └ process id
//	    │  └ label: equal for processes with the same host, pid namespace and user
//	    └ rank
//
// If the ranks got a memory file in Config.Memory, the address is plain: "shm:3".
type address struct {
	rank    int
	host    uint64
	pid, fd int
	nonce   uint64
}

const addressPrefix = name + ":"

// newNonce returns 32 random bytes.
func newNonce() (n [32]byte) {
	random(n[:])
	return n
}

// random fills b, at most 256 bytes, by getrandom(2). A rank needs random
// bytes only at its start, and crypto/rand takes longer to set up its generator.
func random(b []byte) {
	if n, err := unix.Getrandom(b, 0); err != nil || n < len(b) {
		_, _ = crand.Read(b) // it never fails
	}
}

// newAddress returns the address of a rank of this process whose memory file is file.
func newAddress(j *wire.ShmJob, rank int, file *os.File) (address, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return address{}, fmt.Errorf("%w: identify this host: %w", transport.ErrUnavailable, err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return address{}, fmt.Errorf("%w: identify this process namespace: %w", transport.ErrUnavailable, err)
	}
	b := binary.LittleEndian.AppendUint64(boot, st.Ino)
	b = binary.LittleEndian.AppendUint64(b, uint64(os.Geteuid()))
	n := newNonce()
	return address{
		rank: rank, host: j.Label("host", b), pid: os.Getpid(), fd: int(file.Fd()), nonce: binary.LittleEndian.Uint64(n[:]),
	}, nil
}

func plainAddress(rank int) transport.Address {
	return transport.Address(addressPrefix + strconv.Itoa(rank))
}

func (a *address) text() transport.Address {
	return transport.Address(fmt.Sprintf("%s%d/%016x/%d/%d/%016x", addressPrefix, a.rank, a.host, a.pid, a.fd, a.nonce))
}

// parseAddress parses either form of an address. From a plain one it sets only the rank.
func parseAddress(text transport.Address) (a address, ok bool) {
	s, ok := strings.CutPrefix(string(text), addressPrefix)
	f := strings.Split(s, "/")
	if !ok || len(f) != 1 && len(f) != 5 {
		return address{}, false
	}
	number := func(s string, to *int) {
		n, err := strconv.ParseUint(s, 10, 31)
		ok = ok && err == nil
		*to = int(n)
	}
	label := func(s string, to *uint64) {
		b, err := hex.DecodeString(s)
		if ok = ok && err == nil && len(b) == 8; ok {
			*to = binary.BigEndian.Uint64(b)
		}
	}
	number(f[0], &a.rank)
	if len(f) == 5 {
		label(f[1], &a.host)
		number(f[2], &a.pid)
		number(f[3], &a.fd)
		label(f[4], &a.nonce)
		ok = ok && a.pid > 0
	}
	if !ok {
		return address{}, false
	}
	return a, true
}

// addressVector is a table of addresses. If the ranks got the memory file in Config.Memory, it
// holds the addresses of all ranks from the start.
type addressVector struct {
	d *domain
	// plain is the number of plain addresses: the index i < plain has the plain address of rank
	// i. The addresses in table follow.
	plain int
	table []transport.Address
}

var _ transport.Reacher = (*addressVector)(nil)

// Insert adds addresses. When the endpoint's vector has the addresses of all ranks, the domain
// joins the ranks of its host, unless it has joined before.
func (v *addressVector) Insert(addrs []transport.Address) (transport.Addr, error) {
	first := v.Len()
	for _, t := range addrs {
		if a, ok := parseAddress(t); t != "" && (!ok || a.rank >= v.d.size) {
			return 0, fmt.Errorf("shm: insert %q: %w", t, transport.ErrAddress)
		}
	}
	v.table = append(v.table, addrs...)
	if v == v.d.av {
		if err := v.complete(); err != nil {
			return 0, fmt.Errorf("shm: %w", err)
		}
	}
	return transport.Addr(first), nil
}

// InsertSym returns ErrNotSupported: addresses of ranks do not follow a pattern.
func (v *addressVector) InsertSym(string, int, string, int) (transport.Addr, error) {
	return 0, fmt.Errorf("shm: symmetric insert: %w", transport.ErrNotSupported)
}

func (v *addressVector) Lookup(a transport.Addr) (transport.Address, error) {
	switch {
	case a < 0 || int(a) >= v.Len():
		return "", fmt.Errorf("shm: lookup of index %d of %d: %w", a, v.Len(), transport.ErrAddress)
	case int(a) < v.plain:
		return plainAddress(int(a)), nil
	}
	return v.table[int(a)-v.plain], nil
}

func (v *addressVector) Len() int { return v.plain + len(v.table) }

// Reaches reports whether rank a shares this rank's memory file. If Config.Memory was nil,
// Reaches returns false for a peer that has not joined yet or whose end this rank has reported.
func (v *addressVector) Reaches(a transport.Addr) bool {
	d := v.d
	if d.closed || a < 0 || int(a) >= len(d.peers) {
		return false
	}
	return a == d.rank || d.localOf(a) >= 0 && (d.inherited || d.authenticate(d.peer(a)) == nil)
}

// complete joins the ranks with the same host label, if the vector has an entry for each rank of
// the job and this rank has not joined yet. These ranks use the memory file of the lowest rank
// among them. An empty entry stands for a rank without a memory file. If this rank cannot open the
// file, it joins no other rank and uses its own file.
func (v *addressVector) complete() error {
	d := v.d
	if d.seg != nil || d.closed || v.Len() < d.size {
		return nil
	}
	var locals []transport.Addr
	var first address
	for i := range d.size {
		if v.table[i] == "" {
			continue
		}
		a, _ := parseAddress(v.table[i])
		if a.rank != i {
			return fmt.Errorf("join: the address at index %d is that of rank %d: %w", i, a.rank, transport.ErrAddress)
		}
		if a.host == d.address.host && a.pid > 0 {
			if len(locals) == 0 {
				first = a
			}
			locals = append(locals, transport.Addr(i))
		}
	}
	if own, _ := parseAddress(v.table[d.rank]); own != d.address {
		return fmt.Errorf("join: the address at index %d is not this rank's: %w", d.rank, transport.ErrAddress)
	}
	file, err := d.find(first)
	// A container may forbid this rank to open the file. Then this rank joins no other rank, and
	// the others find that it has not joined.
	if err != nil {
		locals, first, file = []transport.Addr{d.rank}, d.address, d.file
	}
	if file != d.file {
		_ = d.file.Close() // no rank uses it
		d.file = file
	}
	nonce := binary.LittleEndian.AppendUint64(nil, first.nonce)
	if err := d.join(file, locals, nonce); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	return nil
}

// find opens the memory file of the rank with address a. For this rank's own address it returns
// d.file.
func (d *domain) find(a address) (*os.File, error) {
	if a == d.address {
		return d.file, nil
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", a.pid, a.fd)
	link, err := os.Readlink(path)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(link, "/memfd:"+memoryName) {
		return nil, fmt.Errorf("%s is %s", path, link)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}
