package job

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAgent(t *testing.T) {
	for _, test := range []struct {
		args string
		want Options
	}{
		{"-agent", Options{Action: Agent}},
		{"--agent", Options{Action: Agent}},
		{"-agent -hash", Options{Action: Agent, Hash: true}},
		{"-agent -connect node0:7000 -secret-file /s", Options{Action: Agent, Connect: "node0:7000", SecretFile: "/s"}},
		{"-agent --secret-file=s --connect=[::1]:1", Options{Action: Agent, Connect: "[::1]:1", SecretFile: "s"}},
	} {
		j, opts, err := Parse(strings.Fields(test.args), []string{"WEFT_JOB_TIMEOUT=x"})
		require.NoError(t, err, test.args)
		require.Equal(t, test.want, opts, test.args)
		require.Nil(t, j)
	}
	const after = "-agent: expected nothing, or -connect HOST:PORT -secret-file FILE, after it"
	for _, test := range []struct{ args, want string }{
		{"-agent x", after + `, found "x"`},
		{"-agent -v", after + ": flag provided but not defined: -v"},
		{"-agent -connect", after + ": flag needs an argument: -connect"},
		{"-agent -h", after + ": flag: help requested"},
		{"-agent -connect a:1", "-connect: expected -secret-file with it, found none"},
		{"-agent -secret-file s", "-secret-file: expected -connect with it, found none"},
		{"-agent -hash -connect a:1 -secret-file s", "-hash: expected no other flag than -agent with it"},
		{"-agent -connect a -secret-file s", `-connect: expected HOST:PORT with a port from 1 to 65535, found "a"`},
		{"-agent -connect :1 -secret-file s", `-connect: expected HOST:PORT with a port from 1 to 65535, found ":1"`},
		{"-agent -connect a:0 -secret-file s", `-connect: expected HOST:PORT with a port from 1 to 65535, found "a:0"`},
		{"-agent -connect a:+1 -secret-file s", `-connect: expected HOST:PORT with a port from 1 to 65535, found "a:+1"`},
		{"-agent -connect -x:1 -secret-file s", `-connect: expected HOST:PORT with a port from 1 to 65535, found "-x:1"`},
	} {
		j, _, err := Parse(strings.Fields(test.args), nil)
		var ue *UsageError
		require.ErrorAs(t, err, &ue)
		require.EqualError(t, err, test.want)
		require.Nil(t, j)
	}
}
