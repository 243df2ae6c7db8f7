//go:build linux

package mpi_test

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

const (
	hugeWindow = 16 << 20
	hugeBytes  = 2<<30 + hugeWindow - 3 // length of a message, which does not fit into 31 bits
)

// TestHugeMessages sends a message of more than 2 GiB to another rank and to the rank itself, and
// broadcasts one.
func TestHugeMessages(t *testing.T) {
	if raceEnabled || unsafe.Sizeof(uintptr(0)) < 8 {
		t.Skip("needs 64-bit addresses, and a build without the race detector, with which the test takes too long")
	}
	send, recv := hugeSlice(t), hugeSlice(t)
	for i := range hugeWindow {
		send[i] = byte(i * 7 >> 3)
	}
	check := func(st comm.Status, err error) error {
		if err == nil && st.Count != hugeBytes {
			err = fmt.Errorf("received %d bytes", st.Count)
		}
		err = first(err, same("data", recv[hugeBytes-hugeWindow:], send[hugeBytes-hugeWindow:]))
		clear(recv[:hugeWindow])
		return err
	}
	for over, p := range map[string]transport.Provider{"inproc": inproc.NewFabric(), "tcp": tcp.New()} {
		t.Run(over, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				if c.Rank() == 0 {
					return first(comm.Send(c, send, 1, 0), comm.Bcast(c, send, 0))
				}
				r := comm.Irecv(c, recv, 1, 1)
				if err := first(comm.Send(c, send, 1, 1), check(r.Wait())); err != nil {
					return fmt.Errorf("self: %w", err)
				}
				return first(check(comm.Recv(c, recv, 0, 0)), comm.Bcast(c, recv, 0), check(comm.Status{Count: hugeBytes}, nil))
			}, commtest.WithProviders(p))
		})
	}
}

// hugeSlice returns a slice of hugeBytes in which the same memory of hugeWindow bytes is mapped
// again and again. This saves memory, and the time to allocate it; the test needs only the length.
func hugeSlice(t *testing.T) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("weft-huge", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, hugeWindow))
	const all = (hugeBytes + hugeWindow - 1) / hugeWindow * hugeWindow
	base, err := unix.MmapPtr(-1, 0, nil, all, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(unix.MunmapPtr(base, all), unix.Close(fd))) })
	for at := uintptr(0); at < all; at += hugeWindow {
		_, err := unix.MmapPtr(fd, 0, unsafe.Add(base, at), hugeWindow, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_POPULATE)
		require.NoError(t, err)
	}
	return unsafe.Slice((*byte)(base), hugeBytes)
}
