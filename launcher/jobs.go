package launcher

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/live"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Questions of other processes to a gorun that runs a job
//
// gorun -stacks JOB asks the gorun that runs the job JOB what its ranks do. gorun -top JOB asks it
// again and again what they have done. gorun -ps asks each gorun of this host about its job. gorun
// -stop JOB asks a gorun to end its job. Both are on the same host. Each gorun that runs a job listens on a Unix socket whose name ends with the pid of this
// gorun. Each side checks the user of the other side: see mayAsk and mayAnswer.
//
//	gorun -stacks JOB ── jobQuestion ──► gorun that runs the job     one line of JSON each
//	                  ◄── jobAnswer ────

// jobQuestion is a question about a job.
type jobQuestion struct {
	// Job is the id of the job, or the pid of the gorun that runs it. With aboutState it may be "",
	// for the job of every gorun.
	Job string `json:"job"`
	// About is what the question is about.
	About string `json:"about,omitempty"`
	// Dir is the absolute path of the directory to which gorun writes the ranks' stacks. If it is
	// "", gorun writes no stacks.
	Dir string `json:"dir,omitempty"`
}

// What a question is about.
const (
	aboutRanks   = ""        // what the ranks do
	aboutState   = "state"   // the state of the job
	aboutFigures = "figures" // what the ranks have done so far
	aboutEnd     = "end"     // the job must end, as after SIGTERM; the connection lasts until it has ended
)

// jobAnswer is the answer to a jobQuestion. If Other is set, the rest is empty.
type jobAnswer struct {
	Other    bool           `json:"other,omitempty"`    // the gorun that was asked does not run the job of the question
	Lines    []string       `json:"lines,omitempty"`    // to aboutRanks: text for the user, or why gorun does not know what the ranks do
	State    *jobState      `json:"state,omitempty"`    // to aboutState, and to aboutEnd if the job is now ending
	Snapshot *live.Snapshot `json:"snapshot,omitempty"` // to aboutFigures; absent if no rank runs
}

// The bounds of a question and its answer.
const (
	questionLimit = 64 << 10         // largest size of a question, in bytes
	answerLimit   = 64 << 20         // largest size of an answer, in bytes
	questionTime  = 10 * time.Second // time limit for reading a question, and again for writing the answer
	// maxQuestions is the largest number of questions that a gorun answers at the same time, and of
	// sockets that gorun -stacks asks at the same time.
	maxQuestions = 16

	// answerTime is how long gorun takes at most to find out the answer to a question. It is enough
	// for two inspections, because another one may be under way when the question comes: see
	// inspection.
	answerTime = 2*inspectTime + time.Second
)

var errOtherUser = errors.New("the process on the other side belongs to another user")

// listen starts goroutines that answer questions of other processes. stop ends these goroutines and
// waits for them. If listen cannot make the socket, it prints the reason if the user wants -v, and
// other processes cannot ask about this job.
func (s *session) listen() (stop func()) {
	l, err := s.listenAs(jobSocket + strconv.Itoa(os.Getpid()))
	if err != nil {
		s.verbose("gorun -stacks cannot reach this job: %v", err)
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	running.SetLimit(1 + maxQuestions)
	running.Go(func() error { // ends when stop has closed the listener; stop waits for it
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			// An error means, for example, that this process has too many open files. Without the
			// pause the loop would use a whole core.
			if err != nil {
				time.Sleep(20 * time.Millisecond)
				continue
			}
			// The goroutine ends when [session.answer] returns: within its time limits, or soon
			// after the end of ctx. stop waits for it.
			began := running.TryGo(func() error {
				defer context.AfterFunc(ctx, func() { _ = c.Close() })()
				s.answer(ctx, c)
				return c.Close()
			})
			if !began {
				_ = c.Close()
			}
		}
	})
	return func() {
		cancel()
		_ = l.Close()
		_ = running.Wait() // an error is one of closing a connection, and does not matter
	}
}

