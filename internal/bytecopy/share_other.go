//go:build !amd64 || race

package bytecopy

func share(dst, src []byte) int { return keep(dst, src) }
