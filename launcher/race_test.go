//go:build race

package launcher

const raceFactor = 5
