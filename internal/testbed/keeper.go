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

// keeperEnv makes a binary with this package the keeper, before its main begins.
const keeperEnv = "WEFT_TESTBED_KEEPER"

// What a keeper is asked for, a request and then its reply, in JSON.
const (
	opUp    = "up"    // N hosts at least
	opSlurm = "slurm" // over the hosts
	opJobs  = "jobs"  // of Slurm end
)

type request struct {
	Op string
	N  int
}

type reply struct {
	Error string
	Info  info
}

// info is what the keeper tells of the cluster.
type info struct {
	Keeper    int // its process
	ID        int
	Mark      string // what processes in its hosts are told by, from their mounts
	Dir       string
	Address   string
	Hosts     []hostInfo
	SlurmConf string
}

// replyTimeout bounds a request; starting Slurm takes the longest. endTimeout
// bounds the removal of all.
const (
	replyTimeout = slurmTimeout + 30*time.Second
	endTimeout   = 30 * time.Second
)

// keeper is the process that keeps a cluster, as the test sees it.
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
		if v, ok := os.LookupEnv(name); ok { // and nothing that a test set
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stderr = requestsRead, os.Stderr
	cmd.ExtraFiles = []*os.File{repliesWrite}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends the test's group is not for the keeper
	if err := cmd.Start(); err != nil {
		_ = requests.Close()
		_ = replies.Close()
		return nil, err
	}
	return &keeper{cmd: cmd, requests: requests, replies: replies, decoder: json.NewDecoder(replies)}, nil
}

// errKeeper says that there will be no more replies.
var errKeeper = errors.New("the keeper of the hosts is gone")

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

// end waits until the keeper has removed everything, and does so itself where the
// keeper did not live to do it.
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
		err = errors.Join(err, sweep())
	}
	return fmt.Errorf("removing the hosts: %w", err)
}

func init() {
	if os.Getenv(keeperEnv) != "" {
		_ = os.Unsetenv(keeperEnv)
		os.Exit(keep(os.Stdin, os.NewFile(3, "replies")))
	}
}

// keep is the keeper: it serves requests until there will be none and removes
// what it made.
func keep(requests io.Reader, replies io.Writer) int {
	syscall.CloseOnExec(3)
	syscall.Umask(0o022) // whatever the test's
	// Not ignored, which children would inherit: a reply that nobody reads, or an
	// error that nobody sees, is no reason to leave everything as it is.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer end()

	next := make(chan request)
	go func() { // ends with the pipe, or the process
		defer end() // also what is being done: nobody waits for it any more
		for d := json.NewDecoder(requests); ; {
			var r request
			if d.Decode(&r) != nil {
				return
			}
			next <- r
		}
	}()
	var b bed
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case r := <-next:
			var re reply
			if err := b.serve(ctx, r); err != nil {
				re.Error = err.Error()
			}
			re.Info = b.info
			re.Info.Keeper = os.Getpid()
			_ = json.NewEncoder(replies).Encode(re)
		}
	}
	if err := b.down(); err != nil {
		fmt.Fprintln(os.Stderr, "testbed:", err)
		return 1
	}
	return 0
}

func (b *bed) serve(ctx context.Context, r request) error {
	switch r.Op {
	case opUp:
		return b.up(ctx, r.N)
	case opSlurm:
		return b.slurm(ctx)
	case opJobs:
		return b.endJobs(ctx)
	}
	return fmt.Errorf("no request %q", r.Op)
}
