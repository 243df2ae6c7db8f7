//go:build linux

package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// keeperEnv is the environment variable that makes a binary with this package run as the keeper
// instead of its main function.
const keeperEnv = "WEFT_TESTBED_KEEPER"

// The values of request.Op. A request to the keeper and its reply are in JSON.
const (
	opUp    = "up"    // make hosts until there are N
	opSlurm = "slurm" // start Slurm over the hosts
	opJobs  = "jobs"  // end all jobs of Slurm
)

type request struct {
	Op string
	N  int // for opUp: number of hosts
}

type reply struct {
	Error string // "": the request has succeeded
	Info  info
}

// info describes the cluster in the keeper's replies.
type info struct {
	Keeper    int    // process id of the keeper
	ID        int    // number of the cluster
	Mark      string // source of the hosts' tmpfs mounts; the function marked finds the hosts' processes by it
	Dir       string // the cluster's directory
	Address   string // address of this machine in the cluster's network
	Hosts     []hostInfo
	SlurmConf string // path of slurm.conf; "": Slurm does not run
}

const (
	// replyTimeout is how long [keeper.ask] waits for a reply. The start of Slurm takes longest.
	replyTimeout = slurmTimeout + 30*time.Second
	// endTimeout is how long the keeper may take to remove the cluster before [keeper.end] kills
	// the keeper.
	endTimeout = 30 * time.Second
)

// keeper is the test's connection to the keeper process.
type keeper struct {
	cmd      *exec.Cmd
	requests *os.File      // write end of the pipe that is the keeper's stdin
	replies  *os.File      // read end of the pipe of replies
	decoder  *json.Decoder // of replies
}

func startKeeper() (*keeper, error) {
	requestsRead, requests, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer requestsRead.Close() //nolint:errcheck // the keeper has its own descriptor
	replies, repliesWrite, err := os.Pipe()
	if err != nil {
		_ = requests.Close()
		return nil, err
	}
	defer repliesWrite.Close() //nolint:errcheck // the keeper has its own descriptor
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"weft-testbed"}
	cmd.Env = []string{keeperEnv + "=1"}
	for _, name := range []string{"PATH", "HOME", "XDG_CACHE_HOME", "LANG"} {
		if v, ok := os.LookupEnv(name); ok { // not other variables: a test may have changed them
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stderr = requestsRead, os.Stderr
	cmd.ExtraFiles = []*os.File{repliesWrite}
	// A signal to the test's process group must not reach the keeper.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = requests.Close()
		_ = replies.Close()
		return nil, err
	}
	return &keeper{cmd: cmd, requests: requests, replies: replies, decoder: json.NewDecoder(replies)}, nil
}

// errKeeper is the error of [keeper.ask] if the keeper has ended or does not reply in time.
var errKeeper = errors.New("the process that keeps the hosts has ended or does not reply")

// ask sends a request and waits for the reply.
func (k *keeper) ask(r request) (info, error) {
	if err := json.NewEncoder(k.requests).Encode(r); err != nil {
		return info{}, fmt.Errorf("%w: %w", errKeeper, err)
	}
	if err := k.replies.SetReadDeadline(time.Now().Add(replyTimeout)); err != nil {
		return info{}, fmt.Errorf("%w: %w", errKeeper, err)
	}
	var re reply
	if err := k.decoder.Decode(&re); err != nil {
		return info{}, fmt.Errorf("%w: %w", errKeeper, err)
	}
	if re.Error != "" {
		return info{}, errors.New(re.Error)
	}
	return re.Info, nil
}

// end makes the keeper remove everything and waits for its end. If the keeper was killed before, or
// takes longer than endTimeout and end kills it, end removes everything itself and returns an
// error.
func (k *keeper) end() error {
	_ = k.requests.Close()
	_ = k.replies.Close()
	timer := time.AfterFunc(endTimeout, func() { _ = k.cmd.Process.Kill() })
	defer timer.Stop()
	err := k.cmd.Wait()
	if err == nil {
		return nil
	}
	if !k.cmd.ProcessState.Exited() {
		err = errors.Join(err, removeLeftovers())
	}
	return fmt.Errorf("remove the hosts: %w", err)
}

func init() {
	if os.Getenv(keeperEnv) != "" {
		_ = os.Unsetenv(keeperEnv)
		os.Exit(keep(os.Stdin, os.NewFile(3, "replies")))
	}
}

// keep is the main function of the keeper: it serves requests until their pipe is closed or the
// keeper gets SIGTERM, SIGINT or SIGHUP, and then removes everything that it has made. It returns
// the exit code.
func keep(requests io.Reader, replies io.Writer) int {
	syscall.CloseOnExec(3)
	syscall.Umask(0o022) // regardless of the test's umask
	// If the test has ended, a write to the pipe of replies causes SIGPIPE. It must not kill the
	// keeper before the keeper has removed everything. The keeper catches the signal and does not
	// ignore it, because its children would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer end()

	next := make(chan request)
	go func() { // ends when the pipe is closed, or when the keeper ends
		defer end() // the test has ended or no longer needs the hosts: cancel the current request
		for d := json.NewDecoder(requests); ; {
			var r request
			if d.Decode(&r) != nil {
				return
			}
			next <- r
		}
	}()
	var c cluster
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case r := <-next:
			var re reply
			if err := c.serve(ctx, r); err != nil {
				re.Error = err.Error()
			}
			re.Info = c.info
			re.Info.Keeper = os.Getpid()
			_ = json.NewEncoder(replies).Encode(re)
		}
	}
	if err := c.down(); err != nil {
		fmt.Fprintln(os.Stderr, "testbed:", err)
		return 1
	}
	return 0
}

func (c *cluster) serve(ctx context.Context, r request) error {
	switch r.Op {
	case opUp:
		return c.up(ctx, r.N)
	case opSlurm:
		return c.slurm(ctx)
	case opJobs:
		return c.endJobs(ctx)
	}
	return fmt.Errorf("unknown request %q", r.Op)
}
