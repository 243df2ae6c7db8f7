package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Spawn is PMI-1's request to start processes. The processes of all its commands form one group, in
// the order of the commands.
//
// On the wire each command is a block of lines:
//
//	mcmd=spawn
//	nprocs=2
//	execname=./worker
//	totspawns=1          number of blocks of the request
//	spawnssofar=1        number of this block, from 1 on
//	arg1=-v              arguments, without the name of the program
//	argcnt=1
//	preput_num=1         the same pairs in each block
//	preput_key_0=PORT
//	preput_val_0=tag#0$
//	info_num=1
//	info_key_0=wdir
//	info_val_0=/tmp
//	endcmd
//
// The reply to the last block answers the whole request.
type Spawn struct {
	Commands []SpawnCommand `json:"commands"`
	Preput   []PMIField     `json:"preput,omitempty"` // pairs that are in the group's key-value space from its start
}

// SpawnCommand is one program of a Spawn.
type SpawnCommand struct {
	Exec  string     `json:"exec"`
	Args  []string   `json:"args,omitempty"` // without argument 0
	Procs int        `json:"procs"`          // number of processes
	Info  []PMIField `json:"info,omitempty"` // may have several fields with one key
}

// The limits of a Spawn.
const (
	SpawnMaxBytes = 1 << 20 // all lines of a request
	SpawnMaxProcs = 1 << 24 // the processes of a request
	spawnMaxCount = 1 << 16 // the value of argcnt, preput_num, info_num and totspawns
)

// ErrSpawn is the error for a Spawn that is malformed, or that cannot be written.
var ErrSpawn = errors.New("pmi spawn")

func spawnError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrSpawn}, args...)...)
}

// Procs returns the number of processes of all commands.
func (s *Spawn) Procs() (n int) {
	for i := range s.Commands {
		n += s.Commands[i].Procs
	}
	return n
}

// Append appends the lines of a request to dst. If the request cannot be written, for example
// because an argument contains a newline, or does not fit into a line, Append returns dst unchanged
// and an error that wraps ErrSpawn.
func (s *Spawn) Append(dst []byte) ([]byte, error) {
	if len(s.Commands) == 0 {
		return dst, spawnError("no command")
	}
	w := spawnWriter{out: dst}
	for i := range s.Commands {
		c := &s.Commands[i]
		if c.Procs < 0 {
			return dst, spawnError("%d processes of %s", c.Procs, c.Exec)
		}
		if c.Exec == "" {
			return dst, spawnError("a command without a program")
		}
		w.out = append(w.out, "mcmd=spawn\n"...)
		w.put("nprocs", strconv.Itoa(c.Procs))
		w.put("execname", c.Exec)
		w.put("totspawns", strconv.Itoa(len(s.Commands)))
		w.put("spawnssofar", strconv.Itoa(i+1))
		for k, a := range c.Args {
			w.put("arg"+strconv.Itoa(k+1), a)
		}
		w.put("argcnt", strconv.Itoa(len(c.Args)))
		w.pairs("preput", s.Preput)
		w.pairs("info", c.Info)
		w.out = append(w.out, "endcmd\n"...)
	}
	if w.err != nil {
		return dst, w.err
	}
	if n := len(w.out) - len(dst); n > SpawnMaxBytes || s.Procs() > SpawnMaxProcs {
		return dst, spawnError("%d processes, %d bytes: at most %d and %d are possible", s.Procs(), n, SpawnMaxProcs, SpawnMaxBytes)
	}
	return w.out, nil
}

// spawnWriter writes the lines of a Spawn. err is the first error.
type spawnWriter struct {
	out []byte
	err error
}

func (w *spawnWriter) put(key, value string) {
	at := len(w.out)
	w.out = append(append(append(append(w.out, key...), '='), value...), '\n')
	switch {
	case w.err != nil:
	case strings.ContainsAny(value, "\n\x00"):
		w.err = spawnError("%s contains a newline or a zero byte: %q", key, value)
	case len(w.out)-at > PMIMaxLine:
		w.err = spawnError("%s has %d bytes, more than %d", key, len(value), PMIMaxLine-len(key)-2)
	}
}

func (w *spawnWriter) pairs(what string, list []PMIField) {
	w.put(what+"_num", strconv.Itoa(len(list)))
	for i, f := range list {
		w.put(what+"_key_"+strconv.Itoa(i), f.Key)
		w.put(what+"_val_"+strconv.Itoa(i), f.Value)
	}
}

// SpawnParser reads the lines of a Spawn one by one, as they arrive. The zero SpawnParser is ready
// for a request.
//
// It accepts any order of the lines of a block. If a request is malformed, it reads on to the end of
// the request, so that the sender gets one reply.
type SpawnParser struct {
	spawn  Spawn
	in     bool              // within a block, after the line mcmd=spawn
	fields map[string]string // of the block
	size   int               // bytes of the lines so far
	err    error             // the first error
}

