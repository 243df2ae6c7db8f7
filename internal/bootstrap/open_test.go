package bootstrap

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWorldOfOne(t *testing.T) {
	joined := []string{"PMI_FD", "99", "PMI_RANK", "1", "PMI_SIZE", "2", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2"}
	for _, c := range []struct {
		env  []string
		says string // a part of the warning; empty: open writes none
	}{
		{nil, ""},
		{[]string{"OMPI_COMM_WORLD_SIZE", "1", "OMPI_COMM_WORLD_RANK", "0"}, ""},
		{[]string{"OMPI_MCA_btl", "tcp", "SLURM_CONF", "/etc/slurm.conf"}, ""},
		{[]string{"SLURM_JOB_ID", "7", "SLURM_NTASKS", "4", "SLURM_PROCID", "0"}, "SLURM_NTASKS=4 is set"},                                                 // a batch script of 4 tasks
		{[]string{"SLURM_JOB_ID", "7", "SLURM_NTASKS", "4"}, "SLURM_NTASKS=4 is set"},                                                                      // the shell of salloc
		{[]string{"SLURM_JOB_ID", "7", "SLURM_NTASKS", "4", "SLURM_PROCID", "0", "SLURM_STEP_ID", "4294967290"}, "SLURM_NTASKS=4 is set"},                  // the shell of salloc on a node
		{[]string{"SLURM_JOB_ID", "7", "SLURM_NTASKS", "1", "SLURM_PROCID", "0"}, ""},                                                                      // a batch script of one task
		{[]string{"SLURM_JOB_ID", "7", "SLURM_NTASKS", "4", "SLURM_STEP_NUM_TASKS", "1", "SLURM_PROCID", "0", "SLURM_STEP_ID", "3", "PMIX_RANK", "0"}, ""}, // a step of one task
		{append(joined, EnvJoined, envStamp(env(joined...))), "PMI_SIZE=2 is set: the process that started it is a rank"},
		{[]string{"PMI_SIZE", "1", "PMI_RANK", "0", "PMI_FD", "99"}, ""},
		{[]string{"FLUX_JOB_SIZE", "1", "FLUX_TASK_RANK", "0"}, ""},
	} {
		var said bytes.Buffer
		w, err := open(t.Context(), env(c.env...), &said)
		require.NoError(t, err, c.env)
		require.Equal(t, []any{0, 1, "none", []int{0}}, []any{w.Rank, w.Size, w.Launcher, w.HostOf})
		require.NotEmpty(t, w.JobID)
		require.NotZero(t, w.Secret)
		require.NotNil(t, w.Params)
		if c.says == "" {
			require.Empty(t, said.String())
			continue
		}
		require.Contains(t, said.String(), c.says)
		require.Equal(t, 1, strings.Count(said.String(), "\n"))
	}
	w, err := open(t.Context(), env(), io.Discard)
	require.NoError(t, err)
	require.NoError(t, w.KVS.Put("a", "b"))
	require.NoError(t, w.KVS.Fence(t.Context()))
	v, err := w.KVS.Get("a")
	require.NoError(t, err)
	require.Equal(t, "b", v)
	_, err = w.KVS.Get("c")
	require.ErrorIs(t, err, ErrNoKey)
	require.NoError(t, errors.Join(w.KVS.Abort(Abort{Code: 1}), w.KVS.Finalize()))
}

// TestRefusals checks that open returns an error instead of a world of one if the environment says
// that there are other ranks but not how to find them.
func TestRefusals(t *testing.T) {
	step := []string{"SLURM_JOB_ID", "7", "SLURM_STEP_ID", "0"}
	for _, c := range []struct {
		env  []string
		says string
	}{
		{[]string{"OMPI_COMM_WORLD_SIZE", "4"}, "Open MPI: found OMPI_COMM_WORLD_SIZE=4, but no OMPI_COMM_WORLD_RANK"},
		{[]string{"OMPI_COMM_WORLD_RANK", "2"}, "found OMPI_COMM_WORLD_RANK=2, but no variable with the number of ranks"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "4"}, `found OMPI_COMM_WORLD_RANK="4" and OMPI_COMM_WORLD_SIZE="4"`},
		{[]string{"OMPI_COMM_WORLD_SIZE", "0", "OMPI_COMM_WORLD_RANK", "0"}, "which is not a rank of a job"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "99999999", "OMPI_COMM_WORLD_RANK", "0"}, "which is not a rank of a job"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "-1"}, "which is not a rank of a job"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "x", "OMPI_COMM_WORLD_RANK", "1"}, "which is not a rank of a job"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_RANK", "1"}, "neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid"},
		{append(step, "SLURM_PROCID", "8", "SLURM_NTASKS", "8"), `found SLURM_PROCID="8" and SLURM_NTASKS="8"`},
		{append(step, "SLURM_PROCID", "8"), "no variable with the number of ranks"},
		{append(step, "SLURM_STEP_NUM_TASKS", "8"), "but no SLURM_PROCID"},
		{[]string{"SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_NTASKS", "8"}, "but no SLURM_JOB_ID"},
		{[]string{EnvRank, "2", EnvJobFD, "97", "PMI_FD", "98", "PMI_SIZE", "4"}, "found WEFT_RANK=2 WEFT_JOB_FD=97 PMI_FD=98, but not the descriptors of gorun"},
		{[]string{"PMI_FD", "0", "PMI_RANK", "1", "PMI_SIZE", "2"}, "found PMI_RANK=1 PMI_SIZE=2 PMI_FD=0, but PMI_FD is not a socket"},
		{[]string{"PMI_RANK", "1"}, "found PMI_RANK=1, but neither PMI_FD nor PMI_PORT"},
		{[]string{"PMI_RANK", "1", "PMI_SIZE", "4"}, "but neither PMI_FD nor PMI_PORT"},
		{append(step, "SLURM_PROCID", "0", "SLURM_NTASKS", "2", "PMI_FD", "98", "PMI_RANK", "5", "PMI_SIZE", "8"), "but PMI_FD is not a socket"},
		{[]string{"PMI_PORT", "127.0.0.1:1"}, "PMI_ID"},
		{[]string{"MV2_COMM_WORLD_SIZE", "4", "MV2_COMM_WORLD_RANK", "1"}, "found MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=4"},
		{[]string{"FLUX_JOB_SIZE", "4", "FLUX_TASK_RANK", "1"}, "flux run -o pmi=simple"},
		{[]string{"PMIX_RANK", "0", "PMIX_NAMESPACE", "prte-1@2"}, "PMIx alone is not supported"},
		// EnvJoined does not fit the other variables.
		{[]string{EnvJoined, "0123456789abcdef", "PMI_RANK", "1"}, "but neither PMI_FD nor PMI_PORT"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "0", "PMIX_NAMESPACE", "1"}, `HOME=""`},
		{[]string{"OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "0", "PMIX_NAMESPACE", "1", "HOME", "/proc/none"}, "/proc/none/.weft"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "0", "PMIX_NAMESPACE", "1", "WEFT_BOOTSTRAP_DIR", "here"}, "not an absolute path"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "0", "PMIX_NAMESPACE", "1", "WEFT_BOOTSTRAP_TIMEOUT", "0s"}, "bootstrap.timeout=0s"},
		{[]string{"OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "0", "PMIX_NAMESPACE", "1", "WEFT_BOOTSTRAP_TIMEOUT", "soon"}, "WEFT_BOOTSTRAP_TIMEOUT"},
	} {
		var said bytes.Buffer
		_, err := open(t.Context(), env(c.env...), &said)
		require.ErrorContains(t, err, c.says, c.env)
		require.NotContains(t, err.Error(), "\n")
		require.Empty(t, said.String(), c.env)
	}
}

func TestPlaces(t *testing.T) {
	ompi := env("OMPI_COMM_WORLD_SIZE", "3", "OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_LOCAL_SIZE", "3", "OMPI_MCA_orte_app_num", "1",
		"PMIX_NAMESPACE", "prterun-../x@1", "OMPI_MCA_orte_precondition_transports", "a-b")
	p, err := fromOpenMPI(ompi)
	require.NoError(t, err)
	require.Equal(t, []any{"openmpi", 2, 3, 1, true}, []any{p.launcher, p.rank, p.size, p.app, p.oneHost})
	require.Regexp(t, `^openmpi-prterun-\.\._x_1-[0-9a-f]{12}$`, p.job)

	slurm := []string{"SLURM_JOB_ID", "7", "SLURM_STEP_ID", "2", "SLURM_PROCID", "3", "SLURM_NTASKS", "9", "SLURM_STEP_NUM_TASKS", "4",
		"SLURM_STEP_NUM_NODES", "1", "SLURM_STEP_NODELIST", "n[1-2]", "SLURM_CLUSTER_NAME", "c"}
	p, err = fromSlurm(env(slurm...))
	require.NoError(t, err)
	require.Equal(t, []any{"slurm", 3, 4, true, "n[1-2]"}, []any{p.launcher, p.rank, p.size, p.oneHost, p.hosts})
	require.Regexp(t, `^slurm-7\.2-[0-9a-f]{12}$`, p.job)
	for _, other := range [][]string{{"SLURM_CLUSTER_NAME", "d"}, {"SLURM_RESTART_COUNT", "1"}, {"SLURM_STEP_ID", "3"}, {"SLURM_JOB_ID", "8"}} {
		q, err := fromSlurm(env(append(other, slurm...)...))
		require.NoError(t, err)
		require.NotEqual(t, p.job, q.job)
	}
	// In a heterogeneous job the variables describe the nodes of one part of the job.
	q, err := fromSlurm(env(append([]string{"SLURM_HET_SIZE", "2"}, slurm...)...))
	require.NoError(t, err)
	require.False(t, q.oneHost)

	for _, none := range []func(func(string) string) (*place, error){fromOpenMPI, fromSlurm} {
		p, err := none(env("HOME", "/root", "SLURM_CONF", "x", "OMPI_MCA_btl", "self"))
		require.NoError(t, err)
		require.Nil(t, p)
	}
	long := fileName("slurm", strings.Repeat("/", 5000), "")
	require.Less(t, len(long), 100)
	require.NotContains(t, long, string(os.PathSeparator))
}
