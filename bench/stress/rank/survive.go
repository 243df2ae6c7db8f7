package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// survive is the main function with -survive: the rank goes on when another rank fails, until one of its
// own calls returns an error. It prints lines that bench/stress parses:
//
//	stress RANK ready PID              the rank ignores SIGTERM from now on
//	stress RANK failed TIME KIND TEXT  a call returned an error, TIME nanoseconds after 1970
//	stress RANK ended TEXT             the error of Finalize
func survive(o options) {
	signal.Ignore(syscall.SIGTERM)
	printLine(fmt.Sprint("ready ", os.Getpid()))
	c, err := comm.Init(context.Background())
	if err != nil {
		report(fmt.Errorf("init: %w", err))
		return
	}
	j := newJob(c, o)
	err = j.run()
	ended := c.Finalize()
	if err == nil && ended != nil {
		report(fmt.Errorf("finalize: %w", ended))
	}
	printLine(fmt.Sprintf("ended %v", ended))
}

func printLine(what string) { fmt.Printf("stress %s %s\n", os.Getenv("PMI_RANK"), what) }

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
	case errors.Is(err, errRemote):
		kind = "others"
	}
	printLine(fmt.Sprintf("failed %d %s %q", time.Now().UnixNano(), kind, err))
}
