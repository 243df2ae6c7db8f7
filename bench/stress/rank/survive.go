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

// survive is main of a rank that outlives others. For the program that kills
// them it prints lines of its rank:
//
//	stress RANK ready PID              SIGTERM does not end it from now on
//	stress RANK failed TIME KIND TEXT  a call returned an error, TIME ns after 1970
//	stress RANK ended TEXT             what Finalize has said
func survive(o options) {
	signal.Ignore(syscall.SIGTERM)
	tell(fmt.Sprint("ready ", os.Getpid()))
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
	tell(fmt.Sprintf("ended %v", ended))
}

func tell(what string) { fmt.Printf("stress %s %s\n", os.Getenv("PMI_RANK"), what) }

// report tells when an error came, and of which kind it is.
func report(err error) {
	kind := "other"
	switch {
	case errors.Is(err, comm.ErrProcFailed):
		kind = "process-failed"
	case errors.Is(err, comm.ErrRevoked):
		kind = "revoked"
	case errors.Is(err, comm.ErrFinalized): // of a rank that has called Finalize because a process has failed
		kind = "finalized"
	case errors.Is(err, errOthers):
		kind = "others"
	}
	tell(fmt.Sprintf("failed %d %s %q", time.Now().UnixNano(), kind, err))
}
