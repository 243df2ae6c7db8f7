//go:build libfabric

package fi

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>

// Distributions link libfabric with the library of old InfiniPath adapters,
// which, when it is loaded, catches signals from INT to SEGV in order to write a
// backtrace into the working directory and to exit with 1. Go's runtime would
// pass on to it what the program does not handle, so that no process could die
// of a signal. This runs after it and before the runtime has seen its handlers.
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
