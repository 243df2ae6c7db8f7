//go:build libfabric

package libfabric

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// kernelCopies reports whether shm writes to the memory of this user's processes on this host by
// process_vm_writev(2). It returns false if FI_SHM_DISABLE_CMA is not empty, if a trial call fails,
// for example because of a seccomp filter, or if the Yama security module may forbid this process
// to access a process of the same user.
func kernelCopies() bool {
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
	if err != nil || len(scope) == 0 {
		return err != nil // if the file cannot be read, assume that there is no Yama
	}
	return scope[0] == '0' || scope[0] != '3' && canTrace()
}

// canTrace reports whether this process has CAP_SYS_PTRACE, with which Yama permits access to other
// processes unless ptrace_scope is 3. It looks at the capability instead of the user id, because
// root in a container may lack the capability.
func canTrace() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(status, []byte("\nCapEff:\t"))
	digits, _, _ := bytes.Cut(rest, []byte("\n"))
	caps, err := strconv.ParseUint(string(digits), 16, 64)
	return err == nil && caps&(1<<unix.CAP_SYS_PTRACE) != 0
}
