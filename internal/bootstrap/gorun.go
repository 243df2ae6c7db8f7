package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openNative opens the World of a rank that gorun has started. It returns nil if there is no job
// card, or if the card was meant for another process. The latter is so if gorun has started an
// ancestor of this process, for example another launcher, whose children inherit its descriptors.
func openNative(ctx context.Context, getenv func(string) string) (*World, error) {
	fd, err := strconv.Atoi(getenv(EnvJobFD))
	if err != nil {
		return nil, nil
	}
	card, err := readCard(fd)
	if errors.Is(err, errNotCard) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !card.matchesEnv(getenv) {
		return nil, nil
	}
	set, err := card.params()
	if err != nil {
		return nil, err
	}
	rank, err := strconv.Atoi(getenv(EnvRank))
	if err != nil || rank < 0 || rank >= card.Size {
		return nil, fmt.Errorf("%s=%q in a job of %d ranks", EnvRank, getenv(EnvRank), card.Size)
	}
	ctl, ok := streamSocket(getenv("PMI_FD"))
	if !ok {
		return nil, fmt.Errorf("PMI_FD=%q is not the control channel", getenv("PMI_FD"))
	}
	w := &World{
		Rank: rank, Size: card.Size,
		AppNum: valueAt(card.AppNums, rank), AppOf: expand(card.AppNums, card.Size), HostOf: expand(card.HostOf, card.Size),
		JobID: card.JobID, Secret: [32]byte(card.Secret), Launcher: native, Params: set,
		Names: card.Names, Slots: card.Slots, Cores: card.Cores, Hosts: card.Hosts, BasePort: card.BasePort, Addrs: card.Addrs, Epoch: card.Epoch,
		Spawned: card.Group > 0,
	}
	listen, again := -1, false
	if text := getenv(EnvListenFD); text != "" {
		if listen, again, ok = listenSocket(text); !ok {
			return nil, fmt.Errorf("%s=%q is not a listening socket", EnvListenFD, text)
		}
	}
	if card.Memory != 0 && !memoryFile(card.Memory) {
		return nil, fmt.Errorf("descriptor %d is not the job's memory file", card.Memory)
	}
	if card.Failures != 0 && !channel(card.Failures) {
		return nil, fmt.Errorf("descriptor %d is not the channel of gorun's failure reports", card.Failures)
	}
	if card.Inspect != 0 && !channel(card.Inspect) {
		return nil, fmt.Errorf("descriptor %d is not the channel on which gorun asks what the rank does", card.Inspect)
	}
	if card.Record != 0 && !memoryFile(card.Record) {
		return nil, fmt.Errorf("descriptor %d is not the memory file for the ranks' records", card.Record)
	}
	for _, f := range card.Files {
		if !rankFile(f.FD) {
			return nil, fmt.Errorf("descriptor %d is not the file %q that gorun reads after the rank has ended", f.FD, f.Name)
		}
	}
	kvs := &pmiClient{conn: &lineConn{fd: ctl}, name: card.KVSName, gorun: true}
	if err := kvs.init(ctx); err != nil {
		return nil, err
	}
	switch {
	case kvs.reused && card.Memory == 0:
		// NoMemory stays empty: a later program of a rank uses no memory file on any host, so the
		// lack of one is no property of this host.
	case card.Memory == 0:
		w.NoMemory = card.NoMemory
	case kvs.reused: // the memory file holds the data of the program that ran in this rank before
		_ = unix.Close(card.Memory)
	default:
		unix.CloseOnExec(card.Memory)
		w.Memory = os.NewFile(uintptr(card.Memory), memoryName(card.JobID))
	}
	if again { // wait until all ranks listen again, so that no rank connects too early
		if err := kvs.Fence(ctx); err != nil {
			return nil, err
		}
	}
	if card.Failures != 0 {
		if w.Failures, err = channelFile(card.Failures, "failure reports"); err != nil {
			return nil, err
		}
	}
	if card.Inspect != 0 {
		if w.Inspect, err = channelFile(card.Inspect, "inspection"); err != nil {
			return nil, err
		}
	}
	if card.Record != 0 {
		unix.CloseOnExec(card.Record)
		w.Record, w.RecordBits = os.NewFile(uintptr(card.Record), "records"), card.RecordBits
	}
	for _, f := range card.Files {
		unix.CloseOnExec(f.FD)
		if w.Files == nil {
			w.Files = make(map[string]*os.File)
		}
		w.Files[f.Name] = os.NewFile(uintptr(f.FD), f.Name)
	}
	if listen >= 0 {
		unix.CloseOnExec(listen)
		w.Listener = os.NewFile(uintptr(listen), "listener")
	}
	unix.CloseOnExec(ctl)
	_ = unix.Close(fd) // the card was read
	w.KVS = kvs
	return w, nil
}

// rankFile reports whether fd can be a file that gorun reads after the rank has ended: a regular file
// without a name that is open for writing.
func rankFile(fd int) bool {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY && unix.Fstat(fd, &st) == nil &&
		st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0
}

// matchesEnv reports whether the variables of PMI-1 and of other launchers are as gorun has set them.
// They are not if gorun has started another launcher and that launcher has started this process.
func (c *Card) matchesEnv(getenv func(string) string) bool {
	for _, name := range []string{"PMI_PORT", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"} {
		if getenv(name) != "" {
			return false // gorun removes these variables from the environment of ranks
		}
	}
	return getenv("PMI_FD") == strconv.Itoa(c.Control) && getenv("PMI_SIZE") == strconv.Itoa(c.Size) &&
		getenv("PMI_RANK") == getenv(EnvRank)
}
