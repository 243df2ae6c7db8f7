package commtest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/weft-hpc/weft/internal/bootstrap"
)

// kvs is the key-value space (bootstrap.KVS) of the ranks of one call of Run.
type kvs struct {
	n int

	mu     sync.Mutex
	values map[string]string // by key: the value that a rank has put; guarded by mu
	in     int               // number of ranks that are in the current fence; guarded by mu
	// kvs.Fence closes open when all ranks are in the current fence, and makes another channel for
	// the next fence; guarded by mu.
	open   chan struct{}
	closed bool          // close was called; guarded by mu
	failed chan struct{} // kvs.close closes it, so that all fences return an error
}

var errJobFailed = errors.New("the job has failed")

func newKVS(n int) *kvs {
	return &kvs{n: n, values: make(map[string]string), open: make(chan struct{}), failed: make(chan struct{})}
}

func (k *kvs) Put(key, value string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.values[key] = value
	return nil
}

func (k *kvs) Get(key string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.values[key]
	if !ok {
		return "", fmt.Errorf("no key %q", key)
	}
	return v, nil
}

func (k *kvs) Fence(ctx context.Context) error {
	k.mu.Lock()
	open := k.open
	if k.in++; k.in == k.n {
		k.in, k.open = 0, make(chan struct{})
		close(open)
	}
	k.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-k.failed:
		return errJobFailed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *kvs) Finalize() error { return nil }

func (k *kvs) Abort(bootstrap.Abort) error { return nil }

// close makes all fences return an error: those in progress and later ones.
func (k *kvs) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.closed = true
		close(k.failed)
	}
}
