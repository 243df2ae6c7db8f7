package proto

// Exit codes of gorun. Those for a program that cannot be executed are the same as in a shell.
const (
	ExitFailed      = 1   // for example, a program cannot be built, or a host fails
	ExitUsage       = 2   // the command line or the job is invalid
	ExitVersion     = 113 // a host has another version of gorun
	ExitTimeout     = 124 // the timeout of the job has passed
	ExitNotExec     = 126 // a program cannot be executed
	ExitNotFound    = 127 // a program does not exist
	ExitSignalFloor = 128 // a signal ended the job: this plus the number of the signal
)
