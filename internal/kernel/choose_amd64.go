//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// variants returns the variants that can run here, the fastest last. x/sys/cpu also checks that the
// operating system saves the wide registers. GODEBUG=cpu.avx512f=off removes the variant avx512,
// and GODEBUG=cpu.avx2=off removes both variants with assembly.
func variants() []variant {
	all := []variant{{name: "go"}}
	x := &cpu.X86
	if x.HasAVX2 {
		all = append(all, variant{name: "avx2", narrow: &avx2})
		if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ {
			all = append(all, variant{name: "avx512", narrow: &avx2, wide: &avx512})
		}
	}
	return all
}
