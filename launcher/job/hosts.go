package job

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

const (
	hostfileKey = "launcher.hostfile"
	hostKey     = "host"
	slotsKey    = "job.slots"
	stacksKey   = "job.stacks_dir"
)

// resolveHosts makes Hosts of all that names hosts. The first of these counts:
// -hostfile, [[host]] or launcher.hostfile of the job file, the variable of
// -hostfile. Of a hostfile of the command line -host picks some; over the others
// it counts, and they only fill in what it leaves open.
func (j *Job) resolveHosts(line *commandLine, file *File) error {
	list, from, where, err := j.listedHosts(line, file)
	if err != nil {
		return err
	}
	list = hosts.Unify(list)
	var some []hosts.Host
	if len(line.hosts) > 0 {
		if some, err = hosts.ParseList(strings.Join(line.hosts, ",")); err != nil {
			return usage("-host", "%s", err)
		}
		some = hosts.Unify(some)
		pick := hosts.Override
		if from == params.FromFlag {
			pick = hosts.Restrict
		}
		if list, err = pick(list, some, where); err != nil {
			return usage("-host", "%s", err)
		}
		from = params.FromFlag
	}
	if len(list) == 0 {
		return nil
	}
	j.applySlots(list, some)
	j.Hosts, j.Source[hostKey] = list, from
	if len(list) == 1 && list[0].Slots > 0 && list[0].Slots != j.Slots && hosts.IsLocal(list[0].Name) {
		j.Slots, j.Source[slotsKey] = list[0].Slots, from
	}
	return nil
}

// ApplySlots lays Slots over hosts that the user does not name, such as those of
// an allocation: those of a flag count more than what is said of a host, and
// others less.
func (j *Job) ApplySlots(list []hosts.Host) { j.applySlots(list, nil) }

// applySlots also knows what -host says of the hosts, in their order.
func (j *Job) applySlots(list, flag []hosts.Host) {
	over := j.Source[slotsKey] == params.FromFlag
	for i := range list {
		h := &list[i]
		said := h.Slots > 0 && (!over || flag != nil && flag[i].Slots > 0)
		if said || j.Slots == 0 {
			continue
		}
		if h.Slots = j.Slots; h.MaxSlots > 0 {
			h.Slots = min(h.Slots, h.MaxSlots)
		}
	}
}

// listedHosts returns the hosts of a file, and what that is called.
func (j *Job) listedHosts(line *commandLine, file *File) (list []hosts.Host, from params.Source, where string, err error) {
	from = j.Source[hostfileKey]
	if from != params.FromFlag && file != nil && len(file.hosts) > 0 {
		j.Hostfile = "" // of a variable
		delete(j.Source, hostfileKey)
		return file.hosts, params.FromFile, file.Name, nil
	}
	if j.Hostfile == "" {
		return nil, "", "", nil
	}
	f, err := os.Open(j.Hostfile)
	if err != nil {
		return nil, "", "", j.wrong(line, file, hostfileKey, "expected a hostfile, found "+found(j.Hostfile, err))
	}
	defer func() { _ = f.Close() }()
	if list, err = hosts.ReadFile(j.Hostfile, f); err != nil {
		return nil, "", "", j.wrong(line, file, hostfileKey, err.Error())
	}
	return list, from, j.Hostfile, nil
}

// relative is where a file is that a job file names as one that is beside it.
func (f *File) relative(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(f.Name), name)
}
