#include "textflag.h"

// func PrefetchWrite(p *byte, n int)
TEXT ·PrefetchWrite(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX

write:
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), which Go's assembler does not know
	ADDQ $64, AX
	SUBQ $64, CX
	JHI  write
	RET

// func PrefetchRead(p *byte, n int)
TEXT ·PrefetchRead(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX

read:
	PREFETCHT0 (AX)
	ADDQ       $64, AX
	SUBQ       $64, CX
	JHI        read
	RET