// answer reads one question from the connection c and writes the answer to c. It blocks until then.
// ctx ends when the job has ended. If the other process may not ask, or its question is invalid,
// answer writes nothing.
func (s *session) answer(ctx context.Context, c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(questionTime))
	if peerUser(c, mayAsk) != nil {
		return
	}
	var q jobQuestion
	line, err := bufio.NewReader(io.LimitReader(c, questionLimit)).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &q) != nil {
		return
	}
	a := s.answerTo(ctx, &q)
	text, err := json.Marshal(a)
	if err != nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(questionTime))
	if _, err := c.Write(append(text, '\n')); err != nil { // the other process has not read the answer
		return
	}
	if q.About == aboutEnd && a.State != nil {
		<-ctx.Done()
	}
}

// answerTo returns the answer to a question. It blocks until gorun knows the answer, at most for
// answerTime, and not after the end of ctx.
func (s *session) answerTo(ctx context.Context, q *jobQuestion) jobAnswer {
	r := s.current.Load()
	anyJob := q.About == aboutState && q.Job == "" && r != nil
	if !anyJob && q.Job != strconv.Itoa(os.Getpid()) && (r == nil || q.Job != r.id) {
		return jobAnswer{Other: true}
	}
	switch {
	case r == nil && q.About == aboutRanks:
		return jobAnswer{Lines: []string{"no rank runs"}}
	case r == nil:
		return jobAnswer{Other: true}
	case q.About == aboutRanks:
		return jobAnswer{Lines: r.whatRanksDo(ctx, q.Dir).lines}
	case q.About == aboutFigures:
		return jobAnswer{Snapshot: s.askSnapshot(ctx, false)}
	}
	state := r.askState(ctx)
	if q.About == aboutEnd {
		select {
		case s.signals <- syscall.SIGTERM:
		default: // there are many signals already
		}
	}
	return jobAnswer{State: state}
}

// whatRanksDo returns what the ranks of the run do, or why that is not known. It writes their stacks to
// files in dir, unless dir is empty. It blocks until gorun knows the answer, at most for answerTime, and
// not after the end of ctx.
func (r *run) whatRanksDo(ctx context.Context, dir string) inspected {
	done := make(chan inspected, 1)
	if !r.mail.post(inspectRequest{stacks: dir != "", dir: dir, then: func(i inspected) { done <- i }}) {
		return inspected{lines: []string{jobEnded}}
	}
	select {
	case i := <-done:
		return i
	case <-ctx.Done():
		return inspected{lines: []string{jobEnded}}
	case <-time.After(answerTime):
		return inspected{lines: []string{"gorun has not answered in time"}}
	}
}

// mayAsk reports whether a process of the user with id user may ask a gorun of the user with id
// own. Only the same user and root may ask, because a question can make gorun write files with the
// rights of its user.
func mayAsk(user, own int) bool { return user == own || user == 0 }

// mayAnswer reports whether a process of the user with id own accepts an answer from a gorun of the
// user with id user. A process accepts answers from the same user and from root. A process of root
// accepts all answers.
func mayAnswer(user, own int) bool { return user == own || user == 0 || own == 0 }

// peerUser returns an error unless may returns true for the process at the other end of the Unix
// socket c. It calls may with the user id of that process and the user id of this process.
func peerUser(c net.Conn, may func(user, own int) bool) error {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var user int
	if cerr := raw.Control(func(fd uintptr) { user, err = sys.PeerUser(int(fd)) }); cerr != nil {
		return cerr
	}
	if err == nil && !may(user, os.Geteuid()) {
		err = errOtherUser
	}
	return err
}

// Stacks prints to stdout what the ranks of a running job do, as gorun -stacks does, and returns
// the exit code. opts.Job names the job: its id, or the pid of the gorun that runs it. That gorun
// must run on this host, and as the same user as this process, unless this process runs as root.
// Stacks blocks until the gorun has answered, a time limit has passed, or ctx ends. It writes an
// error to stderr.
func Stacks(ctx context.Context, stdout, stderr io.Writer, opts job.Options) int {
	lines, err := askRanks(ctx, opts)
	if err != nil {
		fmt.Fprintf(stderr, "gorun: -stacks: %v\n", err)
		return proto.ExitFailed
	}
	if err := printAnswer(stdout, lines); err != nil {
		fmt.Fprintf(stderr, "gorun: print: %v\n", err)
		return proto.ExitFailed
	}
	return 0
}

