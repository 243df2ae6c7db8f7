package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// A rank asks gorun by PMI-1 to start processes (MPI-4.1 §11.8). The new processes become a group
// of their own:
//
//	rank      Spawn ─►  find the programs          in the background: files may be slow
//	                    place the ranks            spawnplace.go
//	                    Prepare ─► hosts ─► Prepared
//	                    FilePart ─► hosts ─► Staged        if hosts lack files
//	                    Start   ─► hosts ─► Started
//	      ◄─ Reply
//
// If a step fails, the rank gets an error with the cause, and nothing of the group remains. After
// Started, gorun treats the ranks of the group like all others: the job waits for them, and their
// failure is a failure of the job.

// errJobEnds is why a rank cannot spawn others while gorun ends the ranks.
var errJobEnds = errors.New("the job is ending")

// located is a message to [run.control]: gorun has looked for the programs of a Spawn.
type located struct {
	proto.Spawn
	apps  []spawnApp
	files []proto.File // programs that hosts may need, then the files that the user wants to copy
	err   error        // why a program cannot be run
}

// spawnApp is a command of a Spawn.
type spawnApp struct {
	groupApp
	proto proto.App
	procs int
	wdir  string // absolute path of the working directory
	spawnInfo
}

// spawn handles Spawn. It does not block: another goroutine looks for the programs.
func (r *run) spawn(m proto.Spawn) {
	if !r.valid(m.Rank) || r.groupOf(m.Rank).broken || r.groupOf(m.Rank).over {
		return
	}
	if r.outcome != nil || r.ending || r.phase != phaseRunning && r.phase != phaseStarting {
		r.refuse(m, errJobEnds)
		return
	}
	parent := r.groupOf(m.Rank)
	l := located{Spawn: m}
	for i := range m.Request.Commands {
		a, err := r.spawnApp(&m.Request.Commands[i], parent.prep.Apps[r.ranks[m.Rank].app])
		if err != nil {
			r.refuse(m, err)
			return
		}
		l.apps = append(l.apps, a)
	}
	for _, f := range m.Request.Preput {
		if f.Key == "" || len(f.Key) >= wire.PMIMaxKey || len(f.Value) >= wire.PMIMaxValue {
			r.refuse(m, fmt.Errorf("the pair %q has a key of %d and a value of %d bytes", f.Key, len(f.Key), len(f.Value)))
			return
		}
	}
	find := r.newLocator()
	// The goroutine ends when the programs are found, and [run.close] waits for it. If a file
	// server does not answer, both wait, but so do all other reads of programs by gorun.
	r.background.Go(func() {
		l.files, l.err = find.all(l.apps)
		r.mail.post(l)
	})
}

// spawnApp returns a command without its program's path. parent is the program of the rank that
// spawns.
func (r *run) spawnApp(c *wire.SpawnCommand, parent proto.App) (spawnApp, error) {
	a := spawnApp{groupApp: groupApp{program: c.Exec, args: c.Args}, procs: c.Procs, wdir: parent.Wdir}
	var err error
	if a.spawnInfo, err = parseSpawnInfo(c.Info); err != nil {
		return a, err
	}
	if c.Procs < 1 {
		return a, fmt.Errorf("%s: %d processes", c.Exec, c.Procs)
	}
	if d := a.dir; filepath.IsAbs(d) {
		a.wdir = d
	} else if d != "" {
		a.wdir = filepath.Join(parent.Wdir, d)
	}
	for _, files := range [][]string{a.hostFiles, a.addFiles} {
		for i, name := range files {
			if !filepath.IsAbs(name) {
				files[i] = filepath.Join(a.wdir, name)
			}
		}
	}
	env, p := a.env, parent
	p.Name, p.Staged, p.Path, p.Wdir = c.Exec, "", "", a.wdir
	if len(env) > 0 {
		p.Env = slices.DeleteFunc(procs.MergeEnv(parent.Env, env), procs.ForeignEnv)
		if v, ok := lookupEnv(env, "GOMAXPROCS"); ok && v != "" {
			p.KeepProc = true
		}
	}
	if r.onlyThisHost() && a.wdir != parent.Wdir {
		p.Env = procs.MergeEnv(p.Env, []string{"PWD=" + a.wdir})
	}
	a.proto = p
	return a, nil
}

