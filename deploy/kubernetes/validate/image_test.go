package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	mpiv2 "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/v2beta1"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// TestImage checks that the Dockerfile installs the programs and files that the manifests name, and that the
// Dockerfile and the manifests use the same user and group.
func TestImage(t *testing.T) {
	stages := strings.Split(read(t, "../Dockerfile"), "\nFROM ")
	require.Len(t, stages, 4)
	for name, text := range manifests(t) {
		stage := stages[3] // the last stage, which docker builds if there is no --target
		if name == "mpijob-ssh.yaml" {
			stage = stages[2]
			require.Contains(t, stage, " AS ssh\n")
		}
		for _, m := range regexp.MustCompile(`(?:command: \[|- |, )(/(?:usr|app|etc)/[^\s,\]]*)`).FindAllStringSubmatch(text, -1) {
			path := m[1]
			if path == "/usr/sbin/sshd" {
				require.Contains(t, stage, "openssh-server")
				continue
			}
			require.Regexp(t, `\nCOPY .* `+regexp.QuoteMeta(path)+`\n`, stage, name)
		}
		for _, m := range regexp.MustCompile(`runAsUser: (\d+)\n *runAsGroup: (\d+)`).FindAllStringSubmatch(text, -1) {
			require.Contains(t, stage, "\nUSER "+m[1]+":"+m[2]+"\n", name)
		}
	}
	for _, m := range regexp.MustCompile(`\nCOPY (deploy\S+) `).FindAllStringSubmatch(strings.Join(stages, "\nFROM "), -1) {
		require.FileExists(t, "../../../"+m[1])
	}
}

// TestSSH checks that the configuration of the ssh client, that of the server, and the manifest name the
// same port and the same path of the key.
func TestSSH(t *testing.T) {
	text := manifests(t)["mpijob-ssh.yaml"]
	documents := strings.Split(text, "\n---\n")
	var set mpiv2.MPIJob
	require.NoError(t, yaml.Unmarshal([]byte(documents[0]), &set))
	pods := podSetsOf(runtime.Object(&set), nil)
	require.Len(t, pods, 2)
	require.Len(t, pods[1].ports(), 1)
	port := strconv.Itoa(int(pods[1].ports()[0]))
	server, client := read(t, "../ssh/sshd_config"), read(t, "../ssh/ssh_config")
	require.Contains(t, server, "\nPort "+port+"\n")
	require.Contains(t, client, " Port "+port+"\n")
	keys := set.Spec.SSHAuthMountPath
	require.Contains(t, server, "\nHostKey "+keys+"/id_rsa\n")
	require.Contains(t, server, "\nAuthorizedKeysFile "+keys+"/authorized_keys\n")
	require.Contains(t, client, " "+keys+"/id_rsa.pub\n")
}

// TestRankPorts checks that firstRankPort, from which on the policies must permit ports, is the first port
// that the launcher chooses for ranks.
func TestRankPorts(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../../launcher/internal/procs/layout.go", nil, 0)
	require.NoError(t, err)
	found := false
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].Name == "firstPort" && len(v.Values) == 1 {
			found = true
			require.Equal(t, strconv.Itoa(firstRankPort), v.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	require.True(t, found, "no constant firstPort")
}

// TestPage checks that docs/launching-kubernetes.md names each manifest, and the versions of the APIs with
// which validate checks the manifests.
func TestPage(t *testing.T) {
	page := read(t, "../../../docs/launching-kubernetes.md")
	for _, m := range regexp.MustCompile(`(?m)^\t(k8s\.io/api|sigs\.k8s\.io/jobset|github\.com/kubeflow/mpi-operator) (v\S+)$`).FindAllStringSubmatch(read(t, "go.mod"), -1) {
		require.Contains(t, page, "`"+m[1]+"` "+m[2])
	}
	for name := range manifests(t) {
		require.Contains(t, page, "deploy/kubernetes/"+name)
	}
}
