package engine

// node is an element of a list. It is a part of a request or of an unexpected message, and is in
// one list at most. A posted receive is in the posted queue, a request that waits for room is in
// a queue of its peer, and a request that has ended is in Engine.finished.
type node struct {
	key        matchKey
	seq        uint64
	next, prev *node
	list       *list       // the list that the node is in; nil: none
	req        *request    // the request that the node is a part of; nil: see msg
	msg        *unexpected // the unexpected message that the node is a part of
}

// list is a queue of nodes.
type list struct{ head, tail *node }

// push adds a node at the end.
func (l *list) push(n *node) {
	n.list, n.next, n.prev = l, nil, l.tail
	if l.tail == nil {
		l.head = n
	} else {
		l.tail.next = n
	}
	l.tail = n
}

// pushFront adds a node at the head.
func (l *list) pushFront(n *node) {
	n.list, n.next, n.prev = l, l.head, nil
	if l.head == nil {
		l.tail = n
	} else {
		l.head.prev = n
	}
	l.head = n
}

// pushBefore adds a node before another one of the list.
func (l *list) pushBefore(at, n *node) {
	if at.prev == nil {
		l.pushFront(n)
		return
	}
	n.list, n.next, n.prev = l, at, at.prev
	at.prev.next, at.prev = n, n
}

// pop takes out the request at the head.
func (l *list) pop() *request {
	n := l.head
	n.remove()
	return n.req
}

// each calls f for every node; f may remove the node that it gets.
func (l *list) each(f func(*node)) {
	for n := l.head; n != nil; {
		next := n.next
		f(n)
		n = next
	}
}

// remove takes a node out of its list, if it is in one.
func (n *node) remove() {
	l := n.list
	if l == nil {
		return
	}
	if n.prev == nil {
		l.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.list, n.next, n.prev = nil, nil, nil
}
