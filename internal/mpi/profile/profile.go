// Package profile makes the profiles of a rank that gorun asks for: those of -profile (Profiler), and single ones
// while the rank runs (Take).
package profile

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
)

// The rates of the profiles of events. They keep the cost small in programs with many such events.
// The runtime scales what it records to estimates of the true sums.
const (
	blockRate     = 10_000 // the block profile has one event for each blockRate ns of waiting
	mutexFraction = 10     // the mutex profile has one of mutexFraction events
)

// Profiler makes profiles and writes them to files, in the frames of wire.AppendProfile. Its methods
// may run at the same time. They do nothing for a nil Profiler.
//
//	Start ─► ProfileBegun ── Stop ─► ProfileData ── Resume ─► ProfileBegun ── Stop ─► … Close
type Profiler struct {
	kinds []*kind

	mu      sync.Mutex // guards the fields below, and those of kinds
	running bool
	closed  bool
}

// kind is a kind of profile, and its file. If a profile cannot be written, its last frame says so, or
// is ProfileBegun. So gorun reports the loss, and the Profiler returns no errors.
type kind struct {
	name string
	file *os.File
	// begin is the offset of the frames of this process, behind those of earlier processes of the
	// rank. A profile that counts from the beginning of the process replaces these frames.
	begin int64
	cpu   *bytes.Buffer // the CPU profile under way; nil: none
	err   error         // why the CPU profile could not be started
}

// Start begins the profiles whose files are in files, by name. It removes these files from files, and
// leaves others. If there are none, it returns nil.
func Start(files map[string]*os.File) *Profiler {
	p := &Profiler{}
	for _, name := range wire.ProfileKinds {
		f := files[name]
		if f == nil {
			continue
		}
		delete(files, name)
		k := &kind{name: name, file: f}
		if st, err := f.Stat(); err == nil {
			k.begin = st.Size()
		}
		switch name {
		case "block":
			runtime.SetBlockProfileRate(blockRate)
		case "mutex":
			if runtime.SetMutexProfileFraction(-1) == 0 { // the program has not set it
				runtime.SetMutexProfileFraction(mutexFraction)
			}
		}
		p.kinds = append(p.kinds, k)
	}
	if len(p.kinds) == 0 {
		return nil
	}
	p.Resume()
	return p
}

// Resume continues the profiles after Stop. In between, no CPU profile is made.
func (p *Profiler) Resume() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running || p.closed {
		return
	}
	p.running = true
	for _, k := range p.kinds {
		_ = k.write(wire.ProfileBegun, nil)
		if k.name == "cpu" {
			k.cpu = new(bytes.Buffer)
			if k.err = pprof.StartCPUProfile(k.cpu); k.err != nil {
				k.cpu = nil
			}
		}
	}
}

// Stop writes the profiles to their files. It blocks until that is done, which takes up to a few
// tenths of a second for a CPU profile.
func (p *Profiler) Stop() {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stop()
	}
}

// stop does what Stop does. The caller holds mu.
func (p *Profiler) stop() {
	if !p.running {
		return
	}
	p.running = false
	for _, k := range p.kinds {
		switch {
		case k.name != "cpu":
			k.snapshot()
		case k.cpu != nil:
			pprof.StopCPUProfile()
			k.finish(k.cpu, nil)
			k.cpu = nil
		default:
			k.finish(nil, fmt.Errorf("its program makes a CPU profile itself: %w", k.err))
		}
	}
}

// Close does what Stop does, and ends the Profiler. It is idempotent.
func (p *Profiler) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
	p.closed = true
	for _, k := range p.kinds {
		_ = k.file.Close()
	}
}

// snapshot writes a profile that counts from the beginning of the process.
func (k *kind) snapshot() {
	b, err := count(k.name)
	_ = k.file.Truncate(k.begin)
	_ = k.write(wire.ProfileBegun, nil)
	k.finish(b, err)
}

// count returns a profile of a kind that counts from the beginning of the process, or shows one moment.
func count(name string) (*bytes.Buffer, error) {
	if name == "heap" {
		runtime.GC() // the profile shows the heap as the last garbage collection has left it
	}
	b := new(bytes.Buffer)
	return b, pprof.Lookup(name).WriteTo(b, 0)
}

// Take makes one profile of a kind in wire.ProfileKinds while the program runs, and returns its frames, as a
// Profiler writes them. A CPU profile takes the time d, or until stop is closed. Only one CPU profile can be made
// at a time in a process.
func Take(name string, d time.Duration, stop <-chan struct{}) []byte {
	var b *bytes.Buffer
	var err error
	if name == "cpu" {
		b = new(bytes.Buffer)
		if err = pprof.StartCPUProfile(b); err == nil {
			select {
			case <-time.After(d):
			case <-stop:
			}
			pprof.StopCPUProfile()
		} else {
			err = fmt.Errorf("its program, or gorun -profile, makes a CPU profile: %w", err)
		}
	} else {
		b, err = count(name)
	}
	frame, body := last(b, err)
	return wire.AppendProfile(wire.AppendProfile(nil, wire.ProfileBegun, nil), frame, body)
}

// last returns the last frame of a profile: the profile in b or, if err is not nil or the profile is too long, the
// reason why there is none.
func last(b *bytes.Buffer, err error) (frame byte, body []byte) {
	if err == nil && b.Len() > wire.ProfileMax {
		err = fmt.Errorf("it has %d bytes, more than %d", b.Len(), wire.ProfileMax)
	}
	if err != nil {
		return wire.ProfileFailed, []byte(err.Error())
	}
	return wire.ProfileData, b.Bytes()
}

// finish writes the last frame of a profile: see last. If that cannot be written, it writes the reason.
func (k *kind) finish(b *bytes.Buffer, err error) {
	frame, body := last(b, err)
	if err := k.write(frame, body); err != nil {
		_ = k.write(wire.ProfileFailed, []byte(err.Error()))
	}
}

// write appends a frame to the file. If that fails, the file is as before.
func (k *kind) write(frame byte, body []byte) error {
	st, err := k.file.Stat()
	if err != nil {
		return err
	}
	if _, err = k.file.WriteAt(wire.AppendProfile(nil, frame, body), st.Size()); err != nil {
		_ = k.file.Truncate(st.Size())
	}
	return err
}
