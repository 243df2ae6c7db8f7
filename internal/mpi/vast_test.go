//go:build linux

package mpi_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/comm"
)

// TestRecvAllocOfMoreThanThereIsMemory: if a message is larger than the memory of the host,
// RecvAlloc returns an error, and the process does not end. The sender's buffer is address space
// without memory.
func TestRecvAllocOfMoreThanThereIsMemory(t *testing.T) {
	vast, err := unix.Mmap(-1, 0, 1<<44, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(vast)) }()
	ranks(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			return first(comm.Send(c, vast, 1, 1), comm.Send(c, []byte{7}, 1, 1))
		}
		_, _, err := comm.RecvAlloc[byte](c, 0, 1)
		if err := wantErr("RecvAlloc", err, comm.ErrCount, "memory"); err != nil {
			return err
		}
		got, _, err := comm.RecvAlloc[byte](c, 0, 1)
		return first(err, same("the next message", got, []byte{7}))
	})
}
