package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/wire"
)

// Errors of Spawn, Publish, Unpublish and Lookup.
var (
	// ErrNoSpawn: the launcher of this process cannot start processes, and knows no services.
	ErrNoSpawn = errors.New("the launcher cannot start processes")
	ErrSpawn   = errors.New("spawn") // the launcher has not started the processes; the error says why

	ErrNoService     = errors.New("no such service")              // no process has published the service
	ErrServiceExists = errors.New("the service is there already") // a process has published the service
)

// Command is a program for Spawn to start.
type Command struct {
	// Path is the program: a path, or a name without a slash, which the launcher looks for as it
	// looks for the programs of the job. A relative path counts from Dir if Dir is set.
	Path string
	Args []string // arguments, without argument 0
	Dir  string   // working directory; "": the launcher chooses it, gorun that of the job
	// Env has variables, NAME=VALUE, in addition to those of the job. Only gorun supports it.
	Env   []string
	Procs int // number of processes, at least 1
	// Soft lists the numbers of processes that will do instead of Procs, in the form of MPI's info
	// key soft: numbers and triples first:last:step with commas between them (MPI-4.1 §11.8.4). ""
	// means that only Procs will do.
	Soft string
	// Info has further hints under the names of MPI-4.1 §11.8.4, such as host and path, and those of
	// the launcher. A launcher ignores the ones that it does not know.
	Info map[string]string
}

// The info keys by which Spawn passes the fields of Command on. InfoEnv is known to gorun only. Its
// value is NAME=VALUE, escaped by [url.QueryEscape]; it may occur several times.
const (
	InfoDir  = "wdir"
	InfoSoft = "soft"
	InfoEnv  = "weft_env"
)

// Spawn makes the launcher start processes, which form a World of their own: its ranks are those of
// the first command, then those of the second, and so on, and AppNum is the index of the command.
// The World of each has Spawned set, and its KVS has the pairs of preput from the start.
//
// codes has an element for each process that the commands ask for, in the same order: 0 for a
// process that was started, otherwise an exit code that says why not. If Command.Soft is not set,
// all elements are 0. If no process was started, Spawn returns an error that wraps ErrSpawn. Then
// none of the processes goes on.
//
// Spawn blocks until the launcher has answered. gorun answers when all processes have started, and
// not only when they have called Open; hydra answers earlier. If ctx ends before that, this process
// cannot use its launcher any more, except for Abort. Other calls to the launcher wait until Spawn
// returns, except Abort.
//
// Only ranks of gorun, mpiexec.hydra and other launchers with PMI-1 can call it. In other worlds the
// error wraps ErrNoSpawn.
func (w *World) Spawn(ctx context.Context, commands []Command, preput map[string]string) (codes []int, err error) {
	p, err := w.pmi()
	if err != nil {
		return nil, err
	}
	s := &wire.Spawn{}
	for _, c := range commands {
		sc, err := c.wire(p.gorun)
		if err != nil {
			return nil, err
		}
		s.Commands = append(s.Commands, sc)
	}
	for _, key := range slices.Sorted(maps.Keys(preput)) {
		if err := checkKV(key, preput[key]); err != nil {
			return nil, fmt.Errorf("spawn: %w", err)
		}
		s.Preput = append(s.Preput, wire.PMIField{Key: key, Value: preput[key]})
	}
	lines, err := s.Append(nil)
	if err != nil {
		return nil, err
	}
	m, err := p.callLines(ctx, "spawn", lines, "spawn_result")
	var refused *refusedError
	if errors.As(err, &refused) {
		reason := refused.reason
		if reason == "" {
			reason = "the launcher refused it: rc=" + refused.rc + " " + refused.msg
		}
		return nil, fmt.Errorf("%w: %s", ErrSpawn, reason)
	}
	if err != nil {
		return nil, err
	}
	codes = make([]int, s.Procs())
	text, ok := m.Get("errcodes")
	if !ok {
		return codes, nil // not every launcher sends them
	}
	list := strings.Split(text, ",")
	if len(list) != len(codes) {
		return nil, fmt.Errorf("%w: the launcher reports on %d processes instead of %d", ErrSpawn, len(list), len(codes))
	}
	for i, t := range list {
		if codes[i], err = strconv.Atoi(t); err != nil {
			return nil, fmt.Errorf("%w: the launcher reports errcodes=%s", ErrSpawn, text)
		}
	}
	return codes, nil
}

