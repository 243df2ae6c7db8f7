package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
)

// ErrNoKey is the error of KVS.Get for a key that no rank has put.
var ErrNoKey = errors.New("no such key")

// abortWait is how long Abort waits for a launcher that does not read. After a rendezvous it is the
// limit of each step of an abort.
const abortWait = time.Second

// pmiClient is the KVS of a rank that gorun or another PMI-1 launcher has started. It sends a
// request only after the reply to the previous one.
type pmiClient struct {
	conn *lineConn
	// The launcher is gorun. It accepts the fields reason and consequence in an abort, and a
	// wire.Account in a finalize.
	gorun  bool
	reused bool // the launcher says that another program ran in this rank before

	mu     sync.Mutex // held from a request to its reply
	name   string     // name of the key-value space
	broken error      // set after a missing or wrong reply; every later call returns it
	done   bool       // finalize was called
	// finalize does not close the connection, because the rank may join the job again.
	pausing bool
}

// init sends the first message of PMI-1 to the launcher and checks the version in the reply.
func (p *pmiClient) init(ctx context.Context) error {
	m, err := p.call(ctx, wire.NewPMI("init", "pmi_version", "1", "pmi_subversion", "1"), "response_to_init")
	if err != nil {
		return err
	}
	if v, _ := m.Get("pmi_version"); v != "1" {
		return fmt.Errorf("the launcher speaks version %q of PMI, not 1", v)
	}
	v, _ := m.Get("again")
	p.reused = v == "1"
	return nil
}

// fetchName asks for the name of the key-value space.
func (p *pmiClient) fetchName(ctx context.Context) error {
	m, err := p.call(ctx, wire.NewPMI("get_my_kvsname"), "my_kvsname")
	if err != nil {
		return err
	}
	name, ok := m.Get("kvsname")
	if !ok {
		return errors.New("the launcher has no key-value space")
	}
	p.name = name
	return nil
}

// appnum asks for the number of this rank's program in an MPMD job. If the launcher reports none, it
// returns 0.
func (p *pmiClient) appnum(ctx context.Context) (int, error) {
	m, err := p.call(ctx, wire.NewPMI("get_appnum"), "appnum")
	if err != nil {
		return 0, err
	}
	text, _ := m.Get("appnum")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, nil
	}
	return n, nil
}

// call sends a request and returns its reply. The reply's command must be want, and its rc, if
// there is one, must be 0.
func (p *pmiClient) call(ctx context.Context, req wire.PMIMessage, want string) (wire.PMIMessage, error) {
	line, err := req.Append(nil)
	if err != nil {
		return wire.PMIMessage{}, err // the request has no valid form
	}
	return p.callLines(ctx, req.Cmd, line, want)
}

// callLines does the work of call for a request that may have several lines.
func (p *pmiClient) callLines(ctx context.Context, cmd string, lines []byte, want string) (wire.PMIMessage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return wire.PMIMessage{}, fmt.Errorf("pmi %s: %w", cmd, errClosed)
	}
	if p.broken != nil {
		return wire.PMIMessage{}, fmt.Errorf("pmi %s: an earlier call failed: %w", cmd, p.broken)
	}
	if err := ctx.Err(); err != nil {
		return wire.PMIMessage{}, err
	}
	m, err := p.exchange(ctx, lines, want)
	if err != nil {
		p.broken = err
		return wire.PMIMessage{}, fmt.Errorf("pmi %s: %w", cmd, err)
	}
	if rc, ok := m.Get("rc"); ok && rc != "0" {
		msg, _ := m.Get("msg")
		reason, _ := m.Get("reason")
		return m, &refusedError{cmd: cmd, rc: rc, msg: msg, reason: UnescapeReason(reason)}
	}
	return m, nil
}

func (p *pmiClient) exchange(ctx context.Context, lines []byte, want string) (wire.PMIMessage, error) {
	if err := p.conn.write(lines, 0); err != nil {
		return wire.PMIMessage{}, err
	}
	m, err := p.conn.recv(ctx)
	if err != nil {
		return wire.PMIMessage{}, err
	}
	if m.Cmd != want {
		return wire.PMIMessage{}, fmt.Errorf("the launcher answered %q instead of %q", m.Cmd, want)
	}
	return m, nil
}

