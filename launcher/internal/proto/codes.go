package proto

// Exit codes of gorun. Those for a program that cannot be run are the same as a shell's.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitVersion     = 113
	ExitTimeout     = 124
	ExitNotExec     = 126
	ExitNotFound    = 127
	ExitSignalFloor = 128 // plus the number of the signal
)
