package engine

// offer lets others have the core after a question that was answered with no.
// Programs ask again and again, and what they ask for may be done by a goroutine
// or a rank that has no core to do it on: without this it waited for the end of a
// time slice, step by step. others says that it is a goroutine of this rank; else
// one question in turnPolls does, as of who waits, unless it is known that the
// core is wanted. The caller holds the lock, which is open meanwhile.
func (e *Engine) offer(others bool) {
	if e.asked++; others || e.wanted || e.policy.poll == 0 || e.asked%turnPolls == 0 {
		var p patience
		e.yield(&p)
	}
}

// Poll moves the engine on once, for who asks again and again whether requests are
// complete, and offers the core to others.
func (e *Engine) Poll() {
	e.mu.lock()
	e.poll()
	e.offer(e.tasks > 0)
	e.mu.unlock()
}
