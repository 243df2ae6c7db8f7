package job

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weft-hpc/weft/internal/params"
)

// The user's file
//
// A user may have a file with settings for all jobs, weft/config.toml in the directory of
// configurations. It is a job file without programs, hosts and numbers of ranks. The environment,
// the job file and the flags override it.

// userFilePath returns the path of the user's file, or "" if vars, an environment by name, has
// neither a directory of configurations nor a home.
func userFilePath(vars map[string]string) string {
	dir := vars["XDG_CONFIG_HOME"]
	if !filepath.IsAbs(dir) { // the XDG specification ignores relative paths
		home := vars["HOME"]
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "weft", "config.toml")
}

// readUserFile reads the user's file. It returns nil if there is none.
func readUserFile(vars map[string]string) (*jobFile, error) {
	path := userFilePath(vars)
	if path == "" {
		return nil, nil
	}
	doc, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &FileError{File: path, Line: 1, Column: 1, Problem: "cannot read the user's file: " + cause(err)}
	}
	f, err := decodeFile(path, doc)
	if err != nil {
		return nil, err
	}
	for _, extra := range []struct {
		given bool
		key   string
	}{{len(f.apps) > 0, "app"}, {len(f.hosts) > 0, "host"}, {f.np > 0, "job.np"}} {
		if extra.given {
			return nil, f.errorAt(extra.key, "expected in a job file (-config), found in the user's file for all jobs")
		}
	}
	return f, nil
}

// fromFile sets the settings and tunables of a file, and adds its variables.
func (j *Job) fromFile(f *jobFile, from params.Source) error {
	for _, s := range f.settings {
		if st, _ := settingOf(s.key); st.besideFile {
			s.text = f.relative(s.text)
		}
		j.set(s.key, s.text, from)
	}
	for _, t := range f.tunables {
		if err := j.Params.Set(t.key, t.text, from); err != nil {
			return f.errorAt(t.key, err.Error())
		}
	}
	for _, v := range f.env {
		j.Env = setVar(j.Env, v)
	}
	return nil
}
