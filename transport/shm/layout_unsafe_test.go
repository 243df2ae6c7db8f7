//go:build linux && !portable

package shm

import "unsafe"

// pinned returns the sizes of types in shared memory, and the offsets of their fields, in bytes, by
// name.
func pinned() map[string]uintptr {
	return map[string]uintptr{
		"line": unsafe.Sizeof(line{}), "line.data": unsafe.Offsetof(line{}.data),
		"card": unsafe.Sizeof(card{}), "state": unsafe.Sizeof(rankState{}), "state.alive": unsafe.Offsetof(rankState{}.alive),
		"card.sleep": unsafe.Offsetof(card{}.sleep), "card.events": unsafe.Offsetof(card{}.events), "card.polled": unsafe.Offsetof(card{}.polled),
		"card.refused": unsafe.Offsetof(card{}.refused), "card.changed": unsafe.Offsetof(card{}.changed),
		"header": unsafe.Sizeof(fileHeader{}), "header.sleepers": unsafe.Offsetof(fileHeader{}.sleepers),
		"claims": unsafe.Sizeof(claims{}),
	}
}
