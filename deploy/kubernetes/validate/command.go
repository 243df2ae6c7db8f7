package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/launcher/job"
)

// command is what the first container of a pod runs.
type command struct {
	job   *job.Job    // the job, if the command is gorun as the launcher; else nil
	agent job.Options // the options, if the command is gorun as an agent; then Action is job.Agent
	sshd  bool        // the command is sshd
}

// files are the flags of gorun whose values are files that gorun reads while it parses its flags. In a
// manifest they are files of a pod, which do not exist here.
var files = []string{"secret-file", "hostfile"}

// commandOf parses a command line of a container. It uses gorun's own parser, which checks the flags, their
// values and their combination. hostfile has the contents of the file that the flag -hostfile names.
func commandOf(args []string, hostfile string) (command, error) {
	if len(args) == 0 {
		return command{}, fmt.Errorf("its first container has no command, so the image's command would run")
	}
	switch path.Base(args[0]) {
	case "sshd":
		return command{sshd: true}, nil
	case "gorun":
	default:
		return command{}, fmt.Errorf("its first container runs %q, which is neither gorun nor sshd", args[0])
	}
	args = slices.Clone(args[1:])
	restore, remove, err := standIn(args, hostfile)
	if err != nil {
		return command{}, err
	}
	defer remove()
	j, opts, err := job.Parse(args, nil)
	if err != nil {
		return command{}, fmt.Errorf("gorun would refuse its arguments: %w", err)
	}
	switch {
	case opts.Action == job.Agent:
		opts.SecretFile = restore(opts.SecretFile)
		return command{agent: opts}, nil
	case opts.Action != job.Run:
		return command{}, fmt.Errorf("gorun would start no job with its arguments")
	}
	j.SecretFile, j.Hostfile = restore(j.SecretFile), restore(j.Hostfile)
	return command{job: j}, nil
}

// standIn creates a temporary file for each flag in args that names a file of a pod (see files), and changes
// the flag to name the temporary file. restore returns the original name for the name of a temporary file.
// remove removes the temporary files.
func standIn(args []string, hostfile string) (restore func(string) string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "weft-validate-")
	if err != nil {
		return nil, nil, err
	}
	was := make(map[string]string)
	for i, a := range args {
		name, value, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !strings.HasPrefix(a, "-") || !slices.Contains(files, name) || !joined && i+1 == len(args) {
			continue
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(hostfile), 0o600); err != nil {
			_ = os.RemoveAll(dir)
			return nil, nil, err
		}
		if joined {
			args[i] = "-" + name + "=" + file
		} else {
			value, args[i+1] = args[i+1], file
		}
		was[file] = value
	}
	restore = func(file string) string {
		if w, ok := was[file]; ok {
			return w
		}
		return file
	}
	return restore, func() { _ = os.RemoveAll(dir) }, nil
}
