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

// resolveHosts sets Hosts from the first of these that is given: -hostfile, [[host]] or
// launcher.hostfile of the job file, the variable of -hostfile. With -hostfile, -host selects some
// of its hosts. Without it, -host replaces the list. The list then only gives the slots, user, port
// and address that -host leaves out.
func (j *Job) resolveHosts(line *commandLine, file *jobFile) error {
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

// ApplySlots sets the slots of hosts that the user does not name, such as those of an allocation.
// Slots from a flag override the slots in list. Slots from elsewhere only apply to hosts without
// slots.
func (j *Job) ApplySlots(list []hosts.Host) { j.applySlots(list, nil) }

// applySlots is ApplySlots for hosts of -host, too: flag holds what -host says about each host of
// list.
func (j *Job) applySlots(list, flag []hosts.Host) {
	over := j.Source[slotsKey] == params.FromFlag
	for i := range list {
		h := &list[i]
		given := h.Slots > 0 && (!over || flag != nil && flag[i].Slots > 0)
		if given || j.Slots == 0 {
			continue
		}
		if h.Slots = j.Slots; h.MaxSlots > 0 {
			h.Slots = min(h.Slots, h.MaxSlots)
		}
	}
}

// listedHosts returns the hosts of the job file or the hostfile, their source, and the name of the
// file for messages.
func (j *Job) listedHosts(line *commandLine, file *jobFile) (list []hosts.Host, from params.Source, where string, err error) {
	from = j.Source[hostfileKey]
	if from != params.FromFlag && file != nil && len(file.hosts) > 0 {
		j.Hostfile = "" // the variable gave it, and [[host]] overrides the variable
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

// relative returns the path of a file whose name in the job file is relative to the job file's
// directory.
func (f *jobFile) relative(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(f.Name), name)
}
