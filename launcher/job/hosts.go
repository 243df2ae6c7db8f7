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
	statsDirKey = "job.stats_dir"
)

// resolveHosts sets j.Hosts. The user can give a list of hosts. It comes from the first of these
// that is given: -hostfile; [[host]] or launcher.hostfile in the job file; the environment variable
// of launcher.hostfile. If the user does not give -host, the job runs on the hosts of the list.
// Otherwise it runs on the hosts of -host. What -host does not say about a host, its slots, user,
// port and address, then comes from the list, if the list has the host. If the list is that of
// -hostfile, -host may name only hosts of the list. If this machine is the only host, resolveHosts
// also sets j.Slots to its slots.
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

// ApplySlots sets Slots in list to j.Slots, for hosts that do not come from the user, such as those
// of an allocation. If j.Slots comes from a flag, it overrides the slots in list. Otherwise it
// applies only to hosts without slots. If j.Slots is 0, ApplySlots changes nothing. Slots never
// exceed MaxSlots.
func (j *Job) ApplySlots(list []hosts.Host) { j.applySlots(list, nil) }

// applySlots does what [Job.ApplySlots] does, but does not change slots that come from -host.
// flag[i] is what -host says about list[i]; flag is nil if list does not come from -host.
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

// listedHosts returns the hosts of the job file or of the hostfile, the source of the list, and, in
// where, the name of the file for messages. It returns no hosts if neither is given.
func (j *Job) listedHosts(line *commandLine, file *jobFile) (list []hosts.Host, from params.Source, where string, err error) {
	from = j.Source[hostfileKey]
	if from != params.FromFlag && file != nil && len(file.hosts) > 0 {
		j.Hostfile = "" // it came from the environment variable, and [[host]] overrides that
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

// relative returns the path of a file that the job file names. A name that is not absolute is
// relative to the directory of the job file.
func (f *jobFile) relative(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(f.Name), name)
}
