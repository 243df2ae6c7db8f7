// Profile is a program for tests of gorun -profile. Its first argument says what the ranks do:
//
//	work      compute, wait and allocate
//	kill R    compute; then rank R kills itself
//	leave R   compute; then rank R exits without Finalize
//	own R     rank R makes a CPU profile itself
//	garbage R rank R writes text to the files for its profiles before it calls Init
//	session   compute in two sessions, one after the other
//	spawn     start two more ranks, which compute
//	wait      compute, print "up", and wait for a signal
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"

	"github.com/weft-hpc/weft/comm"
)

// burnTime is the CPU time of burn in ns. A CPU profile has a sample for each 10 ms.
const burnTime = 200_000_000

var sink uint64

// burnIt computes for burnTime of CPU time.
func burnIt() {
	for begun := cpuTime(); cpuTime()-begun < burnTime; {
		for i := range uint64(1_000_000) {
			sink += i * i
		}
	}
}

func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano()
}

var kept []byte

// keepIt allocates memory that is in use at the end.
func keepIt() { kept = make([]byte, 32<<20) }

// awaitIt waits for another goroutine.
func awaitIt() {
	for range 100 {
		c := make(chan int)
		go func() { // ends when awaitIt has received
			syscall.Nanosleep(&syscall.Timespec{Nsec: 1_000_000}, nil)
			c <- 1
		}()
		<-c
	}
}

func main() {
	mode, me := os.Args[1], len(os.Args) > 2 && os.Args[2] == os.Getenv("WEFT_RANK")
	switch {
	case mode == "garbage" && me:
		garbage()
	case mode == "own" && me:
		if err := pprof.StartCPUProfile(io.Discard); err != nil {
			panic(err)
		}
	case mode == "session":
		session(burnIt)
		session(burnAgain)
		return
	}
	comm.Main(func(c *comm.Comm) error {
		if mode == "spawn" && c.Parent() == nil {
			return spawn(c)
		}
		burnIt()
		awaitIt()
		keepIt()
		if mode == "wait" {
			fmt.Println("up")
			select {}
		}
		if p := c.Parent(); p != nil {
			return p.Free()
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		switch {
		case mode == "kill" && me:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case mode == "leave" && me:
			os.Exit(0)
		}
		return nil
	})
}

// burnAgain does what burnIt does.
func burnAgain() {
	burnIt()
	sink++ // so that burnIt is not called in the place of burnAgain
}

func session(burn func()) {
	s, err := comm.Open(context.Background())
	if err == nil {
		burn()
		err = s.Close()
	}
	if err != nil {
		panic(err)
	}
}

func spawn(c *comm.Comm) error {
	children, err := c.Spawn(0, comm.Proc{Path: os.Args[0], Args: os.Args[1:], N: 2})
	if err != nil {
		return err
	}
	return children.Free()
}

// garbage writes text to the files that gorun has given to this process for its profiles.
func garbage() {
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		panic(err)
	}
	for _, f := range files {
		to, _ := os.Readlink(f)
		if n, err := strconv.Atoi(filepath.Base(f)); err == nil && (strings.Contains(to, "weft-cpu") || strings.Contains(to, "weft-heap")) {
			if _, err := syscall.Write(n, []byte("this is no profile")); err != nil {
				panic(err)
			}
		}
	}
}
