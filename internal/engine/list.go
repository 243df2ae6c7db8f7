package engine

// node is an element of a list. It is a field of a request or of an unexpected message, and is in
// at most one list at a time. A posted receive is in the posted queue, a request that waits for
// room in the endpoint is in a queue of its peer, and a request with a hint that has ended is in
// Engine.finished.
type node struct {
	key matchKey // of a posted receive or an unexpected message: what it matches
	// Of a posted receive in the table: its number in the order in which receives were added. Of
	// nodes[0] of an unexpected message, and of a receive by rendezvous: arrival number of the
	// message.
	seq        uint64
	next, prev *node
	list       *list       // list that the node is in; nil: none
	req        *request    // request that the node is a field of; nil: the node is a field of msg
	msg        *unexpected // unexpected message that the node is a field of; nil: the node is a field of req
}

// list is a doubly linked list of nodes. The zero list is empty.
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

// pushBefore adds n before at, which is in the list.
func (l *list) pushBefore(at, n *node) {
	if at.prev == nil {
		l.pushFront(n)
		return
	}
	n.list, n.next, n.prev = l, at, at.prev
	at.prev.next, at.prev = n, n
}

// pop removes the node at the head, and returns its request. The list is not empty.
func (l *list) pop() *request {
	n := l.head
	n.remove()
	return n.req
}

// each calls f for every node, in order. f may remove the node that it gets, and no other.
func (l *list) each(f func(*node)) {
	for n := l.head; n != nil; {
		next := n.next
		f(n)
		n = next
	}
}

// remove removes the node from its list, if it is in one.
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