// refusedError is a reply with an rc other than 0.
type refusedError struct {
	cmd, rc, msg string
	reason       string // text for the user, from gorun; "": none
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("pmi %s: the launcher refused it: rc=%s %s", e.cmd, e.rc, e.msg)
}

func (p *pmiClient) Put(key, value string) error {
	if err := checkKV(key, value); err != nil {
		return err
	}
	_, err := p.call(context.Background(), wire.NewPMI("put", "kvsname", p.name, "key", key, "value", value), "put_result")
	return err
}

func (p *pmiClient) Get(key string) (string, error) { return p.get(context.Background(), key) }

func (p *pmiClient) get(ctx context.Context, key string) (string, error) {
	if err := checkKV(key, ""); err != nil {
		return "", err
	}
	m, err := p.call(ctx, wire.NewPMI("get", "kvsname", p.name, "key", key), "get_result")
	var refused *refusedError
	if errors.As(err, &refused) {
		return "", fmt.Errorf("pmi get %s: %w", key, ErrNoKey)
	}
	if err != nil {
		return "", err
	}
	v, ok := m.Get("value")
	if found, has := m.Get("found"); !ok || has && found == "FALSE" {
		return "", fmt.Errorf("pmi get %s: %w", key, ErrNoKey)
	}
	return v, nil
}

// PMIRefusable is the field with the value 1 by which a client says to gorun, in a barrier_in, that it
// expects a barrier_out with an rc other than 0: the job ends.
const PMIRefusable = "refusable"

func (p *pmiClient) Fence(ctx context.Context) error {
	in := wire.NewPMI("barrier_in")
	if p.gorun {
		in = wire.NewPMI("barrier_in", PMIRefusable, "1")
	}
	_, err := p.call(ctx, in, "barrier_out")
	var refused *refusedError
	if p.gorun && errors.As(err, &refused) {
		return fmt.Errorf("gorun ends the job, because a rank or a host has failed: %w", err)
	}
	return err
}

func (p *pmiClient) Finalize() error { return p.finalize(nil) }

// finalize ends the rank's part in the job. It reports a to gorun, unless a is nil.
func (p *pmiClient) finalize(a *wire.Account) error {
	m := wire.NewPMI("finalize")
	if p.gorun && a != nil {
		m.Fields = a.PMIFields()
	}
	_, err := p.call(context.Background(), m, "finalize_ack")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	if !p.pausing {
		p.conn.close()
	}
	return err
}

// rejoin joins the job again after a finalize that has left the connection open.
func (p *pmiClient) rejoin(ctx context.Context) error {
	p.mu.Lock()
	p.done, p.pausing = false, false
	p.mu.Unlock()
	return p.init(ctx)
}

// Abort does not wait for the end of another call, because the reason for the abort may be a fence
// that hangs.
func (p *pmiClient) Abort(a Abort) error {
	kv := []string{"exitcode", strconv.Itoa(a.Code)}
	if p.gorun && a.Reason != "" {
		kv = append(kv, "reason", EscapeReason(a.Reason))
	}
	if p.gorun && a.Consequence {
		kv = append(kv, "consequence", "1")
	}
	return p.conn.send(wire.NewPMI("abort", kv...), abortWait)
}

// EscapeReason encodes a reason as one word, and cuts it so that it fits into a line. UnescapeReason
// decodes it.
func EscapeReason(reason string) string {
	const limit = wire.PMIMaxLine - 64
	esc := url.QueryEscape(reason)
	for len(esc) > limit {
		reason = reason[:len(reason)*limit/len(esc)]
		esc = url.QueryEscape(reason)
	}
	return esc
}

// UnescapeReason decodes the reason field of an abort line, or of the reply to a spawn. It returns an invalid field unchanged.
func UnescapeReason(field string) string {
	if s, err := url.QueryUnescape(field); err == nil {
		return s
	}
	return field
}

// The maximum sizes, in bytes, of a key and of a value. With them, and with the longest name of a
// key-value space, a put and the reply to a get fit into PMI-1's 1024 bytes.
const (
	MaxKey   = wire.PMIMaxKey - 1
	MaxValue = 640
)

func checkKV(key, value string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("key %q has %d bytes, not 1 to %d", key, len(key), MaxKey)
	}
	if len(value) > MaxValue {
		return fmt.Errorf("key %q: value has %d bytes, more than %d", key, len(value), MaxValue)
	}
	_, err := wire.NewPMI("put", key, value).Append(nil)
	return err
}
