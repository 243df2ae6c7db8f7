//go:build linux && race

package launcher

const raceFactor = 5
