//go:build linux

package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"0"}, {"9"}, {"two"}, {"2", "3"}, {"-none"}, {"2", "-none"}} {
		var stdout, stderr strings.Builder
		assert.Equal(t, 2, run(&stdout, &stderr, args, nil), args)
		assert.Contains(t, stderr.String(), "usage: up [-slurm] [hosts, 1 to 8]")
		assert.Empty(t, stdout.String())
	}
}

func TestUp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make hosts of namespaces")
	}
	end := make(chan os.Signal, 1)
	end <- syscall.SIGINT
	var stdout, stderr strings.Builder
	assert.Equal(t, 0, run(&stdout, &stderr, []string{"2", "--slurm"}, end), "%s", &stderr)
	assert.Regexp(t, `(?m)^hosts +w\d+n1 w\d+n2$`, stdout.String())
	assert.Regexp(t, `(?m)^enter +ssh -F /\S+ w\d+n1$`, stdout.String())
	assert.Regexp(t, `(?m)^Slurm +export SLURM_CONF=/\S+ `, stdout.String())
}
