package procs

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// pmiServer is the launcher's side of PMI-1 for the ranks of a host. It is a state machine without
// descriptors or locks. Its method line handles a line from a rank. It sends lines to ranks by its
// field reply. A fence is PMI-1's barrier, which also makes the keys that ranks have put visible to
// all ranks. When all ranks of this host have entered the barrier, the pmiServer calls its field
// fence; its method release ends the barrier. In its methods, rank is a rank's local number on this
// host. The states of a rank are:
//
//	silent ──init──► joined ──finalize──► finalized
//	                  ▲  │                    │
//	                  │  ▼ barrier_in         │ init: a script may start one
//	                  └─ waiting              │ program after the other
//	                  ▲                       │
//	                  └───────────────────────┘
type pmiServer struct {
	size        int               // number of ranks of the job
	universe    int               // number of ranks that the hosts of the job have room for
	group       int               // number of the group of these ranks; 0: they were not spawned
	name        string            // name of the key-value space
	appnum      []int             // by rank: index of its program among the programs of the job
	kvs         map[string]string // the job's key-value space, as far as it is known on this host
	puts        map[string]string // keys and values that ranks of this host have put since the last fence
	ranks       []pmiRank
	waiting     int  // number of ranks of this host in the barrier
	fences      int  // number of barriers that all ranks of the job have entered
	full        bool // all ranks of this host are in the barrier, and fence was called for it
	exited      int  // number of ranks of this host whose process has ended
	countExited bool // a rank that has ended counts as being in every fence

	reply func(local int, line []byte)
	fence func(f proto.Fence)
	// request sends gorun a request that only gorun can answer. A rank has at most one such request
	// at a time.
	request func(local int, line []byte)
	// spawn sends gorun a request to start processes. It counts as a request.
	spawn func(local int, s *wire.Spawn)
	buf   []byte // memory for replies
}

type pmiRank struct {
	joined         bool // the rank has sent init, and not finalize since
	finalized      bool // the rank has sent finalize, and not init since
	waiting        bool // the rank is in the barrier
	refusable      bool // the rank expects that a barrier may be refused; only weft programs say so
	refused        bool // further barriers are refused, because a rank has failed and the job ends
	requestPending bool // gorun has not answered the rank's request yet
	exited         bool // the rank's process has ended

	spawn wire.SpawnParser // reads the lines of a request to start processes

	// account is what the rank has sent and received and how long it has waited, summed over the
	// programs that have run as this rank. nil: no program has reported this.
	account *wire.Account
}

// pmiAbort is the error that pmiServer.line returns if a rank calls Abort.
type pmiAbort struct {
	code        int
	reason      string
	consequence bool // the rank says that it aborts because another rank has failed
}

func (a *pmiAbort) Error() string { return fmt.Sprintf("abort with code %d: %s", a.code, a.reason) }

func newPMIServer(name string, size int, mapping string, appnum []int) *pmiServer {
	s := &pmiServer{
		size: size, universe: size, name: name, appnum: appnum, ranks: make([]pmiRank, len(appnum)),
		kvs: make(map[string]string), puts: make(map[string]string),
	}
	if mapping != "" {
		s.kvs["PMI_process_mapping"] = mapping
	}
	return s
}

// line handles a line of a rank; rank is the rank's local number. It returns a *pmiAbort if the
// rank calls Abort, and another error if the rank breaks the PMI-1 protocol.
func (s *pmiServer) line(rank int, line []byte) error {
	st := &s.ranks[rank]
	if st.spawn.Within() {
		return s.spawnLine(rank, line)
	}
	if st.spawn.Begin(line) {
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
		if s.group > 0 {
			answer.Fields = append(answer.Fields, wire.PMIField{Key: "spawned", Value: "1"})
		}
		s.answer(rank, answer)
	case "get_maxes":
		s.answer(rank, wire.NewPMI("maxes", "kvsname_max", strconv.Itoa(wire.PMIMaxKVSName),
			"keylen_max", strconv.Itoa(wire.PMIMaxKey), "vallen_max", strconv.Itoa(wire.PMIMaxValue)))
	case "get_appnum":
		s.answer(rank, wire.NewPMI("appnum", "appnum", strconv.Itoa(s.appnum[rank])))
	case "get_my_kvsname":
		s.answer(rank, wire.NewPMI("my_kvsname", "kvsname", s.name))
	case "get_universe_size":
		s.answer(rank, wire.NewPMI("universe_size", "size", strconv.Itoa(s.universe)))
	case "put":
		s.put(rank, m)
	case "get":
		s.get(rank, m)
	case "barrier_in":
		may, _ := m.Get(bootstrap.PMIRefusable)
		st.refusable = may == "1"
		return s.barrier(rank)
	case "publish_name", "lookup_name", "unpublish_name":
		if st.requestPending {
			return errors.New(m.Cmd + " without waiting for the reply to a request before it")
		}
		st.requestPending = true
		s.request(rank, line)
	case "spawn":
		s.reply(rank, SpawnRefused("the request is not a block of lines that begins with mcmd=spawn"))
	case "abort":
		code, _ := m.Get("exitcode")
		reason, _ := m.Get("reason")
		n, err := strconv.Atoi(code)
		if n &= 0xff; err != nil || n == 0 {
			n = proto.ExitFailed // an abort is a failure, even with code 0
		}
		_, consequence := m.Get("consequence")
		return &pmiAbort{n, bootstrap.UnescapeReason(reason), consequence}
	case "finalize":
		if st.joined {
			st.add(m)
		}
		st.joined, st.finalized = false, true
		s.answer(rank, wire.NewPMI("finalize_ack"))
	default:
		s.answer(rank, wire.NewPMI("error_result", "rc", "-1", "msg", "unknown_command"))
	}
	return nil
}

