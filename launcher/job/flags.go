package job

import (
	"cmp"
	"errors"
	"flag"
	"io"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// commandLine is a parsed command line of gorun. Parse combines it with the job file and the
// environment.
type commandLine struct {
	environ  map[string]string // gorun's environment, by name, for -x NAME without a value
	settings []flagText        // the settings that flags set, in the order of the flags on the command line
	tunables []flagText        // the parameters of params.Table that flags set, in the same order
	segments []segment         // the programs, which arguments ":" separate; at least one
	hosts    []string          // values of -host, in the order on the command line
	config   string            // value of -config; "": none
	action   Action            // what gorun must do, as the last flag such as -info or -dry-run says; 0: Run
	job      string            // value of -stacks or -stop; "": none
	shell    string            // value of -completion; "": none
	verbose  bool              // -v is given
}

// flagText is a keyText together with the flag that has set it. flag has its dash and is for
// messages.
type flagText struct {
	keyText
	flag string
}

// segment is one program of a command line, with its arguments and the flags before it. Program is
// "" if the command line has no program.
type segment struct {
	App
	hasNP bool // the flags contain -n; otherwise NP is 0
}

// parseFlags parses the arguments of gorun. environ is gorun's environment, by name. If the flags
// before the first program contain -h, -version, -completion or -man, parseFlags does not look at what
// follows. Errors
// are *UsageError.
func parseFlags(args []string, environ map[string]string) (*commandLine, error) {
	c := &commandLine{environ: environ}
	for first := true; first || len(args) > 0; first = false {
		rest, err := c.segment(args, first)
		if err != nil {
			return nil, err
		}
		seg := &c.segments[len(c.segments)-1]
		if c.action == Help && len(rest) > 0 {
			seg.Program = rest[0]
		}
		switch c.action {
		case Help, Version, Completion, Man:
			return c, nil
		default:
		}
		end := len(rest)
		for i, a := range rest {
			if a == ":" {
				end = i
				break
			}
		}
		if end > 0 {
			seg.Program, seg.Args = rest[0], append([]string(nil), rest[1:end]...)
		}
		if seg.Program == "" && (!first || end < len(rest)) {
			return nil, usage("", "expected a program on each side of \":\", found none")
		}
		if end == len(rest) {
			break
		}
		if args = rest[end+1:]; len(args) == 0 {
			return nil, usage("", "expected a program after \":\", found none")
		}
	}
	return c, nil
}

// segment appends a segment to c.segments, parses the flags before its program, and returns the
// arguments from the program on. first means that it is the first segment. In other segments, a
// flag that is for the whole job is an error.
func (c *commandLine) segment(args []string, first bool) ([]string, error) {
	c.segments = append(c.segments, segment{})
	fs := flag.NewFlagSet("gorun", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	var fault *UsageError
	for _, o := range options {
		for _, name := range o.names {
			fs.Var(&flagValue{isSwitch: o.arg == "", set: func(text string) bool {
				problem := ""
				if !first && !o.segment {
					problem = "expected before the first program: it is for the whole job"
				} else {
					problem = o.read(c, name, text)
				}
				if problem != "" {
					fault = &UsageError{What: "-" + name, Problem: problem}
				}
				return problem == ""
			}}, name, "")
		}
	}
	if err := fs.Parse(args); err != nil {
		if fault != nil {
			return nil, fault
		}
		return nil, flagError(err)
	}
	return fs.Args(), nil
}

// read handles one occurrence of the flag on the command line. name is that of the flag's names
// that the user has written. text is the argument of the flag; for a switch it is usually "true".
// read returns what is wrong with text, or "".
func (o option) read(c *commandLine, name, text string) (problem string) {
	switch {
	case o.set != nil && o.arg == "" && text != "true":
		return "expected no value, found " + quote(text)
	case o.set != nil:
		return o.set(c, text)
	case o.setting != "":
		s, _ := settingOf(o.setting)
		if want := s.check(text); want != "" {
			return "expected " + want + ", found " + quote(text) + unitHint(s.Param, text)
		}
		if o.adds != "" {
			text = c.added(o, text)
		}
		c.settings = append(c.settings, flagText{keyText{o.setting, text}, "-" + name})
	default:
		p, ok := params.Lookup(o.tunable)
		if !ok {
			return "unknown to this gorun"
		}
		if want := mismatch(p, text); want != "" {
			return "expected " + want + ", found " + quote(text) + unitHint(p, text)
		}
		c.tunables = append(c.tunables, flagText{keyText{o.tunable, text}, "-" + name})
	}
	return ""
}

// added returns the joined texts of the earlier occurrences of the flag and text, with o.adds
// between them.
func (c *commandLine) added(o option, text string) string {
	for i := len(c.settings) - 1; i >= 0; i-- {
		if t := c.settings[i]; t.key == o.setting && t.text != "" && text != "" {
			return t.text + o.adds + text
		}
	}
	return text
}

// flagError returns an error of package flag as a UsageError, in the words of gorun.
func flagError(err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		for _, o := range options {
			for _, n := range o.names {
				if n == name {
					return usage("-"+name, "expected an argument, %s, found nothing", o.arg)
				}
			}
		}
	}
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		if name == "agent" {
			return usage("-agent", "expected as the first argument")
		}
		hint := cmp.Or(foreignHint(name), attachedNumberHint(name))
		if hint == "" {
			var names []string
			for _, o := range options {
				names = append(names, o.names...)
			}
			// If no flag is similar, a list of all flags would be too long.
			if hint = suggest(name, names); strings.HasPrefix(hint, "; expected") {
				hint = ""
			}
			hint = strings.Replace(hint, `"`, `"-`, 1)
		}
		return usage("-"+name, "unknown flag%s", hint)
	}
	if errors.Is(err, flag.ErrHelp) {
		return usage("-h", "expected no value")
	}
	return usage("", "%s", text)
}

