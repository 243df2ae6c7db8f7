package bootstrap

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/wire"
	"golang.org/x/sys/unix"
)

// envSpawned is the variable by which launchers with PMI-1 tell a process that a rank has spawned it.
const envSpawned = "PMI_SPAWNED"

// hasPMI reports whether this process has inherited the PMI-1 socket of a launcher.
func hasPMI(getenv func(string) string) bool {
	_, ok := streamSocket(getenv("PMI_FD"))
	// If PMI_PORT is set, the launcher that started this process uses it, and PMI_FD was inherited
	// from another launcher, which started that one.
	return ok && getenv("PMI_PORT") == ""
}

// openPMI opens the World of a rank of a PMI-1 launcher. It returns nil if no PMI-1 launcher
// started this process.
func openPMI(ctx context.Context, getenv func(string) string) (*World, error) {
	p := &pmiClient{}
	var rank, size int
	switch {
	case hasPMI(getenv):
		var err1, err2 error
		rank, err1 = strconv.Atoi(getenv("PMI_RANK"))
		size, err2 = strconv.Atoi(getenv("PMI_SIZE"))
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("PMI_RANK=%q PMI_SIZE=%q", getenv("PMI_RANK"), getenv("PMI_SIZE"))
		}
		fd, _ := strconv.Atoi(getenv("PMI_FD"))
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
	w := &World{Rank: rank, Size: size, Launcher: "pmi", Cores: coresOfHost(getenv), Spawned: getenv(envSpawned) == "1", KVS: p}
	if err := w.exchange(ctx, p, getenv); err != nil {
		return nil, err
	}
	return w, nil
}

// exchange fills in what PMI_RANK and PMI_SIZE do not provide: the parameters from the environment,
// the program number and the hosts from the launcher or the other ranks, and the job id and secret
// from rank 0.
func (w *World) exchange(ctx context.Context, p *pmiClient, getenv func(string) string) (err error) {
	if w.Params, err = paramsOf(getenv); err != nil {
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
	w.HostOf, err = parseMapping(mapping, w.Size)
	mapped := err == nil // the same in every rank, because all got the same text
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
		w.HostOf, err = exchangeNodes(ctx, p, w.Rank, w.Size)
	}
	return err
}

// dialPMI connects to PMI_PORT. It sends PMI_ID, which identifies this process to the launcher,
// and returns the rank and size of the launcher's answer.
func dialPMI(ctx context.Context, port, id string) (c *lineConn, rank, size int, err error) {
	if _, err := strconv.Atoi(id); err != nil {
		return nil, 0, 0, fmt.Errorf("PMI_PORT=%s but PMI_ID=%q", port, id)
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", port)
	if err != nil {
		return nil, 0, 0, err
	}
	f, err := nc.(*net.TCPConn).File() // a descriptor that the runtime's poller does not use
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
	for range 4 { // the launcher sends four lines: initack, and the values of size, rank and debug
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
