//go:build linux && !portable

#include "textflag.h"

// func prefetchWrite(p unsafe.Pointer, n uintptr)
TEXT ·prefetchWrite(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX

write:
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), which Go's assembler does not know
	ADDQ $64, AX
	SUBQ $64, CX
	JHI  write
	RET

// func prefetchRead(p unsafe.Pointer, n uintptr)
TEXT ·prefetchRead(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX

read:
	PREFETCHT0 (AX)
	ADDQ       $64, AX
	SUBQ       $64, CX
	JHI        read
	RET
