package bootstrap

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/wire"
	"golang.org/x/sys/unix"
)

// Open finds out who this process is. It looks for gorun's job card, then for
// PMI-1, and else makes a world of one. It may wait for the other ranks, until
// ctx ends. A process calls it once: it takes over the inherited descriptors
// and marks them close-on-exec, so that a program which this one starts, and
// which inherits only the environment, is a world of one.
//
// Where the environment is that of a launcher whose rendezvous cannot be used,
// Open says so in one line on stderr and makes a world of one. It is the only
// line that the library ever writes.
func Open(ctx context.Context) (*World, error) { return open(ctx, os.Getenv, os.Stderr) }

func open(ctx context.Context, getenv func(string) string, stderr io.Writer) (*World, error) {
	w, err := openNative(ctx, getenv)
	if err != nil || w != nil {
		return w, wrap(err, "gorun")
	}
	w, err = openPMI(ctx, getenv)
	if err != nil || w != nil {
		return w, wrap(err, "PMI")
	}
	if found := foreign(getenv); found != "" {
		_, _ = fmt.Fprintf(stderr, "weft: this is a world of one, although %s: start the ranks with gorun, mpiexec.hydra or srun --mpi=pmi2\n", found)
	}
	return openAlone()
}

func wrap(err error, launcher string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bootstrap from %s: %w", launcher, err)
}

func openAlone() (*World, error) {
	set, err := params.Env()
	if err != nil {
		return nil, err
	}
	w := &World{Size: 1, Nodes: []int{0}, JobID: NewJobID(), Secret: NewSecret(), Launcher: "none", Params: set, KVS: &localKVS{}}
	return w, nil
}

// NewJobID makes the name of a job: 16 hexadecimal digits by chance.
func NewJobID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// NewSecret makes the secret of a job.
func NewSecret() (s [32]byte) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

// openNative returns nil where there is no job card, or where it is somebody
// else's: gorun did not start this process, or started only the one that did,
// or a launcher that passes all its descriptors on.
func openNative(ctx context.Context, getenv func(string) string) (*World, error) {
	fd, err := strconv.Atoi(getenv(EnvJobFD))
	if err != nil {
		return nil, nil
	}
	card, err := readCard(fd)
	if errors.Is(err, errNotCard) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !card.mine(getenv) {
		return nil, nil
	}
	set, err := card.params()
	if err != nil {
		return nil, err
	}
	rank, err := strconv.Atoi(getenv(EnvRank))
	if err != nil || rank < 0 || rank >= card.Size {
		return nil, fmt.Errorf("%s=%q in a job of %d ranks", EnvRank, getenv(EnvRank), card.Size)
	}
	ctl, ok := streamSocket(getenv("PMI_FD"))
	if !ok {
		return nil, fmt.Errorf("PMI_FD=%q is not the control channel", getenv("PMI_FD"))
	}
	w := &World{
		Rank: rank, Size: card.Size,
		AppNum: expand(card.AppNums, card.Size)[rank], Nodes: expand(card.Nodes, card.Size),
		JobID: card.JobID, Secret: [32]byte(card.Secret), Launcher: "gorun", Params: set,
		Cores: card.Cores, Hosts: card.Hosts, BasePort: card.BasePort, Addrs: card.Addrs, Epoch: card.Epoch,
	}
	listen, again := -1, false
	if text := getenv(EnvListenFD); text != "" {
		if listen, again, ok = listenSocket(text); !ok {
			return nil, fmt.Errorf("%s=%q is not a listening socket", EnvListenFD, text)
		}
	}
	if card.Memory != 0 && !memoryFile(card.Memory) {
		return nil, fmt.Errorf("descriptor %d is not the job's memory file", card.Memory)
	}
	if card.News != 0 && !newsSocket(card.News) {
		return nil, fmt.Errorf("descriptor %d is not the channel of the launcher's news", card.News)
	}
	kvs := &pmiClient{conn: &lineConn{fd: ctl}, name: card.KVSName, reason: true}
	if err := kvs.init(ctx); err != nil {
		return nil, err
	}
	switch {
	case card.Memory == 0:
	case kvs.again: // it holds what the program before this one has left
		_ = unix.Close(card.Memory)
	default:
		unix.CloseOnExec(card.Memory)
		w.Memory = os.NewFile(uintptr(card.Memory), memoryName(card.JobID))
	}
	if again { // nobody connects before all listen
		if err := kvs.Fence(ctx); err != nil {
			return nil, err
		}
	}
	if card.News != 0 {
		if w.News, err = newsFile(card.News); err != nil {
			return nil, err
		}
	}
	if listen >= 0 {
		unix.CloseOnExec(listen)
		w.Listener = os.NewFile(uintptr(listen), "listener")
	}
	unix.CloseOnExec(ctl)
	_ = unix.Close(fd) // the card is read
	w.KVS = kvs
	return w, nil
}

