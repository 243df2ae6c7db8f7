package shm

import "unsafe"

// pinned are sizes of, and places in, what ranks share.
func pinned() map[string]uintptr {
	return map[string]uintptr{
		"line": unsafe.Sizeof(line{}), "line.data": unsafe.Offsetof(line{}.data),
		"card": unsafe.Sizeof(card{}), "card.state": unsafe.Offsetof(card{}.state), "card.alive": unsafe.Offsetof(card{}.alive),
		"card.sleep": unsafe.Offsetof(card{}.sleep), "card.news": unsafe.Offsetof(card{}.news), "card.joined": unsafe.Offsetof(card{}.joined),
		"card.refused": unsafe.Offsetof(card{}.refused),
		"header":       unsafe.Sizeof(fileHeader{}), "header.sleepers": unsafe.Offsetof(fileHeader{}.sleepers),
		"claims": unsafe.Sizeof(claims{}),
	}
}
