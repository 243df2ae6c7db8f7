//go:build !race

package launcher

const raceFactor = 1
