//go:build linux

// Refuse runs a program for which memfd_create(2) fails, as it does under the system call filters
// of some containers:
//
//	refuse PROGRAM [ARGUMENT…]
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: refuse PROGRAM [ARGUMENT…]")
		os.Exit(2)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "refuse:", err)
		os.Exit(1)
	}
}

// run installs a seccomp filter that makes memfd_create(2) fail with EPERM. Then it executes the
// program in place of this one.
func run(argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	filter := []unix.SockFilter{ // seccomp(2)
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // load the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_MEMFD_CREATE, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // the filter applies to this thread, which executes the program
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return syscall.Exec(path, argv, os.Environ())
}
