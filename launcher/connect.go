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

// connector gives gorun its connections with the agents on other hosts. Either it starts the agents
// by ssh, or the agents connect with gorun. Exactly one of the fields ssh and dialIn is set. A nil
// connector is valid and connects with no host.
type connector struct {
	ssh    *remote.SSH
	dialIn *dialIn

	timeout time.Duration // with dialIn: how long gorun waits for an agent to connect
}

// newSSH returns a connector that starts agents by the ssh command of the job. It returns an error
// if it cannot split that command into words.
func newSSH(r *run) (*connector, error) {
	words, err := job.Words(r.job.SSH)
	if err != nil {
		return nil, err
	}
	s := &remote.SSH{Command: words, Agent: r.job.AgentPath, Timeout: r.job.ConnectTimeout}
	if r.job.Verbose {
		s.Log = r.printLine
	}
	return &connector{ssh: s}, nil
}

// command returns the ssh command, by which agents start the agents that are their children in the
// tree. It returns nil if agents are not started by ssh.
func (c *connector) command() []string {
	if c == nil || c.ssh == nil {
		return nil
	}
	return c.ssh.Command
}

// open returns the function by which the tree of agents opens a connection with a host. The end of
// ctx ends attempts to connect. It does not end connections.
func (c *connector) open(ctx context.Context) tree.Open {
	return func(octx context.Context, h hosts.Host) (tree.Stream, error) {
		octx, cancel := context.WithCancel(octx)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		switch {
		case c == nil:
			return nil, errors.New("there is no way to connect with it")
		case c.dialIn != nil:
			octx, cancel := context.WithTimeout(octx, c.timeout)
			defer cancel()
			return c.dialIn.take(octx, h.Name)
		}
		return openSSH(octx, c.ssh, h)
	}
}

// openSSH starts an agent on a host by ssh and returns the connection with it.
func openSSH(ctx context.Context, s *remote.SSH, h hosts.Host) (tree.Stream, error) {
	conn, err := s.Open(ctx, h)
	if err != nil {
		return nil, err // not conn, because a Stream that holds a nil *remote.Conn is not nil
	}
	return conn, nil
}

// close closes the connections of dialIn that the tree has not taken, and stops listening for more.
func (c *connector) close() {
	if c != nil && c.dialIn != nil {
		c.dialIn.close()
	}
}

// self returns what this process, which is gorun or an agent, reports about itself and its host.
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
	// sshd sets SSH_CONNECTION to "CLIENT CLIENTPORT SERVER SERVERPORT": two addresses with ports.
	// In an agent that was started by ssh, CLIENT is the address of its parent in the tree of
	// agents.
	if f := strings.Fields(os.Getenv("SSH_CONNECTION")); len(f) == 4 {
		a.Reached, a.Parent = f[2], f[0]
	}
	return a
}