// locator finds the programs of a Spawn. It has copies of what it needs, because it works in
// another goroutine than [run.control].
type locator struct {
	own      []program // the programs of the job
	names    []string  // their names, as the user wrote them
	ids      []string  // the job ids of all groups
	stage    bool      // gorun copies programs to the hosts
	dials    bool      // gorun waits for agents
	alone    bool      // this host is the only one
	files    []proto.File
	describe func(name string) (*proto.File, error)
}

func (r *run) newLocator() *locator {
	f := &locator{own: slices.Clone(r.programs), stage: r.job.Stage, dials: r.job.Dials(), alone: r.onlyThisHost(), describe: describeFile}
	for _, a := range r.job.Apps {
		f.names = append(f.names, a.Program)
	}
	for _, g := range r.groups {
		f.ids = append(f.ids, g.jobID)
	}
	staged := 0
	for _, a := range r.prep.Apps {
		if a.Staged != "" {
			staged++
		}
	}
	f.files = r.prep.Files[min(staged, len(r.prep.Files)):]
	return f
}

// all finds the programs of apps, and returns the files that hosts may need: first the programs
// that gorun copies.
func (f *locator) all(apps []spawnApp) (files []proto.File, err error) {
	for i := range apps {
		a := &apps[i]
		if err := a.readHostFiles(); err != nil {
			return nil, err
		}
		p, err := f.find(a)
		if err != nil {
			return nil, err
		}
		a.path, a.proto.Path = p.path, p.path
		a.proto.Argv = append([]string{p.arg0}, a.args...)
		if f.alone || !p.built && !f.stage {
			continue
		}
		if p.file == nil {
			if p.file, err = f.describe(p.path); err != nil {
				return nil, err
			}
		}
		a.proto.Staged = p.file.Hash
		files = append(files, *p.file)
	}
	return append(files, f.files...), nil
}

// find finds the program of one command: a program of the job under the name or path that a rank
// knows for it, or else a file.
func (f *locator) find(a *spawnApp) (program, error) {
	name := a.program
	for i, p := range f.own {
		if name == p.path || i < len(f.names) && name == f.names[i] || filepath.Base(name) == filepath.Base(p.path) && f.isCopy(name) {
			return p, nil
		}
	}
	p := program{arg0: name}
	if !strings.Contains(name, "/") {
		path := a.search
		if v, ok := lookupEnv(a.proto.Env, "PATH"); ok {
			path += string(filepath.ListSeparator) + v
		} else {
			path += string(filepath.ListSeparator) + os.Getenv("PATH")
		}
		var err error
		p.path, err = lookPath(name, strings.TrimPrefix(path, string(filepath.ListSeparator)))
		return p, err
	}
	if p.path = name; !filepath.IsAbs(name) {
		p.path = filepath.Join(a.wdir, name)
	} else if f.dials && !f.stage {
		return p, nil // the hosts check it: see find
	}
	st, err := os.Stat(p.path)
	switch {
	case err == nil:
		return p, executable(p.path, st)
	case !f.alone && !f.stage:
		return p, nil // it may exist on the hosts, which check that
	case errors.Is(err, os.ErrNotExist):
		return p, &startError{proto.ExitNotFound, p.path + ": no such file"}
	}
	return p, &startError{proto.ExitNotExec, err.Error()}
}

// isCopy reports whether a path is in a directory to which a host has copied files of the job.
func (f *locator) isCopy(path string) bool {
	dir := filepath.Dir(path)
	for range 2 { // a file may be in a directory of its own there
		for _, id := range f.ids {
			if strings.HasPrefix(filepath.Base(dir), "gorun-"+id+"-") {
				return true
			}
		}
		dir = filepath.Dir(dir)
	}
	return false
}

