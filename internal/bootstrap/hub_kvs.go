package bootstrap

import (
	"context"
	"fmt"
	"sync"
)

// hubKVS is the KVS of ranks that have found rank 0 by a rendezvous. The pairs that a rank puts
// go to rank 0 with the rank's next fence. The end of that fence brings the pairs that all ranks
// have put. So Get sends nothing.
type hubKVS struct {
	rank      int
	transport interface { // a hub in rank 0, a spoke in other ranks
		fence(ctx context.Context, pairs []byte) (all []byte, err error)
		abort(from, code int, text string) (wait func())
		close() error
	}
	fencing sync.Mutex // held during a fence; locked before mu

	mu      sync.Mutex
	values  map[string]string
	pending []byte // pairs that this rank has put since its last fence
	broken  error  // error of a fence that has failed; later fences return it, too
	done    bool   // Finalize was called
}

// Local implements LocalKVS.
func (m *hubKVS) Local() bool { return true }

func (m *hubKVS) Put(key, value string) error {
	if err := checkKV(key, value); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done {
		return fmt.Errorf("put %s: %w", key, errClosed)
	}
	next := appendPair(m.pending, key, value)
	if len(next) > maxPuts {
		return fmt.Errorf("put %s: more than %d bytes before a fence", key, maxPuts)
	}
	m.pending = next
	return nil
}

func (m *hubKVS) Get(key string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[key]
	if !ok {
		return "", fmt.Errorf("get %s: %w", key, ErrNoKey)
	}
	return v, nil
}

func (m *hubKVS) Fence(ctx context.Context) error {
	m.fencing.Lock()
	defer m.fencing.Unlock()
	m.mu.Lock()
	pairs, err := m.pending, m.broken
	m.pending = nil
	if err == nil && m.done {
		err = errClosed
	}
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	all, err := m.transport.fence(ctx, pairs)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		if m.values == nil {
			m.values = make(map[string]string)
		}
		err = eachPair(all, func(key, value string) { m.values[key] = value })
	}
	if err != nil {
		m.broken = err
		return fmt.Errorf("fence: %w", err)
	}
	return nil
}

func (m *hubKVS) Finalize() error {
	m.mu.Lock()
	done := m.done
	m.done = true
	m.mu.Unlock()
	if done {
		return errClosed
	}
	return m.transport.close()
}

// Abort makes the ranks that are still connected end at once, because not every launcher ends a
// job if a rank fails.
func (m *hubKVS) Abort(a Abort) error {
	wait, err := m.startAbort(a)
	if err == nil {
		wait()
	}
	return err
}

// startAbort sends the abort. wait waits until the other ranks have ended, or for a time limit.
func (m *hubKVS) startAbort(a Abort) (wait func(), err error) {
	m.mu.Lock()
	done := m.done
	m.mu.Unlock()
	if done {
		return nil, errClosed
	}
	return m.transport.abort(m.rank, a.Code, a.Reason), nil
}
