//go:build !amd64 || race

package rma

import "sync/atomic"

func store64(b []byte, v uint64) { atomic.StoreUint64(word64(b), v) }

func store32(b []byte, v uint32) { atomic.StoreUint32(word32(b), v) }
