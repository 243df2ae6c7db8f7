//go:build !libfabric

package main

const tag = "without"