// mine says whether the environment is as gorun left it: another launcher
// between it and us has changed it.
func (c *Card) mine(getenv func(string) string) bool {
	for _, name := range []string{"PMI_PORT", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"} {
		if getenv(name) != "" {
			return false // gorun drops them
		}
	}
	return getenv("PMI_FD") == strconv.Itoa(c.Control) && getenv("PMI_SIZE") == strconv.Itoa(c.Size) &&
		getenv("PMI_RANK") == getenv(EnvRank)
}

// openPMI returns nil where no PMI-1 launcher started this process.
func openPMI(ctx context.Context, getenv func(string) string) (*World, error) {
	p := &pmiClient{}
	var rank, size int
	switch fd, ok := streamSocket(getenv("PMI_FD")); {
	case ok && getenv("PMI_PORT") == "": // beside a port, a descriptor is left from a launcher around ours
		var err1, err2 error
		rank, err1 = strconv.Atoi(getenv("PMI_RANK"))
		size, err2 = strconv.Atoi(getenv("PMI_SIZE"))
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("PMI_RANK=%q PMI_SIZE=%q", getenv("PMI_RANK"), getenv("PMI_SIZE"))
		}
		unix.CloseOnExec(fd)
		p.conn = &lineConn{fd: fd}
	case getenv("PMI_PORT") != "":
		var err error
		if p.conn, rank, size, err = dialPMI(ctx, getenv("PMI_PORT"), getenv("PMI_ID")); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	if size < 1 || size > maxSize || rank < 0 || rank >= size {
		p.conn.close()
		return nil, fmt.Errorf("rank %d of %d", rank, size)
	}
	w := &World{Rank: rank, Size: size, Launcher: "pmi", Cores: coresOfHost(getenv), KVS: p}
	if err := w.meet(ctx, p); err != nil {
		return nil, err
	}
	return w, nil
}

// meet learns from the launcher and from the other ranks what PMI_RANK and
// PMI_SIZE do not say.
func (w *World) meet(ctx context.Context, p *pmiClient) (err error) {
	if w.Params, err = params.Env(); err != nil {
		return err
	}
	if err := p.init(ctx); err != nil {
		return err
	}
	if err := p.fetchName(ctx); err != nil {
		return err
	}
	if w.AppNum, err = p.appnum(ctx); err != nil {
		return err
	}
	mapping, err := p.get(ctx, "PMI_process_mapping")
	if err != nil && !errors.Is(err, ErrNoKey) {
		return err
	}
	w.Nodes, err = parseMapping(mapping, w.Size)
	mapped := err == nil // the same in every rank, since all got one text
	if !mapped {
		if err := p.Put(hostName(w.Rank), hostKey()); err != nil {
			return err
		}
	}
	const key = "weft-job"
	if w.Rank == 0 {
		w.JobID, w.Secret = NewJobID(), NewSecret()
		if err := p.Put(key, w.JobID+":"+hex.EncodeToString(w.Secret[:])); err != nil {
			return err
		}
	}
	if err := p.Fence(ctx); err != nil {
		return err
	}
	if w.Rank != 0 {
		text, err := p.get(ctx, key)
		if err != nil {
			return err
		}
		id, secret, _ := strings.Cut(text, ":")
		raw, err := hex.DecodeString(secret)
		if err != nil || len(raw) != len(w.Secret) || id == "" {
			return errors.New("rank 0 published no secret")
		}
		w.JobID, w.Secret = id, [32]byte(raw)
	}
	if !mapped {
		w.Nodes, err = exchangeNodes(ctx, p, w.Rank, w.Size)
	}
	return err
}

