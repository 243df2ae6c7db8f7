//go:build libfabric

package libfabric

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// copiesAcross says whether shm surely has the kernel copy between processes of
// this host (process_vm_writev(2)): neither its user nor a filter of system calls
// forbids that, and Yama lets this process at any other of its user.
func copiesAcross() bool {
	if os.Getenv("FI_SHM_DISABLE_CMA") != "" {
		return false
	}
	from, to := make([]byte, 1), make([]byte, 1)
	local := []unix.Iovec{{Base: &from[0], Len: 1}}
	remote := []unix.RemoteIovec{{Base: fi.AddressOf(to), Len: 1}}
	if _, err := unix.ProcessVMWritev(os.Getpid(), local, remote, 0); err != nil {
		return false
	}
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	return err != nil || len(scope) > 0 && scope[0] == '0' || mayTrace()
}

// mayTrace says whether this process has CAP_SYS_PTRACE, which root need not have
// in a container.
func mayTrace() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(status, []byte("\nCapEff:\t"))
	digits, _, _ := bytes.Cut(rest, []byte("\n"))
	caps, err := strconv.ParseUint(string(digits), 16, 64)
	return err == nil && caps&(1<<unix.CAP_SYS_PTRACE) != 0
}
