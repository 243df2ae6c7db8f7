//go:build cgo && linux

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/device/cuda"
)

// inFake is set in a process that finds the library of testdata instead of CUDA's.
const inFake = "WEFT_CUDA_TEST"

// TestFake runs the other tests in a process with the library of testdata.
func TestFake(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", filepath.Join(dir, "libcuda.so.1"), "testdata/libcuda.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, path := range map[string]string{"driver": dir, "no driver": filepath.Join(dir, "empty")} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.skip=^TestFake$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), inFake+"="+name, "LD_LIBRARY_PATH="+path)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			if name == "driver" {
				require.Contains(t, string(out), "--- PASS: TestMessages")
			}
		})
	}
}

// gpus returns the number of GPUs. Without one it skips the test.
func gpus(t *testing.T) int {
	t.Helper()
	n, err := cuda.Count()
	if errors.Is(err, comm.ErrNotSupported) && os.Getenv(inFake) != "driver" {
		require.ErrorContains(t, err, "libcuda.so.1")
		_, err = cuda.Open(0)
		require.ErrorIs(t, err, comm.ErrNotSupported)
		t.Skipf("no GPU: %v", err)
	}
	require.NoError(t, err)
	require.Positive(t, n)
	return n
}

// TestMessages sends messages between the memory of GPUs, and broadcasts from there.
func TestMessages(t *testing.T) {
	n := gpus(t)
	commtest.Run(t, 3, func(c *comm.Comm) error {
		gpu, err := cuda.Open(c.Rank() % n)
		if err != nil {
			return err
		}
		for _, n := range []int{1, 1000, 1 << 20} {
			if err := exchange(c, gpu, n); err != nil {
				return fmt.Errorf("%d elements: %w", n, err)
			}
		}
		return nil
	})
}

// exchange sends n elements to the next rank and receives those of the previous one, and broadcasts those of
// rank 0.
func exchange(c *comm.Comm, gpu *cuda.GPU, n int) error {
	var views [2]comm.View[int32]
	for i := range views {
		at, err := gpu.Alloc(4 * n)
		if err != nil {
			return err
		}
		defer func() { _ = gpu.Free(at) }()
		views[i] = comm.OnDevice[int32](gpu.Device, at, n)
	}
	elements := func(rank int) []int32 {
		vs := make([]int32, n)
		for i := range vs {
			vs[i] = int32(i*7 + rank)
		}
		return vs
	}
	out, in := views[0], views[1]
	if _, err := comm.Unpack(out, elements(c.Rank())); err != nil {
		return err
	}
	next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	if _, err := comm.SendrecvView(c, out, next, 0, in, prev, 0); err != nil {
		return err
	}
	got := make([]int32, n)
	if _, err := comm.Pack(got, in); err != nil {
		return err
	}
	if !slices.Equal(got, elements(prev)) {
		return errors.New("wrong elements from the previous rank")
	}
	if err := out.Bcast(c, 0); err != nil {
		return err
	}
	if _, err := comm.Pack(got, out); err != nil {
		return err
	}
	if !slices.Equal(got, elements(0)) {
		return errors.New("wrong elements from rank 0")
	}
	return nil
}

// TestAllocationID checks that the memory of an allocation has one number, and other memory another one.
func TestAllocationID(t *testing.T) {
	gpus(t)
	gpu, err := cuda.Open(0)
	require.NoError(t, err)
	var device comm.DeviceIdentifier = gpu
	seen := make(map[uint64]bool)
	for range 5 {
		at, err := gpu.Alloc(1000)
		require.NoError(t, err)
		id := device.AllocationID(at, 1000)
		require.NotZero(t, id)
		require.False(t, seen[id])
		seen[id] = true
		require.Equal(t, id, device.AllocationID(at+999, 1))
		require.NotEqual(t, id, device.AllocationID(at, 1<<30), "it does not contain all bytes")
		require.NoError(t, gpu.Free(at))
		require.NotEqual(t, id, device.AllocationID(at, 1000))
	}
	require.Zero(t, device.AllocationID(4096, 1))
	if os.Getenv(inFake) != "" {
		at, err := gpu.Alloc(12345) // MAPPED of testdata/libcuda.c
		require.NoError(t, err)
		require.Zero(t, device.AllocationID(at, 1))
		require.NoError(t, gpu.Free(at))
	}
}

// TestErrors checks that errors of the driver come back with their names.
func TestErrors(t *testing.T) {
	n := gpus(t)
	_, err := cuda.Open(n)
	require.ErrorContains(t, err, fmt.Sprintf("open GPU %d: CUDA_ERROR_INVALID_DEVICE (101)", n))
	gpu, err := cuda.Open(0)
	require.NoError(t, err)
	require.Equal(t, "cuda:0", gpu.String())
	_, err = gpu.Alloc(1 << 60)
	require.ErrorContains(t, err, "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
	require.ErrorContains(t, gpu.Free(12345), "cuMemFree")

	at, err := gpu.Alloc(8)
	require.NoError(t, err)
	require.NoError(t, gpu.Free(at))
	if os.Getenv(inFake) != "" { // with a GPU, such an access makes the whole context unusable
		_, err = comm.Pack(make([]byte, 8), comm.OnDevice[byte](gpu.Device, at, 8))
		require.ErrorIs(t, err, comm.ErrDevice)
		require.ErrorContains(t, err, "copy from cuda:0: cuda: device to host: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	}
}
