//go:build linux

package launcher

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServices(t *testing.T) {
	r := &run{names: make(map[string]string)}
	for _, c := range [][2]string{
		{"lookup_name service=s", "lookup_result rc=-1 msg=service_not_found"},
		{"publish_name service=s port=tag#0$p", "publish_result rc=0 msg=success"},
		{"publish_name service=s port=q", "publish_result rc=-1 msg=duplicate_service_name"},
		{"lookup_name service=s", "lookup_result port=tag#0$p rc=0 msg=success"},
		{"unpublish_name service=s", "unpublish_result rc=0 msg=success"},
		{"unpublish_name service=s", "unpublish_result rc=-1 msg=service_not_found"},
		{"publish_name port=p", "publish_result rc=-1 msg=service_missing"},
		{"dance", "error_result rc=-1 msg=unknown_command"},
	} {
		require.Equal(t, "cmd="+c[1]+"\n", string(r.service([]byte("cmd="+c[0]+"\n"))))
	}
	require.Equal(t, "cmd=error_result rc=-1 msg=unknown_command\n", string(r.service([]byte("GET / HTTP/1.1"))))
}

// mpich compiles the C program name in testdata with MPICH, and returns the path of the executable.
func mpich(t *testing.T, name string) string {
	t.Helper()
	cc, err := exec.LookPath("mpicc.mpich")
	if err != nil {
		t.Fatal("no mpicc.mpich: install mpich and libmpich-dev, as make test does")
	}
	exe := filepath.Join(t.TempDir(), name)
	out, err := exec.Command(cc, "-O1", "-o", exe, filepath.Join("testdata", name+".c")).CombinedOutput()
	require.NoError(t, err, string(out))
	return exe
}

func TestMPICHPrograms(t *testing.T) {
	hello := mpich(t, "hello")
	for _, np := range []int{1, 4} {
		j := testJob(np)
		j.Apps[0].Program = hello
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		var want []string
		for r := range np {
			want = append(want, fmt.Sprintf("hello from %d of %d app 0", r, np))
		}
		require.Equal(t, want, sortedLines(out))
	}
	j := testJob(2)
	j.Apps[0].Program = hello
	j.Apps = append(j.Apps, j.Apps[0])
	_, out, stderr := runJob(t, j)
	require.Equal(t, 2, strings.Count(out, "of 4 app 1\n"), out+stderr)

	j = testJob(4, "abort")
	j.Apps[0].Program = hello
	res, _, stderr := runJob(t, j)
	require.Equal(t, 9, res.ExitCode, stderr)
	require.Contains(t, stderr, "gorun: rank 1 called Abort (exit code 9)")

	j = testJob(4)
	j.Apps[0].Program = mpich(t, "ring")
	res, out, stderr = runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Equal(t, "token 12\n", out)
}

// TestHydraInsideGorun: the only rank of a job is mpiexec.hydra, which starts two ranks of its own.
// They must join the job of hydra, by its PMI server, and not that of gorun.
func TestHydraInsideGorun(t *testing.T) {
	mpiexec, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		t.Fatal("no mpiexec.hydra: install mpich, as make test does")
	}
	j := testJob(1, "-n", "2", os.Args[0], "world")
	j.Apps[0].Program = mpiexec
	res, out, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Equal(t, 2, strings.Count(out, "of 2 app 0 by pmi nodes [0 0]"), out)
}