// printAnswer prints the lines of an answer. It replaces characters that are not printable, because
// the lines contain text from the ranks.
func printAnswer(w io.Writer, lines []string) error {
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, proto.OneLine(l, len(l)+1)); err != nil {
			return err
		}
	}
	return nil
}

// askRanks asks the gorun that runs the job opts.Job what the ranks do, and returns the lines of its
// answer.
func askRanks(ctx context.Context, opts job.Options) ([]string, error) {
	q := jobQuestion{Job: opts.Job}
	if opts.StacksDir != "" {
		dir, err := filepath.Abs(opts.StacksDir)
		if err != nil {
			return nil, err
		}
		q.Dir = dir
	}
	var lines atomic.Pointer[[]string]
	ctx, found := context.WithCancel(ctx)
	defer found()
	err := askJob(ctx, q, func(_ net.Conn, a jobAnswer) {
		lines.Store(&a.Lines)
		found()
	})
	if l := lines.Load(); l != nil {
		return *l, nil
	}
	return nil, cmp.Or(err, noJob(opts.Job))
}

// noJob returns the error of a question to which no gorun has answered.
func noJob(job string) error {
	return fmt.Errorf("expected the id of a job of this user on this host, or the pid of its gorun, found %q", job)
}

// askJob asks the gorun that runs the job q.Job, and calls f with its connection and its answer. If
// q.Job is not a pid, askJob asks every gorun whose socket it finds, because it does not know which
// of them runs the job. If q.Job is "", more than one may answer, and f is called concurrently. f
// must not keep the connection.
func askJob(ctx context.Context, q jobQuestion, f func(c net.Conn, a jobAnswer)) error {
	var asking errgroup.Group
	asking.SetLimit(maxQuestions)
	for _, name := range jobSockets(q.Job) {
		// The goroutine ends with f, after an error of ask, after answerTime + questionTime, or when
		// ctx ends.
		asking.Go(func() error {
			a, err := ask(ctx, name, q, f)
			pid := strings.TrimPrefix(name, jobSocket)
			switch {
			case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT), err == nil && a.Other:
			case err != nil && ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, errOtherUser) && pid != q.Job:
				// Another user's gorun is no error while askJob searches for an id.
			case errors.Is(err, os.ErrDeadlineExceeded):
				return fmt.Errorf("gorun with pid %s has not answered within %v: perhaps it is stopped", pid, answerTime+questionTime)
			case err != nil:
				return fmt.Errorf("gorun with pid %s: %w", pid, err)
			}
			return nil
		})
	}
	return asking.Wait()
}

// jobSockets returns the names of the sockets on which the gorun that runs a job may listen. If
// text is a pid, that is the socket of the gorun with this pid. Otherwise text is the id of a job,
// and the result is that of allJobSockets.
func jobSockets(text string) []string {
	// A number of 16 or more digits is the id of a job.
	if pid, err := strconv.Atoi(text); err == nil && pid > 0 && len(text) < 16 {
		return []string{jobSocket + text}
	}
	return allJobSockets()
}

// ask sends a question to the gorun that listens on the socket name, and returns the answer. If the
// gorun runs the job of the question, ask calls f first. It blocks for at most questionTime to
// connect, then for at most answerTime + questionTime, and not after the end of ctx.
func ask(ctx context.Context, name string, q jobQuestion, f func(c net.Conn, a jobAnswer)) (a jobAnswer, err error) {
	c, err := (&net.Dialer{Timeout: questionTime}).DialContext(ctx, "unix", name)
	if err != nil {
		return a, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(answerTime + questionTime))
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := peerUser(c, mayAnswer); err != nil {
		return a, err
	}
	text, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	if _, err := c.Write(append(text, '\n')); err != nil {
		return a, err
	}
	if err := json.NewDecoder(io.LimitReader(c, answerLimit)).Decode(&a); err != nil {
		return a, err
	}
	if !a.Other {
		f(c, a)
	}
	return a, nil
}
