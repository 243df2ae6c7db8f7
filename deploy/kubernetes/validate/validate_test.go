package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var schemas = sync.OnceValues(loadSchemas)

// manifests returns the texts of the manifests in deploy/kubernetes, by file name.
func manifests(t testing.TB) map[string]string {
	t.Helper()
	names, err := filepath.Glob("../*.yaml")
	require.NoError(t, err)
	texts := make(map[string]string)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		texts[filepath.Base(name)] = string(text)
	}
	require.Contains(t, texts, "jobset.yaml")
	require.Contains(t, texts, "job.yaml")
	require.Contains(t, texts, "mpijob.yaml")
	require.Contains(t, texts, "mpijob-ssh.yaml")
	return texts
}

func problems(t *testing.T, text string) string {
	t.Helper()
	s, err := schemas()
	require.NoError(t, err)
	var all []string
	for _, err := range checkManifest(s, []byte(text)) {
		all = append(all, err.Error())
	}
	return strings.Join(all, "\n")
}

func TestManifests(t *testing.T) {
	for name, text := range manifests(t) {
		require.Empty(t, problems(t, text), name)
	}
}

// TestRefuses changes a valid manifest in one place. validate must report an error for that change.
func TestRefuses(t *testing.T) {
	texts := manifests(t)
	for _, test := range []struct{ name, file, old, new, want string }{
		{"unknown field of a JobSet", "jobset.yaml", "maxRestarts: 3", "maxRestart: 3", `unknown field "spec.failurePolicy.maxRestart"`},
		{"unknown field of a pod", "job.yaml", "subdomain: allreduce", "subDomain: allreduce", `unknown field "spec.template.spec.subDomain"`},
		{"unknown field of an MPIJob", "mpijob.yaml", "slotsPerWorker: 4", "slotsPerWorkers: 4", `unknown field "spec.slotsPerWorkers"`},
		{"unknown field of a policy", "jobset.yaml", "endPort:", "endport:", `unknown field "spec.ingress[0].ports[1].endport"`},
		{"field given twice", "jobset.yaml", "maxRestarts: 3", "maxRestarts: 3\n    maxRestarts: 4", `key "maxRestarts" already set`},
		{"unknown kind", "jobset.yaml", "kind: JobSet", "kind: JobSett", `no kind "JobSett" is registered`},
		{"impossible choice in a JobSet", "jobset.yaml", "BlockingRecreate", "Blocking", `Unsupported value: "Blocking"`},
		{"impossible choice in an MPIJob", "mpijob-ssh.yaml", "cleanPodPolicy: Running", "cleanPodPolicy: Soon", "cleanPodPolicy"},
		{"no name", "job.yaml", "  name: allreduce-workers", "  labels: {}", "metadata.name: Required"},
		{"name of capitals", "job.yaml", "name: allreduce-workers", "name: Allreduce-workers", "metadata.name: Invalid"},
		{"name that makes those of pods too long", "jobset.yaml", "kind: JobSet\nmetadata:\n  name: allreduce", "kind: JobSet\nmetadata:\n  name: " + strings.Repeat("a", 46), "must be no more than 63"},

		{"flag that gorun lacks", "jobset.yaml", "- -tag-output", "- -tag-outputs", "gorun would refuse its arguments: -tag-outputs"},
		{"flag that an agent lacks", "jobset.yaml", "- -agent\n", "- -agent\n                    - -radix=2\n", "gorun would refuse its arguments: -agent"},
		{"value that gorun refuses", "job.yaml", "-connect-timeout=10m", "-connect-timeout=10", "gorun would refuse its arguments: -connect-timeout"},
		{"launcher that waits for nobody", "job.yaml", "- -listen=:7070", "- -v", "gorun would refuse its arguments: -launcher"},
		{"another program", "job.yaml", "command: [/usr/local/bin/gorun]", "command: [/bin/sh]", `runs "/bin/sh"`},
		{"command left to the image", "job.yaml", "command: [/usr/local/bin/gorun]", "", "has no command"},

		{"more agents than there are", "jobset.yaml", "-agents=2", "-agents=3", "-agents 3, but there are 2"},
		{"fewer at a time", "job.yaml", "parallelism: 2", "parallelism: 1", "-agents 2, but there are 1"},
		{"other replicas", "mpijob.yaml", "replicas: 2", "replicas: 4", "-agents 2, but there are 4"},
		{"too many ranks", "jobset.yaml", "-np=8", "-np=9", "-np 9, but 2 pods have slots for only 8 ranks"},
		{"too many ranks for a hostfile", "mpijob-ssh.yaml", "-np=8", "-np=9", "-np 9, but 2 pods have slots for only 8 ranks"},
		{"other port", "jobset.yaml", "-listen=:7070", "-listen=:7071", "is not one of the container's ports"},
		{"other address", "mpijob.yaml", "-connect=allreduce-launcher.", "-connect=allreduce-launcher-0.", `but the launcher is at "allreduce-launcher.allreduce:7070"`},
		{"name that nobody gives", "job.yaml", "completionMode: Indexed", "completionMode: NonIndexed", "its pod has no DNS name"},
		{"Service that selects nothing", "job.yaml", "selector:\n    weft-job: allreduce", "selector:\n    weft-job: other", "its pod has no DNS name"},
		{"other image", "job.yaml", "registry.example.com/weft-allreduce:1", "registry.example.com/weft-allreduce:2", "an image other than the launcher's"},
		{"other secret", "jobset.yaml", "secretName: weft-secret", "secretName: secret-weft", `has the secret "weft-secret/secret", but the launcher has "secret-weft/secret"`},
		{"secret for all", "jobset.yaml", "defaultMode: 0400", "defaultMode: 0444", "does not have mode 0400"},
		{"secret for root", "job.yaml", "fsGroup: 65532", "fsGroupChangePolicy: Always", "no fsGroup"},
		{"secret that is not there", "job.yaml", "-secret-file=/etc/weft/secret", "-secret-file=/etc/secret", "is not in a mounted Secret"},
		{"other hostfile", "mpijob-ssh.yaml", "-hostfile=/etc/mpi/hostfile", "-hostfile=/etc/hostfile", "has its hosts in /etc/mpi/hostfile"},
		{"no sshd", "mpijob-ssh.yaml", "command: [/usr/sbin/sshd]\n              args: [-D, -e, -f, /etc/weft/sshd_config]",
			"command: [gorun]\n              args: [-agent, -connect=allreduce-launcher.allreduce:7070, -secret-file=/x]", "runs no sshd"},

		{"root", "jobset.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "restricted by the Pod Security Standards: runAsNonRoot != true"},
		{"capabilities", "jobset.yaml", "drop: [ALL]", "drop: [KILL]", "restricted by the Pod Security Standards: unrestricted capabilities"},
		{"writable root", "mpijob.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "root file system is not read-only"},
		{"token", "job.yaml", "automountServiceAccountToken: false", "automountServiceAccountToken: true", "token of a service account"},
		{"no limit", "jobset.yaml", "memory: 256Mi", "ephemeral-storage: 1Gi", "no limit of memory"},
		{"volume that is not there", "jobset.yaml", "- name: tmp\n                      mountPath", "- name: temp\n                      mountPath", `no volume "temp"`},
		{"shared memory on a disk", "jobset.yaml", "medium: Memory", "medium: HugePages", "/dev/shm"},
		{"more shared memory than memory", "mpijob-ssh.yaml", "sizeLimit: 1Gi", "sizeLimit: 8Gi", "/dev/shm of 8Gi"},

		{"policy for others", "jobset.yaml", "podSelector:\n    matchLabels:\n      weft-job: allreduce", "podSelector:\n    matchLabels:\n      weft-job: other", "no NetworkPolicy limits"},
		{"policy that lets all in", "job.yaml", "    - from:\n        - podSelector:\n            matchLabels:\n              weft-job: allreduce\n      ports:", "    - ports:", "admits any source"},
		{"policy that lets namespaces in", "job.yaml", "    - from:\n        - podSelector:", "    - from:\n        - namespaceSelector: {}\n          podSelector:", "admits pods other"},
		{"policy without the launcher's port", "jobset.yaml", "- port: 7070 # the launcher", "- port: 7071", "no NetworkPolicy lets ReplicatedJob workers reach port 7070"},
		{"policy without some ports of ranks", "jobset.yaml", "endPort: 65535", "endPort: 32767", "no NetworkPolicy lets ranks"},
		{"policy without sshd", "mpijob-ssh.yaml", "- port: 2222 # sshd", "- port: 22", "reach sshd of Worker on port 2222"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Contains(t, texts[test.file], test.old)
			require.Contains(t, problems(t, strings.Replace(texts[test.file], test.old, test.new, 1)), test.want)
		})
	}
}

func TestRun(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(&stdout, &stderr, nil), stderr.String())
	require.Empty(t, stderr.String())
	require.Equal(t, 4, strings.Count(stdout.String(), ": valid\n"))

	bad := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("kind: Pod\n"), 0o600))
	stdout.Reset()
	require.Equal(t, 1, run(&stdout, &stderr, []string{bad, "../job.yaml"}))
	require.Contains(t, stderr.String(), bad+": document 1: ")
	require.Contains(t, stdout.String(), "../job.yaml: valid")

	require.Equal(t, 2, run(&stdout, &stderr, []string{filepath.Join(t.TempDir(), "none.yaml")}))
}

func FuzzManifest(f *testing.F) {
	for _, text := range manifests(f) {
		f.Add([]byte(text))
	}
	f.Add([]byte("apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata:\n  name: a\nspec:\n  mpiReplicaSpecs:\n    Launcher: {}\n"))
	f.Add([]byte("---\n---\n"))
	s, err := schemas()
	require.NoError(f, err)
	f.Fuzz(func(_ *testing.T, text []byte) { checkManifest(s, text) })
}
