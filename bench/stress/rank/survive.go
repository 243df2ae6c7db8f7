package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// survive is the main function with -survive: the rank goes on when another rank fails, until one of its
// own calls returns an error. It prints lines that bench/stress parses:
//
//	stress RANK ready PID              the rank ignores SIGTERM from now on
//	stress RANK failed TIME KIND TEXT  a call returned an error, TIME nanoseconds after 1970
//	stress RANK recovered SIZE         with -recover: SIZE ranks have gone on without the failed rank
//	stress RANK ended TEXT             the error of Finalize
//
// RANK is "spawned" in a process that the operation spawn has started.
func survive(o options) {
	signal.Ignore(syscall.SIGTERM)
	if !o.recover {
		printLine(fmt.Sprint("ready ", os.Getpid()))
	}
	if o.sessions {
		if err := withSession(1, o.run); err != nil {
			report(fmt.Errorf("with a session: %w", err))
		}
		return
	}
	c, err := comm.Init(context.Background())
	if err != nil {
		report(fmt.Errorf("init: %w", err))
		return
	}
	if o.recover { // nothing can recover from a failure in Init
		printLine(fmt.Sprint("ready ", os.Getpid()))
	}
	err = o.run(c)
	ended := c.Finalize()
	if err == nil && ended != nil {
		report(fmt.Errorf("finalize: %w", ended))
	}
	printLine(fmt.Sprintf("ended %v", ended))
}

func printLine(what string) {
	rank := os.Getenv("PMI_RANK")
	if os.Getenv(appVariable) != "" {
		rank = "spawned"
	}
	fmt.Printf("stress %s %s\n", rank, what)
}

// report prints the line "failed" for an error.
func report(err error) {
	kind := "other"
	switch {
	case errors.Is(err, comm.ErrProcFailed):
		kind = "process-failed"
	case errors.Is(err, comm.ErrRevoked):
		kind = "revoked"
	case errors.Is(err, comm.ErrFinalized): // the peer has called Finalize because of the failure
		kind = "finalized"
	case errors.Is(err, comm.ErrPort), errors.Is(err, comm.ErrSpawn): // the other side has ended, or the job ends
		kind = "connection"
	case strings.Contains(err.Error(), "gorun ends the job"): // the process was still in Init
		kind = "ending"
	case errors.Is(err, errRemote):
		kind = "others"
	}
	printLine(fmt.Sprintf("failed %d %s %q", time.Now().UnixNano(), kind, err))
}
