// Package cuda gives messages access to the memory of NVIDIA GPUs, through CUDA's driver library
// (libcuda.so.1). The first call of Open or Count loads the library, so programs that import this package build
// and start on hosts without a GPU. GPU access needs cgo and Linux; without them Open and Count return
// [comm.ErrNotSupported].
//
//	gpu, err := cuda.Open(0)
//	addr, err := gpu.Alloc(4 * n) // or memory of another CUDA library
//	v := comm.OnDevice[float32](gpu.Device, addr, n)
//	err = v.Send(c, dest, tag)
package cuda
