package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// The environment variables by which gorun tells a process its rank and where to find the job card.
// The job card holds everything else. The secret is never in the environment or in argv, because
// other users may be able to read these.
const (
	EnvRank     = "WEFT_RANK"      // the rank, in decimal digits
	EnvJobFD    = "WEFT_JOB_FD"    // number of the inherited descriptor of the job card
	EnvListenFD = "WEFT_LISTEN_FD" // number of the inherited listening TCP socket; absent: none
	// The job's id, by which gorun recognizes the job's processes. It is not a secret.
	EnvJobID = "WEFT_JOB_ID"
	EnvEpoch = "WEFT_EPOCH" // Card.Epoch in decimal digits, for programs that do not read the card
)

// The job card is the description of the job (see Card) in one sealed memory file that all ranks of a
// host inherit. No process can change the file. The ranks read it by pread(2), because they share the
// file's position. If the system has no memory files, the card is a file without a name, which the
// ranks can only read. The file contains:
//
//	0        8
//	┌────────┬──────────────────────────┐
//	│weftjob1│ JSON: Card               │
//	└────────┴──────────────────────────┘
const (
	cardMagic    = "weftjob1"
	cardVersion  = 1
	cardMaxBytes = 256 << 20
	cardSeals    = sys.SealSeal | sys.SealShrink | sys.SealGrow | sys.SealWrite
	maxSize      = 1 << 24 // largest number of ranks of a job
)

// errNotCard is the error for a descriptor that is not a job card of gorun.
var errNotCard = errors.New("not a job card")

// Card is the description of a job that gorun gives to every rank. A field without a comment means
// what the field of this name means in World.
type Card struct {
	Version int    `json:"version"` // cardVersion
	JobID   string `json:"job"`
	Secret  []byte `json:"secret"` // 32 bytes
	Size    int    `json:"size"`
	KVSName string `json:"kvs"`     // name of the key-value space of PMI-1
	Control int    `json:"control"` // number of the PMI-1 descriptor, the same in every rank
	// The number of the descriptor of the memory file, the same in every rank; 0: there is no
	// memory file.
	Memory int `json:"memory,omitempty"`
	// Why the ranks of this host have no memory file although ranks of other hosts may have one. It
	// is empty if they have one, or if no rank of the job has one.
	NoMemory string `json:"no_memory,omitempty"`
	// The number of the descriptor on which gorun reports failures. It is the same in every rank,
	// but each rank has a socket of its own. 0: gorun does not report failures.
	Failures int `json:"news,omitempty"`
	// The number of the descriptor on which gorun asks what the rank does. It is the same in every
	// rank, but each rank has a socket of its own. 0: gorun does not ask.
	Inspect int `json:"inspect,omitempty"`
	// The number of the descriptor of the memory file for the records of the host's ranks, the same in
	// every rank; 0: there is none. RecordBits is World.RecordBits.
	Record     int `json:"record,omitempty"`
	RecordBits int `json:"record_bits,omitempty"`
	// The files that gorun reads after the rank has ended. Their descriptors have the same numbers in
	// every rank, but each rank has files of its own.
	Files []CardFile `json:"files,omitempty"`
	Epoch int        `json:"epoch,omitempty"` // number of restarts of the job
	// The number of the group among the groups of the job: 0 for the ranks that gorun itself starts,
	// and numbers from 1 on for processes that ranks have spawned.
	Group int `json:"group,omitempty"`
	// The number of the host of each rank. Hosts are numbered from 0 without gaps.
	HostOf   []Run       `json:"nodes"`
	AppNums  []Run       `json:"apps"`            // the number of each rank's program
	Names    []string    `json:"names,omitempty"` // the host name of each host; empty: not known
	Slots    int         `json:"slots,omitempty"` // 0: not known
	Cores    int         `json:"cores"`           // hardware threads of this host, which its ranks share
	Hosts    []string    `json:"hosts,omitempty"` // if BasePort is set: the address of each host
	BasePort int         `json:"base_port,omitempty"`
	Addrs    []string    `json:"addrs,omitempty"`
	Params   []CardParam `json:"params,omitempty"` // the parameters that the user or gorun has set
}

// Run is a sequence of Count ranks that have the same Value.
type Run struct {
	Value int `json:"v"`
	Count int `json:"n"`
}

// CardFile is a file that gorun reads after the rank has ended.
type CardFile struct {
	Name string `json:"name"` // what the rank writes to the file, for example "cpu"
	FD   int    `json:"fd"`
}

