package remote

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"golang.org/x/sync/errgroup"
)

// SSH starts agents on hosts by ssh.
type SSH struct {
	// Command is ssh and its first arguments; nil: ssh. What the user's own
	// configuration says holds, but for what would wait for a person to answer.
	Command []string
	// Agent is the path of gorun on the hosts, where "~/" stands for the user's home.
	// It need not be the same executable as this one, as on another architecture, but
	// must speak the same Version. "": the one that is this one's copy is found, or
	// sent: at the path that it has here, in PATH, in the user's cache.
	Agent string
	// Timeout is how long a host may say nothing; 0: 10 seconds.
	Timeout time.Duration
	// Log is told what is done, and what ssh and the agents write to stderr, a line at
	// a time that begins with the host; nil: nobody is. It may be called by several
	// goroutines at the same time.
	Log func(line string)
	// Executable is what is looked for, and sent; the zero Executable: this program.
	Executable Executable
}

// Open starts the agent on a host and returns when it has greeted. ctx bounds that
// alone. The error begins with the host's name and has ssh's own words.
func (s *SSH) Open(ctx context.Context, h hosts.Host) (*Conn, error) {
	conn, err := s.open(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return conn, nil
}

func (s *SSH) open(ctx context.Context, h hosts.Host) (*Conn, error) {
	exe := s.Executable
	if exe.Path == "" {
		var err error
		if exe, err = Self(); err != nil {
			return nil, err
		}
	}
	argv, err := s.argv(h, exe)
	if err != nil {
		return nil, err
	}
	log := func(string) {}
	if s.Log != nil {
		log = func(line string) { s.Log(h.Name + ": " + line) }
	}
	c, err := start(argv, sshEnv(os.Environ()), log)
	if err != nil {
		return nil, err
	}
	g := &greeter{ctx: ctx, child: c, exe: exe, timeout: s.timeout(), log: log, lines: opening{r: bufio.NewReader(c.out)}}
	peer, err := g.run()
	if err == nil && s.Agent == "" && peer.Hash != exe.Hash {
		err = fmt.Errorf("the agent is not this gorun, but the one whose hash is %s", peer.Hash)
	}
	if err != nil {
		_ = c.end()
		return nil, err
	}
	log(fmt.Sprintf("the agent is process %d of %s", peer.PID, peer.Hostname))
	return &Conn{host: h.Name, peer: peer, r: g.lines.r, w: c.in, end: c.end, cause: func() error {
		if err := c.cause(); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		return nil
	}}, nil
}

func (s *SSH) timeout() time.Duration {
	if s.Timeout <= 0 {
		return defaultTimeout
	}
	return s.Timeout
}

// argv is the command line of ssh.
func (s *SSH) argv(h hosts.Host, exe Executable) ([]string, error) {
	if h.Name == "" || h.Name[0] == '-' || strings.ContainsAny(h.Name, " \t\r\n\x00/@") {
		return nil, fmt.Errorf("expected a host's name, found %q", h.Name)
	}
	argv := []string{"ssh"}
	if len(s.Command) > 0 {
		argv = append([]string(nil), s.Command...)
	}
	// A little less than Timeout, so that it is ssh that tells what it waited for.
	limit := max(1, int((s.timeout()-time.Second/2)/time.Second))
	argv = append(argv, "-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout="+strconv.Itoa(limit),
		// Or every connection would want to listen on the same ports.
		"-o", "ClearAllForwardings=yes")
	if h.Port != 0 {
		argv = append(argv, "-p", strconv.Itoa(h.Port))
	}
	if h.User != "" {
		if err := hosts.CheckUser(h.User); err != nil {
			return nil, err
		}
		argv = append(argv, "-l", h.User)
	}
	for _, path := range []string{exe.Path, s.Agent} {
		if strings.ContainsAny(path, "\r\n\x00") {
			return nil, fmt.Errorf("expected a path without line ends, found %q", path)
		}
	}
	return append(argv, "--", h.Name, command(exe, rand.Text(), s.Agent)), nil
}

// sshEnv is the environment of an ssh that has nobody to ask.
func sshEnv(env []string) []string {
	var kept []string
	for _, v := range env {
		if !strings.HasPrefix(v, "SSH_ASKPASS") {
			kept = append(kept, v)
		}
	}
	return append(kept, "SSH_ASKPASS_REQUIRE=never")
}

// greeter brings a stream to where the agent has greeted.
type greeter struct {
	ctx     context.Context
	child   *child
	exe     Executable
	timeout time.Duration
	log     func(line string)
	lines   opening

	// mu guards the order in which deadlines are set: none after the end of ctx.
	mu     sync.Mutex
	over   bool
	waited time.Duration // what the deadline was set to last
}

// sendTimeout is how long nothing need go on while gorun is sent: much of it may
// stand in buffers on the way.
const sendTimeout = 30 * time.Second

func (g *greeter) run() (Greeting, error) {
	stop := context.AfterFunc(g.ctx, g.giveUp)
	peer, err := g.read()
	if !stop() {
		return Greeting{}, context.Cause(g.ctx)
	}
	if err != nil {
		return Greeting{}, g.explain(err)
	}
	_ = g.child.in.SetWriteDeadline(time.Time{})
	return peer, g.child.out.SetReadDeadline(time.Time{})
}

// giveUp ends what waits.
func (g *greeter) giveUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	_ = g.child.out.SetReadDeadline(time.Unix(1, 0))
	_ = g.child.in.SetWriteDeadline(time.Unix(1, 0))
}

