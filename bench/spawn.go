package main

import (
	"os"

	"github.com/weft-hpc/weft/comm"
)

// spawn times Spawn of a number of processes, which is the size, until they have called Init, and Free of
// the connection. The processes run this program with the argument spawned.
var spawn = benchmark{
	name:    "spawn",
	help:    "Spawn of processes, which is the size, and Free of the connection",
	alone:   true,
	sizes:   "16",
	counts:  "processes",
	prepare: prepareSpawn,
}

// spawned is the argument that makes the program a process of the benchmark spawn.
const spawned = "spawned"

func prepareSpawn(c *comm.Comm, n int) (*part, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return &part{mean: true, repeat: timed(func() error {
		kids, err := c.Spawn(0, comm.Proc{Path: path, Args: []string{spawned}, N: n})
		if err != nil {
			return err
		}
		return kids.Free()
	})}, nil
}

// runSpawned is the program of the processes that spawn starts.
func runSpawned() {
	comm.Main(func(c *comm.Comm) error { return c.Parent().Free() })
}