// CardParam is a parameter that was set, and the source of its value.
type CardParam struct {
	Key    string        `json:"key"`
	Text   string        `json:"text"`
	Source params.Source `json:"source"`
}

// Runs returns a short form of a list that has a value for each rank: its runs of equal values.
func Runs(values []int) []Run {
	var runs []Run
	for _, v := range values {
		if n := len(runs); n > 0 && runs[n-1].Value == v {
			runs[n-1].Count++
			continue
		}
		runs = append(runs, Run{v, 1})
	}
	return runs
}

// expand is the reverse of Runs: it returns a value for each of the size ranks. The runs have passed
// Card.check, which limits their number of ranks.
func expand(runs []Run, size int) []int {
	values := make([]int, 0, size)
	for _, r := range runs {
		for range r.Count {
			values = append(values, r.Value)
		}
	}
	return values
}

// valueAt returns the value of rank i. The runs have passed Card.check, so there is one.
func valueAt(runs []Run, i int) int {
	for _, r := range runs {
		if i < r.Count {
			return r.Value
		}
		i -= r.Count
	}
	return 0
}

// CardParams returns those parameters of s that the user or gorun has set, without the defaults.
func CardParams(s *params.Set) []CardParam {
	if s == nil {
		return nil
	}
	var list []CardParam
	for _, key := range s.Explicit() {
		v := s.Get(key)
		list = append(list, CardParam{key, v.Text, v.Source})
	}
	return list
}

// Seal writes the card to a file without a name. If the system has memory files, Seal seals the
// file, and no process can change it. Otherwise the returned file is open for reading only, and no
// process can change the file through it. But a process of the same user can change the file if it
// opened the file before Seal removed the file's name. The caller closes the file. The descriptor has
// FD_CLOEXEC; the caller clears the flag in the children that inherit the file.
func (c *Card) Seal() (*os.File, error) {
	c.Version = cardVersion
	if err := c.check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("job card: %w", err)
	}
	data := append([]byte(cardMagic), text...)
	f, err := sys.MemoryFile("weft-job")
	if errors.Is(err, sys.ErrNoMemoryFiles) {
		return readOnly(data)
	}
	if err != nil {
		return nil, fmt.Errorf("job card: %w", err)
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("job card: %w", err)
	}
	if err := sys.AddSeals(int(f.Fd()), cardSeals); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("job card: seal: %w", err)
	}
	return f, nil
}

// readOnly returns a file with this data. The file has no name, and is open for reading only.
func readOnly(data []byte) (*os.File, error) {
	w, err := os.CreateTemp("", "weft-job-*") // readable and writable by its user only
	if err != nil {
		return nil, fmt.Errorf("job card: %w", err)
	}
	_, err = w.Write(data)
	err = errors.Join(err, w.Close())
	f, oerr := os.Open(w.Name())
	if err = errors.Join(err, oerr, os.Remove(w.Name())); err != nil {
		if f != nil {
			_ = f.Close()
		}
		return nil, fmt.Errorf("job card: %w", err)
	}
	return f, nil
}

// unchangeable reports whether no process can change a file through the descriptor fd: it is a memory
// file with all of cardSeals, or a file without a name that is open for reading only.
func unchangeable(fd int) bool {
	if seals, err := sys.Seals(fd); err == nil && seals&cardSeals == cardSeals {
		return true
	}
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY && unix.Fstat(fd, &st) == nil &&
		st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0
}

// readCard reads the card from the descriptor fd, whose number comes from an environment variable.
// So it may be any descriptor or none. If fd is not a job card, the error is errNotCard. If fd is a
// job card with invalid content, readCard returns another error. readCard does not move the file's
// position.
func readCard(fd int) (*Card, error) {
	if fd < 0 {
		return nil, errNotCard
	}
	if !unchangeable(fd) {
		return nil, errNotCard
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size < int64(len(cardMagic)) || st.Size > cardMaxBytes {
		return nil, errNotCard
	}
	data := make([]byte, st.Size)
	for done := 0; done < len(data); {
		n, err := unix.Pread(fd, data[done:], int64(done))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("job card: %w", err)
		}
		if n == 0 {
			return nil, errNotCard
		}
		done += n
	}
	return parseCard(data)
}

