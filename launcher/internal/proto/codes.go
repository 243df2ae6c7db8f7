package proto

// The exit codes that gorun makes itself; those of a program that cannot be run
// are a shell's.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitVersion     = 113
	ExitTimeout     = 124
	ExitNotExec     = 126
	ExitNotFound    = 127
	ExitSignalFloor = 128 // plus the signal
)
