package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
)

// pmiServer is the launcher's side of PMI-1 for all ranks of a job. It is a
// state machine without descriptors or locks: lines go in, replies come out.
//
//	silent ──init──► joined ──finalize──► finalized
//	                  ▲  │                    │
//	                  │  ▼ barrier_in         │ init: a script may start one
//	                  └─ waiting              │ program after the other
//	                  ▲                       │
//	                  └───────────────────────┘
type pmiServer struct {
	np       int
	name     string // of the key-value space
	appnum   []int  // by rank
	kvs      map[string]string
	services map[string]string
	ranks    []pmiRank
	waiting  int // ranks in the barrier
	exited   int // ranks whose process has ended
	reply    func(rank int, line []byte)
	buf      []byte // of the reply being made
}

type pmiRank struct {
	joined    bool // it said init and has not said finalize since
	finalized bool
	waiting   bool // in the barrier
	spawning  bool // between mcmd=spawn and endcmd
	exited    bool
}

// pmiAbort is a rank's wish to end the job.
type pmiAbort struct {
	code   int
	reason string
}

func (a *pmiAbort) Error() string { return fmt.Sprintf("abort with code %d: %s", a.code, a.reason) }

// errHang is wrapped by what tells of ranks that would wait for ever.
var errHang = errors.New("ended while other ranks wait for it in a fence")

func newPMIServer(name string, appnum []int, reply func(rank int, line []byte)) *pmiServer {
	np := len(appnum)
	return &pmiServer{
		np: np, name: name, appnum: appnum, ranks: make([]pmiRank, np), reply: reply,
		kvs:      map[string]string{"PMI_process_mapping": fmt.Sprintf("(vector,(0,1,%d))", np)},
		services: make(map[string]string),
	}
}

// errAbsent is the same for ranks that have just begun: Init is collective.
var errAbsent = errors.New("ended without Init, which other ranks have called")

// hangError names the rank for which the others would wait.
type hangError struct {
	rank int
	why  error // errHang or errAbsent
}

func (e *hangError) Error() string { return e.why.Error() }
func (e *hangError) Unwrap() error { return e.why }

// line takes a line of a rank. It returns *pmiAbort, *hangError, or another
// error where the rank does not speak PMI-1.
func (s *pmiServer) line(rank int, line []byte) error {
	st := &s.ranks[rank]
	if st.spawning {
		if bytes.Equal(bytes.TrimSpace(line), []byte("endcmd")) {
			st.spawning = false
			s.answer(rank, wire.NewPMI("spawn_result", "rc", "-1", "msg", "spawn_is_not_supported"))
		}
		return nil
	}
	m, err := wire.ParsePMI(line)
	if err != nil {
		return err
	}
	switch m.Cmd {
	case "init":
		rc := "0"
		if v, _ := m.Get("pmi_version"); v != "1" {
			rc = "-1"
		}
		answer := wire.NewPMI("response_to_init", "pmi_version", "1", "pmi_subversion", "1", "rc", rc)
		if st.joined || st.finalized {
			answer = wire.NewPMI("response_to_init", "pmi_version", "1", "pmi_subversion", "1", "rc", rc, "again", "1")
		}
		st.joined, st.finalized = true, false
		s.answer(rank, answer)
		return s.hang()
	case "get_maxes":
		s.answer(rank, wire.NewPMI("maxes", "kvsname_max", strconv.Itoa(wire.PMIMaxKVSName),
			"keylen_max", strconv.Itoa(wire.PMIMaxKey), "vallen_max", strconv.Itoa(wire.PMIMaxValue)))
	case "get_appnum":
		s.answer(rank, wire.NewPMI("appnum", "appnum", strconv.Itoa(s.appnum[rank])))
	case "get_my_kvsname":
		s.answer(rank, wire.NewPMI("my_kvsname", "kvsname", s.name))
	case "get_universe_size":
		s.answer(rank, wire.NewPMI("universe_size", "size", strconv.Itoa(s.np)))
	case "put":
		s.put(rank, m)
	case "get":
		s.get(rank, m)
	case "barrier_in":
		return s.barrier(rank)
	case "publish_name", "lookup_name", "unpublish_name":
		s.service(rank, m)
	case "spawn":
		if m.Multi {
			st.spawning = true
			return nil
		}
		s.answer(rank, wire.NewPMI("spawn_result", "rc", "-1", "msg", "spawn_is_not_supported"))
	case "abort":
		code, _ := m.Get("exitcode")
		reason, _ := m.Get("reason")
		n, err := strconv.Atoi(code)
		if n &= 0xff; err != nil || n == 0 {
			n = exitFailed // an abort is a failure, whatever its code
		}
		return &pmiAbort{n, bootstrap.UnescapeReason(reason)}
	case "finalize":
		st.joined, st.finalized = false, true
		s.answer(rank, wire.NewPMI("finalize_ack"))
	default:
		s.answer(rank, wire.NewPMI("error_result", "rc", "-1", "msg", "unknown_command"))
	}
	return nil
}