// MemoryFile makes the empty memory file that the ranks of a job on one host share. The file has no
// name in any file system. The caller closes it. The descriptor has FD_CLOEXEC; the caller clears the
// flag in the children that inherit the file. If the host has no memory files, the error wraps
// [sys.ErrNoMemoryFiles].
func MemoryFile(jobID string) (*os.File, error) { return sys.MemoryFile(memoryName(jobID)) }

func memoryName(jobID string) string { return "weft-" + jobID }

// memoryFile reports whether a descriptor is a writable memory file whose size can still be set and
// sealed, or has been sealed.
func memoryFile(fd int) bool {
	const sized = sys.SealShrink | sys.SealGrow
	seals, err := sys.Seals(fd)
	if err != nil || seals&sys.SealSeal != 0 && seals&sized != sized || seals&(sys.SealWrite|sys.SealFutureWrite) != 0 {
		return false // fails also for a file of tmpfs, which has SealSeal and no other seal
	}
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0
}

func parseCard(data []byte) (*Card, error) {
	text, ok := bytes.CutPrefix(data, []byte(cardMagic))
	if !ok {
		return nil, errNotCard
	}
	c := &Card{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("job card: %w", err)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Card) check() error {
	switch {
	case c.Version != cardVersion:
		return fmt.Errorf("job card: version %d, but this program reads version %d: build the program and gorun from the same source", c.Version, cardVersion)
	case c.Size < 1 || c.Size > maxSize:
		return fmt.Errorf("job card: %d ranks", c.Size)
	case c.JobID == "" || len(c.JobID) > 64:
		return errors.New("job card: no job id")
	case len(c.Secret) != len(World{}.Secret):
		return fmt.Errorf("job card: secret of %d bytes", len(c.Secret))
	case c.Memory < 0:
		return fmt.Errorf("job card: memory file %d", c.Memory)
	case c.Failures < 0:
		return fmt.Errorf("job card: failure reports on descriptor %d", c.Failures)
	case c.Inspect < 0:
		return fmt.Errorf("job card: inspection on descriptor %d", c.Inspect)
	case c.Record < 0 || c.RecordBits < 0 || c.RecordBits > 32:
		return fmt.Errorf("job card: record on descriptor %d, of size %d", c.Record, c.RecordBits)
	case c.Group < 0:
		return fmt.Errorf("job card: group %d", c.Group)
	case c.Epoch < 0:
		return fmt.Errorf("job card: epoch %d", c.Epoch)
	case c.Slots < 0:
		return fmt.Errorf("job card: %d slots", c.Slots)
	case len(c.Addrs) != 0 && len(c.Addrs) != c.Size:
		return fmt.Errorf("job card: %d addresses for %d ranks", len(c.Addrs), c.Size)
	case c.BasePort < 0 || c.BasePort > 65535:
		return fmt.Errorf("job card: base port %d", c.BasePort)
	}
	for _, f := range c.Files {
		if f.FD < 1 {
			return fmt.Errorf("job card: file %q on descriptor %d", f.Name, f.FD)
		}
	}
	for _, runs := range [][]Run{c.HostOf, c.AppNums} {
		n := 0
		for _, r := range runs {
			if r.Value < 0 || r.Value >= c.Size || r.Count < 1 || r.Count > c.Size-n {
				return fmt.Errorf("job card: %d consecutive ranks with host or program %d", r.Count, r.Value)
			}
			n += r.Count
		}
		if n != c.Size {
			return fmt.Errorf("job card: hosts or programs of %d instead of %d ranks", n, c.Size)
		}
	}
	for _, r := range c.HostOf {
		if len(c.Names) > 0 && r.Value >= len(c.Names) {
			return fmt.Errorf("job card: no name of host %d", r.Value)
		}
	}
	if c.BasePort == 0 {
		return nil
	}
	ports := make([]int, len(c.Hosts))
	for _, r := range c.HostOf {
		if r.Value >= len(ports) {
			return fmt.Errorf("job card: no address of host %d", r.Value)
		}
		if ports[r.Value] += r.Count; ports[r.Value] > 65536-c.BasePort {
			return fmt.Errorf("job card: base port %d for %d ranks on host %d", c.BasePort, ports[r.Value], r.Value)
		}
	}
	return nil
}

// params returns the parameters in the card: those that the user or gorun has set.
func (c *Card) params() (*params.Set, error) {
	s := &params.Set{}
	for _, p := range c.Params {
		if err := s.Set(p.Key, p.Text, p.Source); err != nil {
			return nil, fmt.Errorf("job card: %w", err)
		}
	}
	return s, nil
}
