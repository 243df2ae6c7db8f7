//go:build libfabric

package fi

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>

// Distributions link libfabric with the library of old InfiniPath adapters. When that library is
// loaded, it installs handlers for the signals in caught that write a backtrace into the working
// directory and exit with 1. Go's runtime would forward signals that the program does not handle to
// these handlers, so that no process could be ended by a signal. This constructor restores the
// default handlers. It runs after the constructor of that library and before Go's runtime reads the
// handlers.
__attribute__((constructor)) static void weft_restore_signals(void)
{
	static const int caught[] = {SIGINT, SIGILL, SIGABRT, SIGBUS, SIGSEGV, SIGTERM};
	for (unsigned i = 0; i < sizeof caught / sizeof *caught; i++) {
		struct sigaction now, none = {.sa_handler = SIG_DFL};
		Dl_info at;
		if (sigaction(caught[i], NULL, &now) || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)
			continue;
		if (dladdr((void *)now.sa_handler, &at) && at.dli_fname && strstr(at.dli_fname, "libinfinipath"))
			sigaction(caught[i], &none, NULL);
	}
}
*/
import "C"
