package proto

// Exit codes of gorun. ExitNotExec, ExitNotFound and ExitSignalFloor are the same as in a shell.
const (
	ExitFailed      = 1   // for example, a program cannot be built, or a host fails
	ExitUsage       = 2   // the command line or the job is invalid
	ExitVersion     = 113 // a host has another version of gorun
	ExitTimeout     = 124 // the timeout of the job has passed
	ExitNotExec     = 126 // a program cannot be executed
	ExitNotFound    = 127 // a program does not exist
	ExitSignalFloor = 128 // if a signal ended the job, the exit code is this plus the number of the signal
)
