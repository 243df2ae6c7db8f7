//go:build libfabric

package main

const tag = "with"
