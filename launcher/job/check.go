package job

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

var errNoFile = errors.New("not a regular file")

// check returns an error if settings contradict each other although each is valid by itself, or if
// settings name files or directories that cannot be used. line and file are the command line and
// the job file from which j was made; file is nil if there is no job file.
func (j *Job) check(line *commandLine, file *jobFile) error {
	wrong := func(key, problem string) error { return j.wrong(line, file, key, problem) }
	for _, f := range []struct{ key, what, name string }{
		{"job.rankfile", "a rankfile", j.Rankfile},
		{"launcher.secret_file", "a file with a secret", j.SecretFile},
	} {
		if err := readable(f.name); f.name != "" && err != nil {
			return wrong(f.key, "expected "+f.what+", found "+found(f.name, err))
		}
	}
	for _, name := range j.StageFiles {
		err := readable(name)
		if err == nil && !isRegular(name) {
			err = errNoFile
		}
		if err != nil {
			return wrong("launcher.stage_files", "expected files, found "+found(name, err))
		}
	}
	for i, a := range j.Apps {
		// If gorun waits for agents, an absolute path is one on their hosts, which check it.
		if a.Wdir == "" || isDir(a.Wdir) || j.Dials() && filepath.IsAbs(a.Wdir) {
			continue
		}
		problem := "expected a directory, found " + quote(a.Wdir)
		if flags := line.segments[0]; file != nil && flags.Program == "" && flags.Wdir == "" {
			return file.errorAt(element("app", i)+".wdir", problem)
		}
		return usage("-wdir", "%s", problem)
	}
	if j.Tee && j.OutputDir == "" {
		return wrong("job.tee", "expected -output (job.output) with it, found none")
	}
	switch {
	case j.Report == "":
	case isDir(j.Report):
		return wrong("job.report", "expected a file, found the directory "+quote(j.Report))
	case !isDir(filepath.Dir(j.Report)):
		return wrong("job.report", "expected a file in a directory that exists, found "+quote(j.Report))
	}
	return j.checkLauncher(wrong)
}

// checkLauncher returns an error if settings about agents contradict each other. It makes the error
// by a call of wrong, whose arguments are the key of a setting and what is wrong with its value.
func (j *Job) checkLauncher(wrong func(key, problem string) error) error {
	const kindKey, listenKey = "launcher.kind", "launcher.listen"
	const listen, secret = "-listen (launcher.listen)", "-secret-file (launcher.secret_file)"
	switch {
	case j.Listen == "" && j.Launcher == LaunchDial:
		return wrong(kindKey, "expected "+listen+" with dial, found none")
	case j.Listen == "" && j.Agents > 0:
		return wrong("launcher.agents", "expected "+listen+" with it, found none")
	case j.Listen != "" && j.Launcher != LaunchDial && j.Launcher != LaunchAuto:
		return wrong(listenKey, "expected -launcher dial or auto with it, found "+string(j.Launcher))
	case j.Listen != "" && j.SecretFile == "":
		return wrong(listenKey, "expected "+secret+" with it, found none")
	}
	if j.Launcher != LaunchLocal {
		return nil
	}
	for _, h := range j.Hosts {
		if !hosts.IsLocal(h.Name) {
			return wrong(kindKey, "expected auto or ssh for other machines than this, such as "+quote(h.Name)+", found local")
		}
	}
	return nil
}

// wrong returns an error about the setting key. The error names the place where the user has set
// it: a line of the job file, an environment variable, or a flag. If the user has not set it, the
// error names the key. file may be nil if the setting does not come from a job file.
func (j *Job) wrong(line *commandLine, file *jobFile, key, problem string) error {
	s, _ := settingOf(key)
	switch j.Source[key] {
	case params.FromFile:
		return file.errorAt(key, problem)
	case params.FromUser:
		return j.user.errorAt(key, problem)
	case params.FromEnv:
		return &UsageError{What: s.Env(), Problem: problem}
	case params.FromFlag, params.FromDefault:
	}
	for i := len(line.settings) - 1; i >= 0; i-- {
		if t := line.settings[i]; t.key == key {
			return &UsageError{What: t.flag, Problem: problem}
		}
	}
	return &UsageError{What: key, Problem: problem}
}

// readable returns an error if this process may not read the file name, or if it is a directory.
// readable does not open the file: it may be a pipe, and its writer would notice that the pipe is
// opened and closed.
func readable(name string) error {
	if err := unix.Access(name, unix.R_OK); err != nil {
		return err
	}
	if isDir(name) {
		return unix.EISDIR
	}
	return nil
}

// found returns the name of a file in quotes, and what is wrong with the file, for a message.
func found(name string, err error) string {
	return strconv.Quote(name) + ": " + cause(err)
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

func isRegular(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}
