// Package cuda gives messages access to the memory of NVIDIA's GPUs, through CUDA's driver library
// (libcuda.so.1). Open loads the library when it is called, so programs that import this package build and
// start on hosts without a GPU. Building needs cgo; without it, and on systems other than Linux, Open returns
// [comm.ErrNotSupported].
//
//	gpu, err := cuda.Open(0)
//	addr, err := gpu.Alloc(4 * n) // or memory of another CUDA library
//	v := comm.OnDevice[float32](gpu.Device, addr, n)
//	err = v.Send(c, dest, tag)
package cuda