// patient allows for d of silence from now on.
func (g *greeter) patient(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.waited = d
		_ = g.child.out.SetReadDeadline(time.Now().Add(d))
	}
}

// failure is what the script gave up for.
type failure string

func (f failure) Error() string { return string(f) }

func (g *greeter) read() (_ Greeting, err error) {
	g.patient(g.timeout)
	var sending errgroup.Group
	asked := false
	defer func() {
		if err != nil {
			_ = g.stopSending(&sending)
		}
	}()
	for {
		verb, text, err := g.lines.next()
		switch {
		case err != nil:
			return Greeting{}, err
		case verb == verbUp:
			if err := sending.Wait(); err != nil {
				return Greeting{}, err
			}
			return parseGreeting(text)
		case verb == verbFail:
			if err := g.stopSending(&sending); err != nil {
				return Greeting{}, err
			}
			return Greeting{}, failure(oneLine(text))
		case verb == verbSend && !asked:
			asked = true
			system, dir, _ := cutWords(text, 2)
			if !fitsMachine(system) {
				return Greeting{}, failure(fmt.Sprintf("the host is %s and gorun is made for %s: put a gorun of the same release there, and configure its path as the agent's", oneLine(system), thisMachine()))
			}
			g.log(fmt.Sprintf("sending gorun, %d KiB, to %s", g.exe.Size>>10, oneLine(dir)))
			g.patient(max(g.timeout, sendTimeout))
			sending.Go(func() error { // ends when all is written, or by stopSending, which waits
				err := g.send()
				if err != nil {
					_ = g.child.in.Close() // the script says then that the copy broke off
				}
				return err
			})
		default:
			return Greeting{}, fmt.Errorf("%w: %s", errNoGreeting, oneLine(verb+" "+text))
		}
	}
}

// stopSending ends send and returns what it failed for, unless it was stopped, by
// the host too.
func (g *greeter) stopSending(sending *errgroup.Group) error {
	_ = g.child.in.SetWriteDeadline(time.Unix(1, 0))
	err := sending.Wait()
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// send writes the executable.
func (g *greeter) send() error {
	f, err := os.Open(g.exe.file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	left := g.exe.Size
	for left > 0 {
		n, err := io.CopyN(g.child.in, f, min(left, 64<<10))
		left -= n
		if err != nil {
			return fmt.Errorf("sending gorun: %w", err)
		}
		g.patient(max(g.timeout, sendTimeout))
	}
	return nil
}

// cutWords cuts s behind its n-th word.
func cutWords(s string, n int) (head, rest string, ok bool) {
	words := strings.SplitN(s, " ", n+1)
	if len(words) <= n {
		return s, "", false
	}
	return strings.Join(words[:n], " "), words[n], true
}

// explain says why there is no agent.
func (g *greeter) explain(err error) error {
	var gaveUp failure
	if errors.As(err, &gaveUp) {
		return gaveUp
	}
	said := ""
	if g.lines.noise != "" {
		said = fmt.Sprintf("; what came instead begins with %q", g.lines.noise)
	}
	words := g.child.errs.words()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && words != "":
		return fmt.Errorf("did not answer within %s: %s%s", g.waited, words, said)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("did not answer within %s%s", g.waited, said)
	case !errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w%s", err, said)
	}
	if cause := g.child.cause(); cause != nil {
		return fmt.Errorf("%w%s", cause, said)
	}
	return fmt.Errorf("%s ended without a greeting of an agent%s", g.child.name, said)
}
