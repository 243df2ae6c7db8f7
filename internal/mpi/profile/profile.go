// Package profile makes the profiles of a rank that gorun -profile asks for.
package profile

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"

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
	if k.name == "heap" {
		runtime.GC() // the profile shows the heap as the last garbage collection has left it
	}
	var b bytes.Buffer
	err := pprof.Lookup(k.name).WriteTo(&b, 0)
	_ = k.file.Truncate(k.begin)
	_ = k.write(wire.ProfileBegun, nil)
	k.finish(&b, err)
}

// finish writes the last frame of a profile: the profile in b or, if err is not nil or the profile
// cannot be written, the reason why there is none.
func (k *kind) finish(b *bytes.Buffer, err error) {
	if err == nil && b.Len() > wire.ProfileMax {
		err = fmt.Errorf("it has %d bytes, more than %d", b.Len(), wire.ProfileMax)
	}
	if err == nil {
		err = k.write(wire.ProfileData, b.Bytes())
	}
	if err != nil {
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
