package job

import (
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// hosts decodes the array of tables [[host]]. The name in an element may be a range such as
// "node[1-4]": then the element describes several hosts.
func (d *decoder) hosts(v any) {
	var set hosts.Set
	left := hosts.Limit
	d.tables("host", v, func(path string, t map[string]any) {
		errs := len(d.errs)
		names, h := d.host(path, t)
		switch {
		case len(d.errs) > errs:
			return
		case h.Address != "" && len(names) > 1:
			d.fail(child(path, "address"), "expected one host with an address, found %d", len(names))
			return
		case h.MaxSlots > 0 && h.Slots > h.MaxSlots:
			d.fail(child(path, "slots"), "expected at most max_slots, %d, found %d", h.MaxSlots, h.Slots)
			return
		case len(names) > left:
			d.fail(child(path, "name"), "expected at most %d hosts in total, found more", hosts.Limit)
			return
		}
		left -= len(names)
		for _, h.Name = range names {
			if err := set.Add(h); err != nil {
				d.fail(path, "%s", err)
				return
			}
		}
	})
	d.file.hosts = set.Hosts()
}

// host decodes one element of [[host]]. It returns the names of the hosts that the element
// describes, and in h everything else that it says about them.
func (d *decoder) host(path string, t map[string]any) (names []string, h hosts.Host) {
	if _, ok := t["name"]; !ok {
		d.fail(path, "expected a name, found none")
	}
	text := func(full string, v any, check func(string) error) string {
		s, ok := d.string(full, v)
		if !ok {
			return ""
		}
		if err := check(s); err != nil {
			d.fail(full, "%s", err)
		}
		return s
	}
	for key, v := range t {
		switch full := child(path, key); key {
		case "name":
			text(full, v, func(s string) (err error) {
				names, err = hosts.Expand(s)
				return err
			})
		case "user":
			h.User = text(full, v, hosts.CheckUser)
		case "address":
			h.Address = text(full, v, hosts.CheckAddress)
		case "port":
			h.Port = d.integer(full, v, 65535)
		case "slots":
			h.Slots = d.integer(full, v, hosts.Limit)
		case "max_slots":
			h.MaxSlots = d.integer(full, v, hosts.Limit)
		default:
			d.unknown(full, key, []string{"name", "slots", "max_slots", "user", "port", "address"})
		}
	}
	return names, h
}

// checkHostLists records an error if the job file has both [[host]] and launcher.hostfile, because
// the file must give only one list of hosts.
func (d *decoder) checkHostLists() {
	for _, s := range d.file.settings {
		if s.key == hostfileKey && s.text != "" && len(d.file.hosts) > 0 {
			d.fail(hostfileKey, "expected [[host]] or a hostfile, found both")
		}
	}
}
