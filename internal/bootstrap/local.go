package bootstrap

import (
	"context"
	"fmt"
	"sync"
)

// localKVS is the key-value space of a world of one.
type localKVS struct {
	mu     sync.Mutex
	values map[string]string
}

func (l *localKVS) Put(key, value string) error {
	if err := checkKV(key, value); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.values == nil {
		l.values = make(map[string]string)
	}
	l.values[key] = value
	return nil
}

func (l *localKVS) Get(key string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.values[key]
	if !ok {
		return "", fmt.Errorf("get %s: %w", key, ErrNoKey)
	}
	return v, nil
}

func (l *localKVS) Fence(ctx context.Context) error { return ctx.Err() }

func (l *localKVS) Finalize() error { return nil }

func (l *localKVS) Abort(Abort) error { return nil }
