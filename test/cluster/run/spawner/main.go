//go:build linux

// Spawner is a program for tests of gorun. Rank 0 spawns processes, by the interface of package
// bootstrap, and prints the result:
//
//	spawner THEN PROCS HOST PROGRAM ARG…
//
// PROCS is the number of processes, and HOST the value of the info key host, or "". THEN is
// "finalize", or "wait": then the ranks sleep until a signal ends them.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
)

func main() {
	ctx := context.Background()
	w, err := bootstrap.Open(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "spawner:", err)
		os.Exit(90)
	}
	if w.Rank == 0 {
		n, err := strconv.Atoi(os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, "spawner:", err)
			os.Exit(91)
		}
		c := bootstrap.Command{Path: os.Args[4], Args: os.Args[5:], Procs: n}
		if os.Args[3] != "" {
			c.Info = map[string]string{"host": os.Args[3]}
		}
		size, _, _ := w.Universe(ctx)
		codes, err := w.Spawn(ctx, []bootstrap.Command{c}, map[string]string{"PARENT": "here"})
		fmt.Printf("universe %d codes %v error %v\n", size, codes, err)
	}
	if os.Args[1] == "wait" {
		time.Sleep(time.Hour)
	}
	if err := w.KVS.Finalize(); err != nil {
		fmt.Fprintln(os.Stderr, "spawner:", err)
		os.Exit(92)
	}
}