// current returns the segment whose flags are being parsed.
func (c *commandLine) current() *segment { return &c.segments[len(c.segments)-1] }

// setRanks handles -n, and the other methods whose names begin with set handle other flags. text is
// the argument of the flag. They return what is wrong with text, or "".
func (c *commandLine) setRanks(text string) string {
	n, ok := parseRanks(text)
	if !ok {
		return "expected a number of ranks " + ranksRange + ", found " + quote(text)
	}
	c.current().NP, c.current().hasNP = n, true
	return ""
}

// parseRanks parses a number of ranks. It returns false if text is not a number from 1 to MaxRanks.
func parseRanks(text string) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 1 && n <= MaxRanks
}

func (c *commandLine) setConfig(text string) string {
	if text == "" {
		return "expected the name of a job file, found nothing"
	}
	if c.config != "" && c.config != text {
		return "expected one job file, found two"
	}
	c.config = text
	return ""
}

func (c *commandLine) setEnv(text string) string {
	name, value, ok := strings.Cut(text, "=")
	if problem := envName(name); problem != "" {
		return problem
	}
	if strings.Contains(value, "\x00") {
		return "expected a value without NUL, found " + quote(value)
	}
	if !ok {
		if value, ok = c.environ[name]; !ok {
			return "expected " + name + " to be set where gorun runs, or " + name + "=VALUE"
		}
	}
	c.current().Env = setVar(c.current().Env, EnvVar{name, value})
	return ""
}

// setVar returns env with the variable v. If env has a variable of the same name, setVar overwrites
// it in env. Otherwise it appends v.
func setVar(env []EnvVar, v EnvVar) []EnvVar {
	for i := range env {
		if env[i].Name == v.Name {
			env[i] = v
			return env
		}
	}
	return append(env, v)
}

func (c *commandLine) setWdir(text string) string {
	if text == "" {
		return "expected a directory, found " + quote(text)
	}
	c.current().Wdir = text
	return ""
}

func (c *commandLine) setHosts(text string) string {
	if _, err := hosts.ParseList(text); err != nil {
		return err.Error()
	}
	c.hosts = append(c.hosts, text)
	return ""
}

func (c *commandLine) setTunable(text string) string {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return "expected KEY=VALUE, found " + quote(text)
	}
	p, ok := params.Lookup(key)
	if !ok {
		var keys []string
		for _, p := range params.Table {
			keys = append(keys, p.Key)
		}
		hint := suggest(key, keys)
		if strings.HasPrefix(hint, "; expected") {
			hint = "; gorun -info lists them"
		}
		return "expected a tunable, found " + quote(key) + hint
	}
	if want := mismatch(p, value); want != "" {
		return key + ": expected " + want + ", found " + quote(value) + unitHint(p, value)
	}
	c.tunables = append(c.tunables, flagText{keyText{key, value}, "-p"})
	return ""
}

// jobAction returns the set function of a flag that chooses action a, for the job that the flag names.
func jobAction(a Action) func(*commandLine, string) string {
	return func(c *commandLine, text string) string {
		if text == "" {
			return "expected the id of a job or the pid of its gorun, found nothing"
		}
		c.action, c.job = a, text
		return ""
	}
}

func (c *commandLine) setCompletion(text string) string {
	c.action, c.shell = Completion, text
	return checkShell(text)
}

func (c *commandLine) setVerbose(string) string {
	c.verbose = true
	return ""
}

// action returns the set function of a flag that chooses action a.
func action(a Action) func(*commandLine, string) string {
	return func(c *commandLine, _ string) string {
		c.action = a
		return ""
	}
}

// flagValue is a flag.Value for an option. gorun does not use the error that package flag makes
// from an error of Set. It uses the UsageError that set has recorded.
type flagValue struct {
	isSwitch bool                   // the flag takes no value
	set      func(text string) bool // handles an occurrence of the flag; false: set has recorded an error
}

// errFlag is the error of Set. gorun never prints it.
var errFlag = errors.New("the option has made the message")

// String implements flag.Value. Package flag calls it for its help text, which gorun does not use.
func (v *flagValue) String() string { return "" }

// Set handles one occurrence of the flag.
func (v *flagValue) Set(text string) error {
	if !v.set(text) {
		return errFlag
	}
	return nil
}

// IsBoolFlag reports whether the flag takes no value.
func (v *flagValue) IsBoolFlag() bool { return v.isSwitch }
