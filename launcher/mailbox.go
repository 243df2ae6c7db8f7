package launcher

import (
	"sync"
)

// mailbox is a queue of messages from other goroutines to the goroutine that runs [run.control].
// The queue has no limit.
type mailbox struct {
	mu   sync.Mutex    // guards mail and over
	mail []any         // messages that [run.control] has not taken yet, in the order in which they were posted
	over bool          // [mailbox.close] was called: [run.control] takes no more messages
	wake chan struct{} // capacity 1; [mailbox.post] puts an element into it to wake [run.control]
}

// post queues x for [run.control]. It does not block. If [mailbox.close] was called, post does not
// queue x and returns false.
func (m *mailbox) post(x any) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	m.mail = append(m.mail, x)
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// close makes post refuse further messages, and returns those that take has not returned yet.
func (m *mailbox) close() []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	mail := m.mail
	m.mail = nil
	return mail
}

// take removes all queued messages and returns them.
func (m *mailbox) take() []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	mail := m.mail
	m.mail = nil
	return mail
}
