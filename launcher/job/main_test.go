package job

import (
	"os"
	"testing"

	"github.com/weft-hpc/weft/internal/params"
)

// testTable replaces params.Table in most tests, so that they do not depend on the real parameters.
var testTable = []params.Param{
	{Key: "check", Kind: params.Bool, Default: "false", Help: "look for mistakes"},
	{Key: "transport.use", Kind: params.List, Default: "tcp", Choices: []string{"tcp", "shm", "libfabric"}, Help: "in order of preference"},
	{Key: "transport.tcp.interface", Kind: params.String, Help: "where tcp listens"},
	{Key: "transport.libfabric.provider", Kind: params.String, Help: "which provider"},
	{Key: "transport.tcp.poll", Kind: params.Duration, Default: "50us", Help: "how long to poll"},
	{Key: "engine.eager_limit", Kind: params.Bytes, Default: "0", Unit: "bytes", Help: "sent at once"},
	{Key: "engine.unexpected_limit", Kind: params.Bytes, Default: "64m", Help: "what may wait"},
	{Key: "engine.async_progress", Kind: params.Bool, Default: "true", Help: "move on"},
	{Key: "engine.depth", Kind: params.Int, Default: "16", Unit: "messages", Help: "how many"},
	{Key: "coll.bcast.algorithm", Kind: params.String, Default: "auto", Choices: []string{"auto", "binomial"}, Help: "of Bcast"},
	{Key: "coll.allreduce.algorithm", Kind: params.String, Default: "auto", Choices: []string{"auto", "ring", "rd"}, Help: "of Allreduce"},
}

var projectTable = params.Table

func TestMain(m *testing.M) {
	params.Table = testTable
	os.Exit(m.Run())
}

// useProjectTable makes params.Table the real table again until the end of the test. It is for
// tests that read files of the project.
func useProjectTable(t testing.TB) {
	params.Table = projectTable
	t.Cleanup(func() { params.Table = testTable })
}
