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

// The requests to a keeper. A request and its reply are in JSON.
const (
	opUp    = "up"    // make hosts until there are N
	opSlurm = "slurm" // start Slurm over the hosts
	opJobs  = "jobs"  // end all jobs of Slurm
)

type request struct {
	Op string
	N  int
}

type reply struct {
	Error string
	Info  info
}

// info describes the cluster in the keeper's replies.
type info struct {
	Keeper    int // process id of the keeper
	ID        int
	Mark      string // source of the mounts of the hosts, by which marked finds their processes
	Dir       string
	Address   string
	Hosts     []hostInfo
	SlurmConf string
}

// replyTimeout bounds a request; the start of Slurm takes longest. endTimeout bounds the removal
// of the cluster.
const (
	replyTimeout = slurmTimeout + 30*time.Second
	endTimeout   = 30 * time.Second
)

// keeper is the test's connection to the keeper process.
type keeper struct {
	cmd      *exec.Cmd
	requests *os.File
	replies  *os.File
	decoder  *json.Decoder
}

func startKeeper() (*keeper, error) {
	requestsRead, requests, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer requestsRead.Close() //nolint:errcheck // the keeper's
	replies, repliesWrite, err := os.Pipe()
	if err != nil {
		_ = requests.Close()
		return nil, err
	}
	defer repliesWrite.Close() //nolint:errcheck // the keeper's
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"weft-testbed"}
	cmd.Env = []string{keeperEnv + "=1"}
	for _, name := range []string{"PATH", "HOME", "XDG_CACHE_HOME", "LANG"} {
		if v, ok := os.LookupEnv(name); ok { // no other variables, because a test may have set them
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stderr = requestsRead, os.Stderr
	cmd.ExtraFiles = []*os.File{repliesWrite}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to the test's process group must not reach the keeper
	if err := cmd.Start(); err != nil {
		_ = requests.Close()
		_ = replies.Close()
		return nil, err
	}
	return &keeper{cmd: cmd, requests: requests, replies: replies, decoder: json.NewDecoder(replies)}, nil
}

// errKeeper reports that the keeper sends no more replies.
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

// end waits until the keeper has removed everything. If the keeper was killed before, end removes
// everything itself.
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

// keep is the main function of the keeper: it serves requests until their pipe is closed, and then
// removes everything that it has made.
func keep(requests io.Reader, replies io.Writer) int {
	syscall.CloseOnExec(3)
	syscall.Umask(0o022) // regardless of the test's umask
	// If the test has ended, SIGPIPE must not kill the keeper before it has removed everything.
	// Children would inherit an ignored signal, but not a caught one.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer end()

	next := make(chan request)
	go func() { // ends with the pipe, or the process
		defer end() // cancels the current request: the test has ended
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
