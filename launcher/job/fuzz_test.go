package job

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// FuzzDecode gives decodeFile an arbitrary document. Either the document must be a valid job file
// and give a valid job, or all errors must have positions in the document.
func FuzzDecode(f *testing.F) {
	useProjectTable(f)
	files, err := filepath.Glob("../../configs/*.toml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no job files to start from: %v", err)
	}
	for _, name := range files {
		doc, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc)
	}
	for _, doc := range []string{
		"job = {np=1, name='a'}\napp=[{program='x', args=['a', [1]], env={A='1'}}]",
		"[[app]]\nprogram = \"x\"\n[app.env]\n\"A.B\" = \"1\"\n[[host]]\nname = \"localhost\"\nslots = 3\n",
		"a.b.c = 1\n[a.d]\n\"\" = 1979-05-27\n[[a.e]]\n[[a.e]]\n",
		"[transport]\nuse = [\n # none\n]\n[coll]\nbcast.algorithm = 'auto'",
		"\"job.np\" = 1\r\n[job]\r\nnp = 0x10\r\n",
		"[[host]]\nname='a[1-3]'\nslots=2\nmax_slots=4\nport=22\n[[host]]\nname='::1'\naddress='10.0.0.1'\nuser='u'\n[job]\nslots=3",
		"[launcher]\nkind='dial'\nlisten=':1'\nsecret_file='x'\nssh='ssh -p 3'\nslurm_args=\"-p 'a b'\"\nheartbeat='1s'\nradix=2\nagents=3\nstage_files=['a']",
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		file, err := decodeFile("f", doc)
		if err != nil {
			checkPlaces(t, doc, err)
			return
		}
		line, err := parseFlags([]string{"true"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		// Remove settings that name files, because this machine may not have them.
		file.settings = slices.DeleteFunc(file.settings, func(s keyText) bool {
			st, _ := settingOf(s.key)
			return st.besideFile || s.key == "job.report" || s.key == "launcher.stage_files"
		})
		j, err := merge(line, file, nil, nil)
		if err != nil {
			checkPlaces(t, doc, err)
			return
		}
		checkJob(t, j)
		if err := Describe(io.Discard, j); err != nil {
			t.Fatal(err)
		}
	})
}

// checkJob fails the test unless the job has properties on which package launcher relies: for
// example, each setting must have a valid value.
func checkJob(t *testing.T, j *Job) {
	for _, s := range settings {
		if want := s.check(s.value(j)); want != "" {
			t.Fatalf("%s is %q, expected %s", s.Key, s.value(j), want)
		}
	}
	seen := make(map[string]bool)
	for _, h := range j.Hosts {
		if seen[h.Name] || h.Slots < 0 || h.Slots > MaxRanks || h.MaxSlots > 0 && h.Slots > h.MaxSlots {
			t.Fatalf("%+v", h)
		}
		seen[h.Name] = true
	}
	if n := j.NP(); n > MaxRanks || len(j.Hosts) > hosts.Limit {
		t.Fatalf("%d ranks on %d hosts", n, len(j.Hosts))
	}
}

// checkPlaces fails the test unless err is a *FileError, or several of them joined, and each has a
// position in doc and a message of one line.
func checkPlaces(t *testing.T, doc []byte, err error) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			checkPlaces(t, doc, e)
		}
		return
	}
	var fe *FileError
	if !errors.As(err, &fe) {
		t.Fatalf("%T: %v", err, err)
	}
	lines := strings.Split(string(doc), "\n")
	if fe.Line < 1 || fe.Line > len(lines) || fe.Column < 1 || fe.Column > len(lines[fe.Line-1])+1 {
		t.Fatalf("%v: outside of the file", fe)
	}
	if strings.Contains(fe.Error(), "\n") {
		t.Fatalf("more than a line: %q", fe.Error())
	}
}

