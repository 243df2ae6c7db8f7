package job

import (
	"os"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
)

// Action is what a command line asks gorun to do.
type Action int

// The actions.
const (
	Run        Action = iota // start the job
	DryRun                   // print the job and where its ranks would run: launcher.DryRun
	Info                     // print all settings and tunables: launcher.WriteInfo
	Help                     // print the flags: WriteHelp
	Version                  // print the version: launcher.WriteVersion
	Completion               // print the completion for a shell: WriteCompletion
	Complete                 // print what completes a command line: WriteCandidates
	Man                      // print the manual page: WriteMan
	Stacks                   // print what the ranks of a running job do: launcher.Stacks
	PS                       // list the running jobs: launcher.PS
	Stop                     // end a running job: launcher.Stop
	Top                      // show what the ranks of a running job do: launcher.Top
	Agent                    // run the ranks of this host for a gorun on another host: launcher.AgentMain
)

// Options holds what a command line asks for besides the job.
type Options struct {
	Action Action
	// Connect and SecretFile are for Agent: the address, HOST:PORT, of the gorun to connect with, and
	// the file with the secret that both know. If they are empty, standard input and output are the
	// agent's connection with gorun.
	Connect, SecretFile string
	Hash                bool // for Agent: it must only print the SHA-256 of this executable

	// Topic is for Help: the topic whose flags it must print; empty: the common flags.
	Topic string

	Shell string // for Completion: the shell

	// Words is for Info and Complete. Info must print only entries whose names contain one of these
	// words, or all entries if there are none. For Complete they are the command line up to the
	// cursor.
	Words []string

	// Job is for Stacks, Stop and Top: the id of the job, or the pid of the gorun that runs it. StacksDir is
	// for Stacks: the directory for files with the ranks' stacks; empty: no files.
	Job, StacksDir string
}

// Parse makes a job from args, the arguments of gorun without argument 0, and from an environment
// in the form of os.Environ. A flag overrides the job file that -config names, the job file
// overrides WEFT_* variables, these override the user's file, and this overrides the defaults.
// Job.Source and Job.Params say where each value comes from.
//
// The error is a *UsageError, a *FileError, or several *FileError joined as by errors.Join. For the
// actions that start no job, except Info, the job is nil. For Info, it has no programs. -agent
// and -complete must be the first argument. Parse reads the user's file, the job file and the
// hostfile, and checks that other files exist, but starts no process.
func Parse(args, environ []string) (*Job, Options, error) {
	if len(args) > 0 && (args[0] == "-agent" || args[0] == "--agent") {
		opts, err := parseAgent(args[1:])
		return nil, opts, err
	}
	if len(args) > 0 && args[0] == "-complete" {
		return nil, Options{Action: Complete, Words: args[1:]}, nil
	}
	vars := make(map[string]string, len(environ))
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			vars[name] = value
		}
	}
	line, err := parseFlags(args, vars)
	if err != nil {
		return nil, Options{}, err
	}
	opts := Options{Action: line.action, Job: line.job, Shell: line.shell}
	switch line.action {
	case Help:
		if opts.Topic = line.segments[0].Program; opts.Topic != "" {
			if problem := checkTopic(opts.Topic); problem != "" {
				return nil, opts, usage("-help", "%s", problem)
			}
		}
		return nil, opts, nil
	case Version, Completion, Man:
		return nil, opts, nil
	case Stacks, PS, Stop, Top:
		flag := map[Action]string{Stacks: "-stacks", PS: "-ps", Stop: "-stop", Top: "-top"}[line.action]
		if rest := &line.segments[0]; rest.Program != "" {
			return nil, opts, usage(flag, "expected no program, found %q", rest.Program)
		}
		for _, s := range line.settings {
			switch {
			case line.action != Stacks:
				return nil, opts, usage(s.flag, "expected no other flag with %s", flag)
			case s.key != stacksKey:
				return nil, opts, usage(s.flag, "expected no other flag than -stacks-dir with -stacks")
			}
			opts.StacksDir = s.text
		}
		return nil, opts, nil
	default:
	}
	var file *jobFile
	if line.config != "" {
		doc, err := os.ReadFile(line.config)
		if err != nil {
			return nil, opts, usage("-config", "expected a job file, found %q: %s", line.config, cause(err))
		}
		if file, err = decodeFile(line.config, doc); err != nil {
			return nil, opts, err
		}
	}
	user, err := readUserFile(vars)
	if err != nil {
		return nil, opts, err
	}
	j, err := merge(line, file, user, vars)
	if err != nil {
		return nil, opts, err
	}
	if seg := line.segments[0]; opts.Action == Info && seg.Program != "" {
		opts.Words = append([]string{seg.Program}, seg.Args...)
	}
	j.Warnings = append(j.unknownVars(environ), j.strayFlags()...)
	return j, opts, nil
}

// cause returns the last part of the text of an error of package os: what went wrong, without the
// operation and the name of the file.
func cause(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return text
}

