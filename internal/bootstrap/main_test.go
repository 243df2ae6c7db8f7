package bootstrap

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helperEnv is a variable that makes the test binary run rankMain instead of the tests. Its value
// is 1, or an action and a rank, see act.
const helperEnv = "BOOTSTRAP_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		os.Exit(rankMain())
	}
	files := openFiles()
	code := m.Run()
	if code == 0 {
		if err := leaked(files); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// rankMain runs a rank. It puts a value, enters a fence and gets the values of all ranks, as the
// set-up of a communicator does.
func rankMain() int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	w, err := Open(ctx)
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	if code, done := act(ctx, w); done {
		return code
	}
	value := func(r int) string { return fmt.Sprintf("addr=%d/%s", r, w.JobID) }
	check := func(err error) {
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	check(w.KVS.Put(fmt.Sprintf("test-%d", w.Rank), value(w.Rank)))
	check(w.KVS.Fence(ctx))
	for r := range w.Size {
		got, err := w.KVS.Get(fmt.Sprintf("test-%d", r))
		check(err)
		if got != value(r) {
			fmt.Printf("error: rank %d said %q, not %q\n", r, got, value(r))
			return 1
		}
	}
	if _, err := w.KVS.Get("nobody-put-this"); err == nil {
		fmt.Println("error: got what nobody put")
		return 1
	}
	fmt.Printf("rank %d of %d app %d by %s nodes %v secret %x\n", w.Rank, w.Size, w.AppNum, w.Launcher, w.HostOf, w.Secret[:4])
	check(w.KVS.Finalize())
	return 0
}

// act runs a rank in a test of failures. If helperEnv is "ACTION RANK", the rank with that number
// does the action, and the other ranks enter a fence. Then done is true, and code is the exit code.
func act(ctx context.Context, w *World) (code int, done bool) {
	action, rank, ok := strings.Cut(os.Getenv(helperEnv), " ")
	if !ok {
		return 0, false
	}
	if rank == strconv.Itoa(w.Rank) {
		switch action {
		case "die":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "leave":
			return 0, true
		case "abort":
			_ = w.KVS.Abort(Abort{Code: 7, Reason: "no more of this"})
			return 7, true
		case "child":
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), helperEnv+"=1")
			out, err := cmd.CombinedOutput()
			fmt.Printf("child: %s%v\n", out, err)
		}
	}
	if err := w.KVS.Fence(ctx); err != nil {
		fmt.Println("error:", err)
		return 3, true
	}
	_ = w.KVS.Finalize()
	return 0, true
}

func openFiles() map[string]string {
	files := map[string]string{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			files[e.Name()] = to
		}
	}
	return files
}

// leaked waits a short time for goroutines to end. It returns an error if goroutines or
// descriptors are left.
func leaked(before map[string]string) error {
	for i := 0; runtime.NumGoroutine() > 2 && i < 1000; i++ {
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > 2 {
		buf := make([]byte, 1<<16)
		return fmt.Errorf("%d goroutines are left:\n%s", n, buf[:runtime.Stack(buf, true)])
	}
	for fd, to := range openFiles() {
		if _, ok := before[fd]; !ok && !strings.HasPrefix(to, "anon_inode:[event") {
			return fmt.Errorf("descriptor %s (%s) is left open", fd, to)
		}
	}
	return nil
}