// dialPMI connects to PMI_PORT and asks who we are: PMI_ID names us to the
// launcher, which answers with rank and size.
func dialPMI(ctx context.Context, port, id string) (c *lineConn, rank, size int, err error) {
	if _, err := strconv.Atoi(id); err != nil {
		return nil, 0, 0, fmt.Errorf("PMI_PORT=%s but PMI_ID=%q", port, id)
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", port)
	if err != nil {
		return nil, 0, 0, err
	}
	f, err := nc.(*net.TCPConn).File() // a descriptor outside the runtime's poller
	_ = nc.Close()
	if err != nil {
		return nil, 0, 0, err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	_ = f.Close()
	if err != nil {
		return nil, 0, 0, err
	}
	_ = unix.SetNonblock(fd, false)
	c = &lineConn{fd: fd}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.send(wire.NewPMI("initack", "pmiid", id), 0); err != nil {
		return nil, 0, 0, err
	}
	rank, size = -1, -1
	for range 4 { // initack, then size, rank and debug
		m, err := c.recv(ctx)
		if err != nil {
			return nil, 0, 0, err
		}
		if m.Cmd != "initack" && m.Cmd != "set" {
			return nil, 0, 0, fmt.Errorf("the launcher answered %q to initack", m.Cmd)
		}
		for key, to := range map[string]*int{"rank": &rank, "size": &size} {
			if text, ok := m.Get(key); ok && m.Cmd == "set" {
				if *to, err = strconv.Atoi(text); err != nil {
					return nil, 0, 0, fmt.Errorf("the launcher says %s=%q", key, text)
				}
			}
		}
	}
	return c, rank, size, nil
}

// streamSocket checks that a variable names a connected stream socket.
func streamSocket(text string) (fd int, ok bool) {
	fd, listening, ok := socket(text)
	if !ok || listening {
		return -1, false
	}
	_, err := unix.Getpeername(fd)
	return fd, err == nil
}

// listenBacklog is for the ranks that connect before this one accepts.
const listenBacklog = 1024

// listenSocket checks that a variable names a listening stream socket. A
// program that ran before this one in the same rank, as a shell may have them,
// has shut it down: then it still has its port, and listens again.
func listenSocket(text string) (fd int, again, ok bool) {
	fd, listening, ok := socket(text)
	if !ok || listening {
		return fd, false, ok
	}
	port := 0
	switch sa, _ := unix.Getsockname(fd); sa := sa.(type) {
	case *unix.SockaddrInet4:
		port = sa.Port
	case *unix.SockaddrInet6:
		port = sa.Port
	}
	return fd, true, port != 0 && unix.Listen(fd, listenBacklog) == nil
}

func socket(text string) (fd int, listening, ok bool) {
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 0 {
		return -1, false, false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return -1, false, false
	}
	accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return fd, accepts != 0, err == nil
}

// foreign names what says that this process is one of several; "" if nothing.
func foreign(getenv func(string) string) string {
	for _, v := range []struct{ size, rank string }{
		{"OMPI_COMM_WORLD_SIZE", ""},
		{"PMI_SIZE", "PMI_RANK"},
		{"MV2_COMM_WORLD_SIZE", ""},
		{"SLURM_NTASKS", "SLURM_PROCID"},
	} {
		n, err := strconv.Atoi(getenv(v.size))
		if err == nil && n > 1 && (v.rank == "" || getenv(v.rank) != "") {
			return v.size + "=" + strconv.Itoa(n) + " is set"
		}
	}
	for _, name := range []string{EnvRank, "PMI_FD", "PMIX_RANK"} {
		if v := getenv(name); v != "" {
			return fmt.Sprintf("%s=%q is set", name, v)
		}
	}
	return ""
}
