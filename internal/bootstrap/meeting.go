package bootstrap

import (
	"context"
	"fmt"
	"sync"
)

// meeting is the KVS of ranks that have met at rank 0. What a rank puts goes there
// with its next fence, all at once, and what all have put comes back with the end
// of that fence: a Get asks nobody.
type meeting struct {
	rank int
	end  interface { // hub or spoke
		fence(ctx context.Context, pairs []byte) (all []byte, err error)
		abort(from, code int, text string)
		close() error
	}
	fencing sync.Mutex // held during a fence; before mu

	mu      sync.Mutex
	values  map[string]string
	pending []byte // pairs that were put since the last fence
	broken  error  // what the last fence ended with
	done    bool   // finalized
}

func (m *meeting) Put(key, value string) error {
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

func (m *meeting) Get(key string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[key]
	if !ok {
		return "", fmt.Errorf("get %s: %w", key, ErrNoKey)
	}
	return v, nil
}

func (m *meeting) Fence(ctx context.Context) error {
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
	all, err := m.end.fence(ctx, pairs)
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

func (m *meeting) Finalize() error {
	m.mu.Lock()
	done := m.done
	m.done = true
	m.mu.Unlock()
	if done {
		return errClosed
	}
	return m.end.close()
}

// Abort has the ranks that can still hear it end at once: not every launcher ends
// a job of which a rank fails.
func (m *meeting) Abort(a Abort) error {
	m.mu.Lock()
	done := m.done
	m.mu.Unlock()
	if done {
		return errClosed
	}
	m.end.abort(m.rank, a.Code, a.Reason)
	return nil
}