// Begin reports whether the line begins a block. If so, the parser takes the lines up to endcmd.
func (p *SpawnParser) Begin(line []byte) bool {
	if p.in || string(bytes.TrimSpace(line)) != "mcmd=spawn" {
		return false
	}
	p.in, p.fields = true, make(map[string]string)
	return true
}

// Within reports whether the parser waits for further lines of a block.
func (p *SpawnParser) Within() bool { return p.in }

// Line takes a line of a block, without its newline. done means that the request is complete. Then
// Line returns the request, or the error of a malformed one, which wraps ErrSpawn, and the parser is
// ready for another request.
func (p *SpawnParser) Line(line []byte) (s *Spawn, done bool, err error) {
	p.size += len(line) + 1
	text := strings.TrimSuffix(string(line), "\r")
	if text != "endcmd" {
		p.field(text)
		return nil, false, nil
	}
	p.in = false
	last := p.block()
	p.fields = nil
	if !last {
		return nil, false, nil
	}
	spawn, err := p.spawn, p.err
	*p = SpawnParser{}
	if err != nil {
		return nil, true, err
	}
	return &spawn, true, nil
}

func (p *SpawnParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = spawnError(format, args...)
	}
}

// field takes a line key=value. The value may contain spaces.
func (p *SpawnParser) field(text string) {
	key, value, ok := strings.Cut(text, "=")
	switch {
	case p.size > SpawnMaxBytes:
		p.fail("more than %d bytes", SpawnMaxBytes)
		// Keep the two fields that say where the request ends.
		if ok && (key == "totspawns" || key == "spawnssofar") && len(p.fields) < 2*spawnMaxCount {
			p.fields[key] = value
		}
	case !ok || strings.IndexByte(text, 0) >= 0:
		p.fail("a line without a key: %q", text)
	default:
		p.fields[key] = value
	}
}

// block handles the end of a block. last means that it was the last block of the request, as far as
// the parser can find that out.
func (p *SpawnParser) block() (last bool) {
	total, at := p.number("totspawns", -1), p.number("spawnssofar", -1)
	if at != len(p.spawn.Commands)+1 || total < at {
		p.fail("spawnssofar=%s totspawns=%s in block %d", p.fields["spawnssofar"], p.fields["totspawns"], len(p.spawn.Commands)+1)
	}
	c := SpawnCommand{Exec: p.fields["execname"], Procs: p.number("nprocs", -1)}
	for i := range p.number("argcnt", 0) {
		c.Args = append(c.Args, p.value("arg"+strconv.Itoa(i+1)))
	}
	infos := "info_num"
	if _, ok := p.fields[infos]; !ok {
		infos = "infonum"
	}
	c.Info = p.pairs("info", infos)
	if c.Exec == "" {
		p.fail("no execname")
	}
	if c.Procs > SpawnMaxProcs-p.spawn.Procs() {
		p.fail("more than %d processes", SpawnMaxProcs)
	}
	if preput := p.pairs("preput", "preput_num"); len(p.spawn.Commands) == 0 {
		p.spawn.Preput = preput
	}
	if p.err != nil {
		c = SpawnCommand{} // only the number of commands counts now
	}
	p.spawn.Commands = append(p.spawn.Commands, c)
	// A wrong total must not make the sender wait for ever.
	return total < 0 || at < 0 || at >= total || len(p.spawn.Commands) >= total
}

// number returns the value of a field that is a number. If there is no such field, it returns def,
// or, if def is negative, records an error and returns def. The result is never above the limit of
// such a field.
func (p *SpawnParser) number(key string, def int) int {
	text, ok := p.fields[key]
	if !ok {
		if def < 0 {
			p.fail("no %s", key)
		}
		return def
	}
	n, err := strconv.Atoi(text)
	most := spawnMaxCount
	if key == "nprocs" {
		most = SpawnMaxProcs
	}
	if err != nil || n < 0 || n > most {
		p.fail("%s=%s", key, text)
		return def
	}
	return n
}

// value returns the value of a field that must exist.
func (p *SpawnParser) value(key string) string {
	v, ok := p.fields[key]
	if !ok {
		p.fail("no %s", key)
	}
	return v
}

func (p *SpawnParser) pairs(what, count string) (list []PMIField) {
	for i := range p.number(count, 0) {
		if p.err != nil {
			return nil
		}
		n := strconv.Itoa(i)
		list = append(list, PMIField{p.value(what + "_key_" + n), p.value(what + "_val_" + n)})
	}
	return list
}