// spawnLine handles a line of a rank's request to start processes. When the request is complete,
// gorun gets it. If it is malformed, the rank gets an error.
func (s *pmiServer) spawnLine(rank int, line []byte) error {
	st := &s.ranks[rank]
	request, done, err := st.spawn.Line(line)
	switch {
	case !done:
		return nil
	case st.requestPending:
		return errors.New("spawn without waiting for the reply to a request before it")
	case err != nil:
		s.reply(rank, SpawnRefused(err.Error()))
		return nil
	}
	st.requestPending = true
	s.spawn(rank, request)
	return nil
}

// SpawnRefused returns the reply to a request to start processes that has failed. reason is a text for
// the user.
func SpawnRefused(reason string) []byte {
	line, err := wire.NewPMI("spawn_result", "rc", "-1", "msg", "spawn_failed", "reason", bootstrap.EscapeReason(reason)).Append(nil)
	if err != nil { // EscapeReason returns one word that fits into a line
		line = []byte("cmd=spawn_result rc=-1 msg=spawn_failed\n")
	}
	return line
}

// add adds the account in a program's finalize message to st.account, if the message has one: what
// the program has sent and received, and how long it has waited. Several programs may run as the
// rank one after the other.
func (st *pmiRank) add(finalize wire.PMIMessage) {
	a, ok := wire.ParseAccount(finalize)
	if !ok {
		return
	}
	if st.account == nil {
		st.account = &a
	} else {
		st.account.Add(&a)
	}
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
		s.kvs[key], s.puts[key] = value, value
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

// named reports whether a request names the job's key-value space, or names none. There is only
// one.
func (s *pmiServer) named(m wire.PMIMessage) bool {
	name, ok := m.Get("kvsname")
	return !ok || name == s.name
}

func (s *pmiServer) barrier(rank int) error {
	st := &s.ranks[rank]
	if st.waiting {
		return errors.New("barrier_in twice")
	}
	if st.refused && st.refusable {
		s.answer(rank, refusal)
		return nil
	}
	st.waiting = true
	s.waiting++
	s.complete()
	return nil
}

// refusal is the reply to a barrier that the job's ranks will not all enter.
var refusal = wire.NewPMI("barrier_out", "rc", "-1", "msg", "the_job_ends")

// refuse ends the barrier that a rank waits in, and those that it enters later, with an error: the job
// ends because a rank or a host has failed. A rank that ignores SIGTERM would otherwise wait until SIGKILL. Clients of MPICH do not look at the
// error, so they get none.
func (s *pmiServer) refuse(rank int) {
	st := &s.ranks[rank]
	st.refused = true
	if st.waiting && st.refusable && !st.exited {
		st.waiting = false
		s.waiting--
		s.answer(rank, refusal)
	}
}

// complete runs whenever a rank has entered PMI-1's barrier or has ended. When all ranks of this host
// are in the barrier, it calls s.fence, once for each barrier. If countExited is set, a rank that has
// ended counts as being in the barrier.
func (s *pmiServer) complete() {
	in, lives := s.waiting, false
	for _, st := range s.ranks {
		lives = lives || st.waiting && !st.exited
		if s.countExited && st.exited && !st.waiting {
			in++
		}
	}
	if in < len(s.ranks) || s.full {
		return
	}
	s.full = true
	puts := s.puts
	s.puts = make(map[string]string)
	s.fence(proto.Fence{Group: s.group, N: s.fences + 1, Puts: puts, Waiting: lives})
}

// answered passes gorun's reply to a request on to the rank that has made the request. If the rank
// waits for no such reply, answered does nothing.
func (s *pmiServer) answered(rank int, line []byte) {
	if s.ranks[rank].requestPending {
		s.ranks[rank].requestPending = false
		s.reply(rank, line)
	}
}

// release ends the barrier, because all ranks of the job are in it: it sends barrier_out to the
// ranks of this host that wait. m.Puts is what the ranks of all hosts have put since the fence
// before.
func (s *pmiServer) release(m proto.Release) {
	maps.Copy(s.kvs, m.Puts)
	s.fences, s.full, s.waiting = m.N, false, 0
	for r := range s.ranks {
		was := s.ranks[r].waiting
		s.ranks[r].waiting = false
		if was {
			s.answer(r, wire.NewPMI("barrier_out"))
		}
	}
	if s.countExited && s.exited == len(s.ranks) && m.Waiting {
		s.complete() // ranks of other hosts may still enter fences
	}
}

// state returns what gorun needs to know about the ranks of this host to detect a job that hangs.
// rank(i) must return the number in the job of local rank i.
func (s *pmiServer) state(rank func(local int) int) proto.State {
	sum := proto.State{Left: -1, Absent: -1}
	if s.waiting > 0 {
		sum.Waiting = s.fences + 1
	}
	for i, st := range s.ranks {
		switch {
		case !st.exited:
			sum.Begun = sum.Begun || st.joined
			continue
		case !st.joined && !st.finalized && sum.Absent < 0:
			sum.Absent = rank(i)
		}
		if !st.waiting && sum.Left < 0 {
			sum.Left = rank(i)
		}
	}
	return sum
}

// exit records that a rank's process has ended. early: the rank has sent init and no finalize after
// it. joined: the rank has sent init.
func (s *pmiServer) exit(rank int) (early, joined bool) {
	st := &s.ranks[rank]
	if !st.exited {
		st.exited = true
		s.exited++
		if s.countExited {
			s.complete()
		}
	}
	return st.joined, st.joined || st.finalized
}

// account returns the account that a rank has reported: what it has sent and received, and how long
// it has waited. lived is the time for which the rank has run. account returns nil if the rank has
// reported none or has not finalized, or if the account is wrong: it says that the rank has waited
// for longer than lived.
func (s *pmiServer) account(rank int, lived time.Duration) *wire.Account {
	st := &s.ranks[rank]
	if st.joined || st.account == nil || st.account.Waited > lived {
		return nil
	}
	return st.account
}

// answer sends a reply to a rank. If the reply does not fit into a line, answer sends an error
// instead.
func (s *pmiServer) answer(rank int, m wire.PMIMessage) {
	line, err := m.Append(s.buf[:0])
	if err != nil {
		line, _ = wire.NewPMI(m.Cmd, "rc", "-1", "msg", "reply_does_not_fit").Append(s.buf[:0])
	}
	s.buf = line[:0]
	s.reply(rank, line)
}

// processMapping returns the value of the key PMI_process_mapping, by which MPICH finds out which
// rank runs on which host. Each block of the value is a first host, a number of hosts, and a number
// of ranks on each of them. If the value is too long for a PMI-1 value, processMapping returns "";
// then MPICH's ranks exchange their hosts themselves.
func processMapping(nodes []bootstrap.Run) string {
	type block struct{ first, nodes, ranks int }
	var blocks []block
	for _, r := range nodes {
		if n := len(blocks); n > 0 && blocks[n-1].ranks == r.Count && blocks[n-1].first+blocks[n-1].nodes == r.Value {
			blocks[n-1].nodes++
			continue
		}
		blocks = append(blocks, block{r.Value, 1, r.Count})
	}
	// If all blocks are equal, as with round-robin placement, one is enough, because clients repeat
	// the vector.
	repeats := true
	for i, b := range blocks {
		if i == len(blocks)-1 && b.nodes < blocks[0].nodes {
			b.nodes = blocks[0].nodes
		}
		repeats = repeats && b == blocks[0]
	}
	if repeats {
		blocks = blocks[:1]
	}
	var b strings.Builder
	b.WriteString("(vector")
	for _, k := range blocks {
		fmt.Fprintf(&b, ",(%d,%d,%d)", k.first, k.nodes, k.ranks)
	}
	b.WriteString(")")
	if b.Len() > bootstrap.MaxValue {
		return ""
	}
	return b.String()
}
