package launcher

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/remote"
	"github.com/weft-hpc/weft/launcher/internal/tree"
	"github.com/weft-hpc/weft/launcher/job"
)

// reach is how other hosts are reached. A nil reach reaches none.
type reach struct {
	ssh    *remote.SSH
	dialIn *dialIn

	patience time.Duration // for an agent to dial in
}

func newSSH(r *run) (*reach, error) {
	words, err := job.Words(r.job.SSH)
	if err != nil {
		return nil, err
	}
	s := &remote.SSH{Command: words, Agent: r.job.AgentPath, Timeout: r.job.ConnectTimeout}
	if r.job.Verbose {
		s.Log = r.tell
	}
	return &reach{ssh: s}, nil
}

// command is ssh, for agents that have children.
func (c *reach) command() []string {
	if c == nil || c.ssh == nil {
		return nil
	}
	return c.ssh.Command
}

// open is how the tree gets a stream to a host.
func (c *reach) open(ctx context.Context) tree.Open {
	return func(octx context.Context, h hosts.Host) (tree.Stream, error) {
		octx, cancel := context.WithCancel(octx)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		switch {
		case c == nil:
			return nil, errors.New("is not to be reached")
		case c.dialIn != nil:
			octx, cancel := context.WithTimeout(octx, c.patience)
			defer cancel()
			return c.dialIn.take(octx, h.Name)
		}
		return openSSH(octx, c.ssh, h)
	}
}

func openSSH(ctx context.Context, s *remote.SSH, h hosts.Host) (tree.Stream, error) {
	conn, err := s.Open(ctx, h)
	if err != nil {
		return nil, err // and not an interface with a nil in it
	}
	return conn, nil
}

func (c *reach) close() {
	if c != nil && c.dialIn != nil {
		c.dialIn.close()
	}
}

// self is what this process says of its host.
func self(hostname string) proto.Agent {
	a := proto.Agent{Hostname: hostname, PID: os.Getpid(), Topology: place.Here()}
	ifs, err := net.Interfaces()
	if err != nil {
		return a
	}
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, addr := range addrs {
			a.Addrs = append(a.Addrs, proto.Address{Interface: i.Name, Prefix: addr.String()})
		}
	}
	// CLIENT CLIENTPORT SERVER SERVERPORT, as sshd says it.
	if f := strings.Fields(os.Getenv("SSH_CONNECTION")); len(f) == 4 {
		a.Reached, a.Parent = f[2], f[0]
	}
	return a
}
