package launcher

import (
	"github.com/weft-hpc/weft/internal/wire"
)

// service answers a PMI-1 request to publish, look up or unpublish the name of a service. All ranks
// of the job share these names. line is the request, and the result is the reply, a line. The reply
// to an invalid or unknown request is an error.
func (r *run) service(line []byte) []byte {
	m, err := wire.ParsePMI(line)
	if err != nil {
		m = wire.NewPMI("unknown")
	}
	result := map[string]string{"publish_name": "publish_result", "lookup_name": "lookup_result", "unpublish_name": "unpublish_result"}[m.Cmd]
	name, ok := m.Get("service")
	port, known := r.names[name]
	answer := wire.NewPMI(result, "rc", "0", "msg", "success")
	fail := func(info string) { answer = wire.NewPMI(result, "rc", "-1", "msg", info) }
	switch {
	case result == "":
		answer = wire.NewPMI("error_result", "rc", "-1", "msg", "unknown_command")
	case !ok || name == "":
		fail("service_missing")
	case m.Cmd == "publish_name" && known:
		fail("duplicate_service_name")
	case m.Cmd == "publish_name" && len(r.names) >= maxServices:
		fail("too_many_services")
	case m.Cmd == "publish_name":
		r.names[name], _ = m.Get("port")
	case !known:
		fail("service_not_found")
	case m.Cmd == "lookup_name":
		answer = wire.NewPMI(result, "port", port, "rc", "0", "msg", "success")
	default:
		delete(r.names, name)
	}
	text, err := answer.Append(nil)
	if err != nil {
		// Append cannot fail, because this reply is short.
		text, _ = wire.NewPMI(result, "rc", "-1", "msg", "reply_does_not_fit").Append(nil)
	}
	return text
}

// maxServices bounds the number of names that ranks can publish, and so the memory that gorun needs.
const maxServices = 1 << 16