// FuzzParseFlags gives parseFlags arbitrary arguments: text, split at NUL bytes. They must give a
// valid job or a *UsageError.
func FuzzParseFlags(f *testing.F) {
	for _, args := range []string{
		"-n\x004\x00./a\x00-n\x001024", "-np=2\x00a\x00:\x00-n\x003\x00-x\x00A=1\x00b", "--timeout\x0010s\x00-tag-output\x00a",
		"-H\x00localhost:2,[::1]:3\x00a", "-p\x00engine.eager_limit=64k\x00a", "-x\x00HOME\x00-wdir\x00/\x00a", ":\x00:", "-h",
		"-H\x00u@node[1-3]:2,::1\x00-ppn\x004\x00-map-by\x00ppr:2:node\x00a", "-slurm-args\x00-p 'a b'\x00-slurm-args\x00-t 3\x00-ssh\x00ssh -v\x00a",
		"-listen\x00:0\x00-agents\x002\x00-launcher\x00dial\x00a",
	} {
		f.Add(args)
	}
	f.Fuzz(func(t *testing.T, text string) {
		line, err := parseFlags(strings.Split(text, "\x00"), map[string]string{"HOME": "/"})
		if err == nil && (line.action == Help || line.action == Version || line.config != "") {
			return
		}
		var j *Job
		if err == nil {
			// Remove settings that name files, because this machine may not have them.
			line.settings = slices.DeleteFunc(line.settings, func(s flagText) bool {
				st, _ := settingOf(s.key)
				return st.besideFile || s.key == "job.report" || s.key == "launcher.stage_files"
			})
			j, err = merge(line, nil, nil, nil)
		}
		var ue *UsageError
		switch {
		case err == nil && line.action != Info && (j.NP() < 1 || j.NP() > MaxRanks || j.Grace < 0 || j.Timeout < 0):
			t.Fatalf("an impossible job: %+v", j)
		case err == nil:
			checkJob(t, j)
		case err != nil && !errors.As(err, &ue):
			t.Fatalf("%T: %v", err, err)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Fatalf("more than a line: %q", err)
		}
	})
}

// FuzzParseBytes: if params.ParseBytes accepts a text as a number of bytes, the number must not be
// negative, and mismatch must accept the text as the value of a parameter.
func FuzzParseBytes(f *testing.F) {
	for _, text := range []string{"0", "4096", "64k", "1M", "2g", "k", "-1", "9223372036854775807", "4611686018427387904k"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := params.ParseBytes(text)
		if err != nil {
			return
		}
		if n < 0 {
			t.Fatalf("%q is %d", text, n)
		}
		if m := mismatch(params.Param{Kind: params.Bytes}, text); m != "" {
			t.Fatalf("%q: expected %s", text, m)
		}
	})
}

// FuzzDuration: if mismatch accepts a text as a duration, it must be a valid one and not negative,
// and the function duration must return it.
func FuzzDuration(f *testing.F) {
	for _, text := range []string{"0s", "10m", "-1s", "1h1m1s", "9223372036854775807ns", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if mismatch(params.Param{Kind: params.Duration}, text) != "" {
			return
		}
		if d, err := time.ParseDuration(text); err != nil || d < 0 || d != duration(text) {
			t.Fatalf("%q: %v, %v", text, d, err)
		}
	})
}

// FuzzAgent gives Parse arbitrary arguments after -agent: text, split at NUL bytes. They must give
// valid options or a *UsageError.
func FuzzAgent(f *testing.F) {
	for _, args := range []string{"", "-connect\x00a:1\x00-secret-file\x00s", "-connect=[::1]:65535\x00--secret-file=s", "x", "--", "-h"} {
		f.Add(args)
	}
	f.Fuzz(func(t *testing.T, text string) {
		j, opts, err := Parse(append([]string{"-agent"}, strings.Split(text, "\x00")...), nil)
		var ue *UsageError
		switch {
		case err != nil && (!errors.As(err, &ue) || strings.Contains(err.Error(), "\n")):
			t.Fatalf("%T: %q", err, err)
		case j != nil || err == nil && (opts.Action != Agent || (opts.Connect == "") != (opts.SecretFile == "")):
			t.Fatalf("%+v, %+v", j, opts)
		}
	})
}