// refuse sends a rank the reply that its Spawn has failed because of err, and prints the cause,
// because MPICH does not show it.
func (r *run) refuse(m proto.Spawn, err error) {
	r.printLine(proto.OneLine(fmt.Sprintf("rank %s cannot spawn: %v", r.nameOfRank(m.Rank), err), 1000))
	r.node.Do(proto.Reply{Rank: m.Rank, Line: procs.SpawnRefused(err.Error())})
}

// programsLocated handles located: it places the ranks and sends Prepare.
func (r *run) programsLocated(l located) {
	switch by := &r.ranks[l.Rank]; {
	case l.err != nil:
		r.refuse(l.Spawn, l.err)
		return
	case r.outcome != nil || r.ending || r.phase != phaseRunning && r.phase != phaseStarting:
		r.refuse(l.Spawn, errJobEnds)
		return
	case by.exit != nil || r.groupOf(l.Rank).over || r.hosts[by.host].state == hostLost:
		return // no rank waits for the reply
	}
	g, err := r.newSpawned(l)
	if err != nil {
		r.refuse(l.Spawn, err)
		return
	}
	r.verbose("rank %s spawns group %d: %s", r.nameOfRank(l.Rank), g.id, plural(g.size, "rank"))
	if !g.prep.PerRank {
		r.node.Do(*g.prep)
		return
	}
	// The goroutine ends when the files are made; [run.close] waits for it.
	r.background.Go(func() { r.mail.post(outputReady{g, r.out.emptyFiles(g.id, g.size)}) })
}

// outputReady is a message to [run.control]: the files for the output of a group's ranks are made,
// or cannot be made.
type outputReady struct {
	group *group
	err   error
}

func (r *run) outputReady(m outputReady) {
	switch {
	case m.group.over:
	case m.err != nil:
		m.group.prep = nil // the hosts do not know the group
		r.dismiss(m.group, m.err)
	default:
		r.node.Do(*m.group.prep)
	}
}

// dismiss ends a spawned group that has not been started: the rank that has spawned it gets an
// error.
func (r *run) dismiss(g *group, err error) {
	if g.over {
		return
	}
	g.over, g.broken = true, true
	if g.prep != nil {
		r.node.Do(proto.Dismiss{Group: g.id})
	}
	r.refuse(g.request, err)
}

// dismissLost dismisses the spawned groups that have not been started, and that have ranks on hosts
// that are lost.
func (r *run) dismissLost() {
	for _, g := range r.groups[1:] {
		if g.over || g.phase >= phaseStarting {
			continue
		}
		for i, p := range g.plans {
			if len(p.Ranks) > 0 && r.hosts[i].state == hostLost {
				r.dismiss(g, fmt.Errorf("%s: %s", r.hosts[i].Name, r.hosts[i].cause))
				break
			}
		}
	}
}

// spawned runs when the hosts have started the ranks of a spawned group, or have failed to start
// one; f is not nil then. spawned answers the rank that called Spawn.
func (r *run) spawned(g *group, f *proto.StartFailure) {
	by := &r.ranks[g.by]
	switch {
	case f != nil:
		r.abandon(g)
		r.refuse(g.request, &startError{f.Code, f.Reason})
	case by.exit != nil || r.hosts[by.host].state == hostLost:
		r.abandon(g) // no rank knows of the group
	default:
		r.node.Do(proto.Reply{Rank: g.by, Line: g.reply})
	}
}

// abandon kills the ranks of a spawned group.
func (r *run) abandon(g *group) {
	g.broken = true
	r.node.Do(proto.End{Only: g.id, Except: -1})
}

// spawnReply returns the reply to a Spawn that has succeeded. started has, for each command, the
// number of processes that are started, and procs the number that was asked for. Without errcodes
// all have been started.
func spawnReply(procs, started []int) ([]byte, error) {
	answer := wire.NewPMI("spawn_result", "rc", "0")
	if !slices.Equal(procs, started) {
		var codes []string
		for i, n := range procs {
			for k := range n {
				code := 0
				if k >= started[i] {
					code = proto.ExitFailed
				}
				codes = append(codes, strconv.Itoa(code))
			}
		}
		answer.Fields = append(answer.Fields, wire.PMIField{Key: "errcodes", Value: strings.Join(codes, ",")})
	}
	return answer.Append(nil)
}
