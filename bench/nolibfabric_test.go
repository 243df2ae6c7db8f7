//go:build !libfabric

package main

const buildTags = ""