// wire returns the command in PMI-1's form. gorun says that the launcher is gorun.
func (c *Command) wire(gorun bool) (wire.SpawnCommand, error) {
	s := wire.SpawnCommand{Exec: c.Path, Args: c.Args, Procs: c.Procs}
	if c.Procs < 1 {
		return s, fmt.Errorf("%w: %d processes of %s", ErrSpawn, c.Procs, c.Path)
	}
	if c.Dir != "" {
		s.Info = append(s.Info, wire.PMIField{Key: InfoDir, Value: c.Dir})
	}
	if c.Soft != "" {
		s.Info = append(s.Info, wire.PMIField{Key: InfoSoft, Value: c.Soft})
	}
	if len(c.Env) > 0 && !gorun {
		return s, fmt.Errorf("%w with environment variables: only gorun takes them", ErrNoSpawn)
	}
	for _, kv := range c.Env {
		s.Info = append(s.Info, wire.PMIField{Key: InfoEnv, Value: url.QueryEscape(kv)})
	}
	for _, key := range slices.Sorted(maps.Keys(c.Info)) {
		s.Info = append(s.Info, wire.PMIField{Key: key, Value: c.Info[key]})
	}
	return s, nil
}

// Universe returns the number of processes that the hosts of the job have room for, those that run
// included (MPI_UNIVERSE_SIZE, MPI-4.1 §11.10.1): for gorun the number of their slots. ok is false
// if the launcher does not know it.
func (w *World) Universe(ctx context.Context) (size int, ok bool, err error) {
	p, err := w.pmi()
	if err != nil {
		return 0, false, err
	}
	m, err := p.call(ctx, wire.NewPMI("get_universe_size"), "universe_size")
	if err != nil {
		return 0, false, err
	}
	text, _ := m.Get("size")
	n, err := strconv.Atoi(text)
	return max(n, 0), err == nil && n > 0, nil
}

// Publish makes the launcher know the name of a service, so that Lookup in any process of the same
// launcher finds port under it (MPI-4.1 §11.9.4). Neither may contain spaces, backslashes or control
// bytes, and service may not be empty. gorun's services are those of one job with all processes that
// it has spawned; they end with the job. If the service is published already, the error wraps
// ErrServiceExists if the launcher is gorun.
func (w *World) Publish(ctx context.Context, service, port string) error {
	_, err := w.service(ctx, "publish", "service", service, "port", port)
	return err
}

// Unpublish ends what Publish has done. Any process may call it. If the service is not published,
// the error wraps ErrNoService.
func (w *World) Unpublish(ctx context.Context, service string) error {
	_, err := w.service(ctx, "unpublish", "service", service)
	return err
}

// Lookup returns the port that a process has published under service. If there is none, the error
// wraps ErrNoService. Lookup does not wait for one.
func (w *World) Lookup(ctx context.Context, service string) (port string, err error) {
	m, err := w.service(ctx, "lookup", "service", service)
	if err != nil {
		return "", err
	}
	port, ok := m.Get("port")
	if !ok {
		return "", fmt.Errorf("lookup %s: the launcher's reply has no port", service)
	}
	return port, nil
}

// service sends a request about the service kv[1]. verb is publish, unpublish or lookup.
func (w *World) service(ctx context.Context, verb string, kv ...string) (wire.PMIMessage, error) {
	p, err := w.pmi()
	if err != nil {
		return wire.PMIMessage{}, err
	}
	if kv[1] == "" {
		return wire.PMIMessage{}, fmt.Errorf("%s: the service has no name", verb)
	}
	m, err := p.call(ctx, wire.NewPMI(verb+"_name", kv...), verb+"_result")
	var refused *refusedError
	switch {
	case !errors.As(err, &refused):
		return m, err
	case refused.msg == "duplicate_service_name":
		return m, fmt.Errorf("publish %s: %w", kv[1], ErrServiceExists)
	case verb != "publish":
		return m, fmt.Errorf("%s %s: %w", verb, kv[1], ErrNoService)
	}
	return m, err
}

// pmi returns the PMI-1 client of a World. If the launcher does not speak PMI-1, the error wraps
// ErrNoSpawn.
func (w *World) pmi() (*pmiClient, error) {
	if p, ok := w.KVS.(*pmiClient); ok {
		return p, nil
	}
	how := "this process was not started by a launcher"
	if w.Launcher != alone {
		how = "the launcher is " + w.Launcher
	}
	return nil, fmt.Errorf("%w, nor does it know services: %s; start the job with gorun or mpiexec.hydra", ErrNoSpawn, how)
}
