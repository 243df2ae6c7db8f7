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
	// Command is the ssh command and its first arguments; nil: ssh. The user's own configuration of
	// ssh applies, except that ssh asks no questions and forwards neither ports nor X11.
	Command []string
	// Agent is the path of gorun on the hosts; "~/" at its beginning is the user's home. The program
	// at this path may be another executable, for example for another architecture, but must have the
	// same Version. "": ssh runs a copy of Executable if one exists on the host: at the path that
	// Executable has here, in PATH, or in the user's cache. Otherwise Executable is copied to the
	// cache.
	Agent string
	// Timeout is how long a host may be silent while it is being connected; 0: 10 seconds.
	Timeout time.Duration
	// Log gets lines about each step, and the lines that ssh and the agents write to stderr. Each
	// line begins with the host. nil: no log. Several goroutines may call it at the same time.
	Log func(line string)
	// Executable is the program that runs as agent on the hosts if Agent is ""; the zero Executable:
	// this program.
	Executable Executable
}

// Open starts the agent on a host and returns when it has read the agent's greeting. If ctx ends
// before that, Open fails. If ctx ends later, the stream continues. The error begins with the
// host's name, and contains ssh's own message if there is one.
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

// argv returns the command line of the ssh that starts the agent on host h.
func (s *SSH) argv(h hosts.Host, exe Executable) ([]string, error) {
	if h.Name == "" || h.Name[0] == '-' || strings.ContainsAny(h.Name, " \t\r\n\x00/@") {
		return nil, fmt.Errorf("expected a host's name, found %q", h.Name)
	}
	argv := []string{"ssh"}
	if len(s.Command) > 0 {
		argv = append([]string(nil), s.Command...)
	}
	// A little less than Timeout, so that ssh gives up first: its own message says more.
	limit := max(1, int((s.timeout()-time.Second/2)/time.Second))
	argv = append(argv, "-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout="+strconv.Itoa(limit),
		// Without this, every connection would try to listen on the ports that the user's
		// configuration forwards.
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

// sshEnv returns env, changed so that ssh does not ask for a password in a window.
func sshEnv(env []string) []string {
	var kept []string
	for _, v := range env {
		if !strings.HasPrefix(v, "SSH_ASKPASS") {
			kept = append(kept, v)
		}
	}
	return append(kept, "SSH_ASKPASS_REQUIRE=never")
}

// greeter talks with the script on the host (see script) until the agent's greeting comes.
type greeter struct {
	ctx     context.Context
	child   *child
	exe     Executable
	timeout time.Duration
	log     func(line string)
	lines   opening

	// mu guards cancelled and the deadlines of the child's stdin and stdout: after the end of ctx,
	// extend must not replace the deadline that cancel has set.
	mu        sync.Mutex
	cancelled bool          // ctx has ended
	waited    time.Duration // the last argument of extend: how long the host may be silent, for the error
}

// sendTimeout is how long a host may be silent while gorun is copied to it, if SSH.Timeout is less.
// The copy takes longer than an answer, because buffers on the way may still hold much of gorun
// after this side has written all of it.
const sendTimeout = 30 * time.Second

// run waits for the greeting and returns it.
func (g *greeter) run() (Greeting, error) {
	stop := context.AfterFunc(g.ctx, g.cancel)
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

// cancel runs when ctx ends. It makes all reads from the child and writes to the child fail.
func (g *greeter) cancel() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancelled = true
	_ = g.child.out.SetReadDeadline(time.Unix(1, 0))
	_ = g.child.in.SetWriteDeadline(time.Unix(1, 0))
}

// extend sets the deadline for the next bytes from the host to d from now.
func (g *greeter) extend(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.cancelled {
		g.waited = d
		_ = g.child.out.SetReadDeadline(time.Now().Add(d))
	}
}

// failure is the reason why no agent can run on the host, as the script or this side has found out.
type failure string

func (f failure) Error() string { return string(f) }

// read reads lines up to the greeting. If the script asks for gorun, read sends it.
func (g *greeter) read() (_ Greeting, err error) {
	g.extend(g.timeout)
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
				return Greeting{}, failure(fmt.Sprintf("the host is %s, but this gorun is for %s: install a gorun of the same release there, and give its path by -agent-path", oneLine(system), thisMachine()))
			}
			g.log(fmt.Sprintf("sending gorun, %d KiB, to %s", g.exe.Size>>10, oneLine(dir)))
			g.extend(max(g.timeout, sendTimeout))
			// The goroutine ends when everything is written, or after stopSending or an error. read
			// waits for it.
			sending.Go(func() error {
				err := g.send()
				if err != nil {
					_ = g.child.in.Close() // then the script reports that the copy broke off
				}
				return err
			})
		default:
			return Greeting{}, fmt.Errorf("%w: %s", errNoGreeting, oneLine(verb+" "+text))
		}
	}
}

// stopSending ends [greeter.send] and returns its error. It returns nil if send has failed because
// it was stopped, or because the host has closed the stream.
func (g *greeter) stopSending(sending *errgroup.Group) error {
	_ = g.child.in.SetWriteDeadline(time.Unix(1, 0))
	err := sending.Wait()
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// send writes the executable to the host.
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
		g.extend(max(g.timeout, sendTimeout))
	}
	return nil
}

// cutWords cuts s after its n-th word. If s has no more than n words, ok is false and head is s.
func cutWords(s string, n int) (head, rest string, ok bool) {
	words := strings.SplitN(s, " ", n+1)
	if len(words) <= n {
		return s, "", false
	}
	return strings.Join(words[:n], " "), words[n], true
}

// explain returns the error for the user if no greeting came from the host. err is the error of
// [greeter.read].
func (g *greeter) explain(err error) error {
	var failed failure
	if errors.As(err, &failed) {
		return failed
	}
	noise := ""
	if g.lines.noise != "" {
		noise = fmt.Sprintf("; what came instead begins with %q", g.lines.noise)
	}
	reason := g.child.stderr.reason()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && reason != "":
		return fmt.Errorf("did not answer within %s: %s%s", g.waited, reason, noise)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("did not answer within %s%s", g.waited, noise)
	case !errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w%s", err, noise)
	}
	if cause := g.child.cause(); cause != nil {
		return fmt.Errorf("%w%s", cause, noise)
	}
	return fmt.Errorf("%s ended without a greeting of an agent%s", g.child.name, noise)
}