func (s *pmiServer) put(rank int, m wire.PMIMessage) {
	key, ok1 := m.Get("key")
	value, ok2 := m.Get("value")
	msg := ""
	switch {
	case !s.named(m):
		msg = "kvsname_not_found"
	case !ok1 || !ok2:
		msg = "key_or_value_missing"
	case key == "" || len(key) >= wire.PMIMaxKey:
		msg = "key_too_long"
	case len(value) >= wire.PMIMaxValue:
		msg = "value_too_long"
	default:
		s.kvs[key] = value
		s.answer(rank, wire.NewPMI("put_result", "rc", "0", "msg", "success"))
		return
	}
	s.answer(rank, wire.NewPMI("put_result", "rc", "-1", "msg", msg))
}

func (s *pmiServer) get(rank int, m wire.PMIMessage) {
	key, _ := m.Get("key")
	value, ok := s.kvs[key]
	switch {
	case !s.named(m):
		s.answer(rank, wire.NewPMI("get_result", "rc", "-1", "msg", "kvsname_not_found"))
	case !ok:
		s.answer(rank, wire.NewPMI("get_result", "rc", "-1", "msg", "key_"+key+"_not_found"))
	default:
		s.answer(rank, wire.NewPMI("get_result", "rc", "0", "msg", "success", "value", value))
	}
}

// named says whether a request means the job's key-value space; there is one.
func (s *pmiServer) named(m wire.PMIMessage) bool {
	name, ok := m.Get("kvsname")
	return !ok || name == s.name
}

// service serves the three requests for names of services.
func (s *pmiServer) service(rank int, m wire.PMIMessage) {
	service, ok := m.Get("service")
	result := map[string]string{"publish_name": "publish_result", "lookup_name": "lookup_result", "unpublish_name": "unpublish_result"}[m.Cmd]
	port, known := s.services[service]
	fail := func(info string) { s.answer(rank, wire.NewPMI(result, "rc", "-1", "msg", info)) }
	switch {
	case !ok || service == "":
		fail("service_missing")
	case m.Cmd == "publish_name" && known:
		fail("duplicate_service_name")
	case m.Cmd == "publish_name":
		s.services[service], _ = m.Get("port")
		s.answer(rank, wire.NewPMI(result, "rc", "0", "msg", "success"))
	case !known:
		fail("service_not_found")
	case m.Cmd == "lookup_name":
		s.answer(rank, wire.NewPMI(result, "port", port, "rc", "0", "msg", "success"))
	default:
		delete(s.services, service)
		s.answer(rank, wire.NewPMI(result, "rc", "0", "msg", "success"))
	}
}

func (s *pmiServer) barrier(rank int) error {
	st := &s.ranks[rank]
	if st.waiting {
		return errors.New("barrier_in twice")
	}
	st.waiting = true
	s.waiting++
	if s.waiting < s.np {
		return s.hang()
	}
	s.waiting = 0
	for r := range s.ranks {
		s.ranks[r].waiting = false
	}
	for r := range s.ranks {
		s.answer(r, wire.NewPMI("barrier_out"))
	}
	return nil
}

// hang tells of a rank that has ended while others wait for it.
func (s *pmiServer) hang() error {
	if s.exited == 0 {
		return nil
	}
	begun := slices.ContainsFunc(s.ranks, func(st pmiRank) bool { return st.joined && !st.exited })
	for r, st := range s.ranks {
		switch {
		case !st.exited:
		case begun && !st.joined && !st.finalized:
			return &hangError{r, errAbsent}
		case s.waiting > 0 && !st.waiting:
			return &hangError{r, errHang}
		}
	}
	return nil
}

// exit notes that a rank's process has ended well. early is true where it said
// init and not finalize; err is a *hangError where others wait for it.
func (s *pmiServer) exit(rank int) (early bool, err error) {
	st := &s.ranks[rank]
	if !st.exited {
		st.exited = true
		s.exited++
	}
	return st.joined, s.hang()
}

// answer hands a reply over; one that fits no line becomes a refusal.
func (s *pmiServer) answer(rank int, m wire.PMIMessage) {
	line, err := m.Append(s.buf[:0])
	if err != nil {
		line, _ = wire.NewPMI(m.Cmd, "rc", "-1", "msg", "reply_does_not_fit").Append(s.buf[:0])
	}
	s.buf = line[:0]
	s.reply(rank, line)
}
