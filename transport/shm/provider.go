//go:build linux && !portable

package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

const memoryName = "weft-shm"

type provider struct {
	start uint64 // the position of the first message of every ring; the same in all ranks of a job
}

// New returns the provider "shm".
func New() transport.Provider { return provider{} }

func (provider) Name() string { return name }

// Open opens the domain. If cfg.Memory is set, the domain has joined the other ranks of
// the host when Open returns, and its address vectors hold all addresses from the start.
// Otherwise it joins them when the vector of its endpoint holds all addresses.
func (p provider) Open(cfg transport.Config) (transport.Domain, error) {
	if cfg.Size < 1 || cfg.Size > 1<<31-1 || cfg.Self < 0 || int(cfg.Self) >= cfg.Size {
		return nil, fmt.Errorf("shm: open: rank %d of %d: %w", cfg.Self, cfg.Size, transport.ErrAddress)
	}
	d := &domain{
		cfg:       cfg,
		rank:      cfg.Self,
		size:      cfg.Size,
		job:       wire.ShmJob{Secret: cfg.Secret, JobID: cfg.JobID},
		start:     p.start,
		wholeLeft: busyRings,
		peers:     make([]*peer, cfg.Size),
		inherited: cfg.Memory != nil,
	}
	d.fdWaiter.fd = -1
	var err error
	if cfg.NoMemory != "" {
		return nil, fmt.Errorf("shm: open: %w: %s", transport.ErrUnavailable, cfg.NoMemory)
	}
	if d.inherited {
		err = d.openInherited(cfg.Memory, cfg.Locals)
	} else {
		err = d.openOwn()
	}
	if err != nil {
		_ = d.Close() // the first error says more
		return nil, fmt.Errorf("shm: open: %w", err)
	}
	return d, nil
}

// openInherited joins the ranks that inherited the memory file from the launcher.
func (d *domain) openInherited(memory *os.File, locals []transport.Addr) error {
	ascend := true
	for i := range locals[min(1, len(locals)):] {
		ascend = ascend && locals[i] < locals[i+1]
	}
	if !ascend || !slices.Contains(locals, d.rank) || locals[0] < 0 || int(locals[len(locals)-1]) >= d.size {
		return fmt.Errorf("rank %d of %d: invalid ranks of this host %v: %w", d.rank, d.size, locals, transport.ErrAddress)
	}
	file, err := duplicate(memory)
	if err != nil {
		return err
	}
	d.file = file
	d.setLimits(len(locals))
	return d.join(file, locals, nil)
}

// openOwn makes a memory file. Other ranks can find it by this rank's address.
func (d *domain) openOwn() error {
	file, err := newMemory()
	if err != nil {
		return err
	}
	d.file = file
	d.setLimits(min(d.size, maxLocals))
	d.address, err = newAddress(&d.job, int(d.rank), file)
	return err
}

// setLimits sets the limits that the domain's attributes report. locals is the number of ranks on
// the host or, if that is not known yet, the largest possible number.
func (d *domain) setLimits(locals int) {
	d.maxMsg = maxMessage(ringLines(locals))
	trial := noKernelCopy
	if d.singleCopy() {
		trial = kernelCopyTime()
	}
	d.eager = eagerLimit(trial, ringLines(locals)*lineSize)
	d.deaths = robustFutexes()
}

// newMemory makes an empty memory file. The caller closes it.
func newMemory() (*os.File, error) {
	f, err := sys.MemoryFile(memoryName)
	if errors.Is(err, sys.ErrNoMemoryFiles) {
		return nil, fmt.Errorf("%w: %w", transport.ErrUnavailable, err)
	}
	return f, err
}

// duplicate returns a new descriptor of the memory file f.
func duplicate(f *os.File) (*os.File, error) {
	c, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	err = c.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return nil, fmt.Errorf("duplicate the memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), memoryName), nil
}