// merge makes a job from the command line, the job file, the environment, the user's file and the
// defaults. file and user are nil if there is no such file.
func merge(line *commandLine, file, user *jobFile, vars map[string]string) (*Job, error) {
	j := &Job{user: user, Params: &params.Set{}, Source: make(map[string]params.Source), Verbose: line.verbose}
	for _, s := range settings {
		s.apply(j, s.Default)
	}
	if user != nil {
		if err := j.fromFile(user, params.FromUser); err != nil {
			return nil, err
		}
	}
	if err := j.fromEnvironment(vars); err != nil {
		return nil, err
	}
	if file != nil {
		if err := j.fromFile(file, params.FromFile); err != nil {
			return nil, err
		}
	}
	for _, s := range line.settings {
		j.set(s.key, s.text, params.FromFlag)
	}
	for _, t := range line.tunables {
		if err := j.Params.Set(t.key, t.text, params.FromFlag); err != nil {
			return nil, &UsageError{What: t.flag, Problem: err.Error()}
		}
	}
	if j.Params.Get(ProviderKey).Source == params.FromFlag && j.Params.Get(useKey).Source == params.FromDefault {
		if err := j.Params.Set(useKey, "libfabric", params.FromFlag); err != nil {
			return nil, &UsageError{What: "-provider", Problem: err.Error()}
		}
	}
	if err := j.programs(line, file); err != nil {
		return nil, err
	}
	if err := j.resolveHosts(line, file); err != nil {
		return nil, err
	}
	if err := j.check(line, file); err != nil {
		return nil, err
	}
	if j.Name == "" && len(j.Apps) > 0 {
		j.Name = baseName(j.Apps[0].Program)
	}
	return j, nil
}

// set sets the setting key to text, which must be valid, and records its source. If there is no
// such setting, set does nothing.
func (j *Job) set(key, text string, from params.Source) {
	if s, ok := settingOf(key); ok {
		s.apply(j, text)
		j.Source[key] = from
	}
}

// fromEnvironment sets the settings and tunables whose environment variables are in vars, an
// environment by name. An empty variable counts as unset.
func (j *Job) fromEnvironment(vars map[string]string) error {
	for _, s := range settings {
		if text := vars[s.Env()]; text != "" {
			if want := s.check(text); want != "" {
				return usage(s.Env(), "expected %s, found %s%s", want, quote(text), unitHint(s.Param, text))
			}
			j.set(s.Key, text, params.FromEnv)
		}
	}
	for _, p := range params.Table {
		if text := vars[p.Env()]; text != "" {
			want := mismatch(p, text)
			if want == "" {
				if err := j.Params.Set(p.Key, text, params.FromEnv); err != nil {
					return usage(p.Env(), "%s", err)
				}
				continue
			}
			return usage(p.Env(), "expected %s, found %s%s", want, quote(text), unitHint(p, text))
		}
	}
	return nil
}

// programs sets j.Apps: the programs of the command line or, if it has none, those of the job file
// with the changes that flags make to them. It also sets NPGiven, and records the sources of the
// programs and of their numbers of ranks. For Info it does nothing.
func (j *Job) programs(line *commandLine, file *jobFile) error {
	first := line.segments[0]
	from := params.FromFlag
	switch {
	case line.action == Info:
		return nil
	case first.Program != "":
		for _, s := range line.segments {
			app := s.App
			if !s.hasNP && file != nil && len(line.segments) == 1 {
				app.NP = file.np
			}
			j.Apps = append(j.Apps, app)
		}
	case file == nil:
		return usage("", "expected a program or -config, found neither")
	case len(file.apps) == 0:
		return file.errorAt("app", "expected [[app]] with a program, or a program on the command line, found neither")
	default:
		from = params.FromFile
		var err error
		if j.Apps, err = file.appsWith(first); err != nil {
			return err
		}
	}
	j.NPGiven = j.Apps[0].NP > 0
	for i := range j.Apps {
		j.Apps[i].NP = max(j.Apps[i].NP, 1)
	}
	j.Source["app"] = from
	if from := ranksFrom(line, file); from != params.FromDefault {
		j.Source["job.np"] = from
	}
	if n := j.NP(); n > MaxRanks {
		return usage("-n", "expected %s ranks in total, found %d", ranksRange, n)
	}
	return nil
}

// ranksFrom returns the source of the numbers of ranks: a flag, the job file, or the default.
func ranksFrom(line *commandLine, file *jobFile) params.Source {
	given := func(a App) bool { return a.NP > 0 }
	switch {
	case slices.ContainsFunc(line.segments, func(s segment) bool { return s.hasNP }):
		return params.FromFlag
	case file == nil:
		return params.FromDefault
	case line.segments[0].Program == "" && slices.ContainsFunc(file.apps, given):
		return params.FromFile
	case line.segments[0].Program != "" && len(line.segments) == 1 && file.np > 0:
		return params.FromFile
	default:
		return params.FromDefault
	}
}

// appsWith returns the apps of the job file, with the changes that the flags -n, -wdir and -x make.
// It is for a command line without a program. NP is 0 if neither the flags nor the file give it.
func (f *jobFile) appsWith(flags segment) ([]App, error) {
	if flags.hasNP && len(f.apps) > 1 {
		return nil, usage("-n", "expected np in each [[app]] of %s, which has %d of them", f.Name, len(f.apps))
	}
	apps := slices.Clone(f.apps)
	for i := range apps {
		a := &apps[i]
		if flags.hasNP {
			a.NP = flags.NP
		}
		if flags.Wdir != "" {
			a.Wdir = flags.Wdir
		}
		a.Env = slices.Clone(a.Env)
		for _, v := range flags.Env {
			a.Env = setVar(a.Env, v)
		}
	}
	return apps, nil
}

// errorAt returns an error about the value of a key, with the position of the value in the job file.
func (f *jobFile) errorAt(key, problem string) *FileError {
	at := f.pos.value(key)
	return &FileError{File: f.Name, Line: at.line, Column: at.column, Key: key, Problem: problem}
}
