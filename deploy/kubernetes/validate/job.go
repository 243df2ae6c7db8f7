package main

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weft-hpc/weft/launcher/job"
)

// member is a set of pods and the command that each of them runs in the job.
type member struct {
	podSet
	command
}

// checkJob checks that the objects of a manifest together are one weft job: a launcher, and agents that can
// reach the launcher and each other. The pods must meet the strictest of the Pod Security Standards, and
// pods of other jobs must not be able to connect to them.
func checkJob(objects []runtime.Object) []error {
	var services []*corev1.Service
	var policies []*networkingv1.NetworkPolicy
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			services = append(services, o)
		case *networkingv1.NetworkPolicy:
			policies = append(policies, o)
		}
	}
	var errs []error
	var launchers, agents []member
	for _, o := range objects {
		for _, p := range podSetsOf(o, services) {
			if len(p.spec.Containers) == 0 {
				errs = append(errs, fmt.Errorf("%s: no container", p.name))
				continue
			}
			m := member{podSet: p}
			problems := append(checkPods(p), checkIsolation(p, policies)...)
			var err error
			if m.command, err = p.command(); err != nil {
				problems = append(problems, err)
			}
			switch {
			case m.job != nil:
				launchers = append(launchers, m)
			case err == nil:
				agents = append(agents, m)
				problems = append(problems, checkSharedMemory(p)...)
			}
			for _, err := range problems {
				errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
			}
		}
	}
	if len(launchers) != 1 || len(agents) == 0 {
		return append(errs, fmt.Errorf("a job has one launcher and agents, but this one has %d launchers and %d kinds of agents", len(launchers), len(agents)))
	}
	launcher := launchers[0]
	for _, err := range checkAgreement(launcher, agents, policies) {
		errs = append(errs, fmt.Errorf("%s: %w", launcher.name, err))
	}
	return errs
}

// checkAgreement checks that the launcher and the agents fit together: their image, the network policies
// between them, and the number of ranks.
func checkAgreement(launcher member, agents []member, policies []*networkingv1.NetworkPolicy) []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if launcher.count != 1 {
		fail("expected one launcher pod, found %d", launcher.count)
	}
	there := 0
	for _, a := range agents {
		there += a.count
		if a.spec.Containers[0].Image != launcher.spec.Containers[0].Image {
			fail("%s has an image other than the launcher's", a.name)
		}
		for _, b := range agents {
			if !admitted(policies, a.podSet, b.podSet, firstRankPort, lastPort) {
				fail("no NetworkPolicy lets ranks of %s reach those of %s, on ports %d to %d", a.name, b.name, firstRankPort, lastPort)
			}
		}
	}
	slots := launcher.job.Slots * there
	if launcher.job.Launcher == job.LaunchDial || launcher.job.Listen != "" {
		errs = append(errs, checkDial(launcher, agents, there, policies)...)
	} else {
		errs = append(errs, checkSSH(launcher, agents, there, policies)...)
		slots = 0
		for _, h := range launcher.job.Hosts {
			slots += h.Slots
		}
	}
	if np := launcher.job.NP(); np > slots {
		fail("-np %d, but %d pods have slots for only %d ranks", np, there, slots)
	}
	return errs
}

// checkDial checks a job whose agents connect to the launcher (gorun -listen): the launcher's pod
// has a DNS name and declares the port, the agents connect to this name and port, network policies
// permit that, there are as many agents (there) as the launcher expects, and all have the
// launcher's secret.
func checkDial(launcher member, agents []member, there int, policies []*networkingv1.NetworkPolicy) []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	j := launcher.job
	_, text, err := net.SplitHostPort(j.Listen)
	if err != nil {
		return []error{fmt.Errorf("-listen: %w", err)}
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return []error{fmt.Errorf("-listen: %w", err)}
	}
	if !slices.Contains(launcher.ports(), int32(port)) {
		fail("-listen %s is not one of the container's ports", j.Listen)
	}
	if launcher.host == "" {
		fail("its pod has no DNS name: the Job must be Indexed, and subdomain must name a headless Service that selects the pod")
	}
	if j.Agents != there {
		fail("-agents %d, but there are %d agents", j.Agents, there)
	}
	secret, err := launcher.secret(j.SecretFile)
	if err != nil {
		fail("%w", err)
	}
	want := net.JoinHostPort(launcher.host, text)
	for _, a := range agents {
		if a.sshd || a.agent.Connect != want {
			fail("%s connects to %q, but the launcher is at %q", a.name, a.agent.Connect, want)
			continue
		}
		if got, err := a.secret(a.agent.SecretFile); err != nil || got != secret {
			fail("%s has the secret %q, but the launcher has %q", a.name, got, secret)
		}
		if !admitted(policies, a.podSet, launcher.podSet, int32(port), int32(port)) {
			fail("no NetworkPolicy lets %s reach port %d", a.name, port)
		}
	}
	return errs
}

// checkSSH checks a job whose launcher starts the agents by ssh: the launcher reads the hostfile of
// mpi-operator, which names as many hosts as there are agents (there), the agents' pods run sshd
// and declare its port, and network policies permit connections to that port.
func checkSSH(launcher member, agents []member, there int, policies []*networkingv1.NetworkPolicy) []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	j := launcher.job
	if launcher.hostfile == "" || j.Hostfile != mpiHostfile {
		fail("-hostfile %q, but an MPIJob has its hosts in %s", j.Hostfile, mpiHostfile)
	}
	if len(j.Hosts) != there {
		fail("the hostfile names %d hosts, but there are %d", len(j.Hosts), there)
	}
	for _, a := range agents {
		if !a.sshd {
			fail("%s runs no sshd, but the launcher has no -listen", a.name)
			continue
		}
		if len(a.ports()) == 0 {
			fail("%s does not declare the port of sshd", a.name)
		}
		for _, port := range a.ports() {
			// Agents also connect, because agents start other agents by ssh.
			for _, from := range append([]member{launcher}, agents...) {
				if !admitted(policies, from.podSet, a.podSet, port, port) {
					fail("no NetworkPolicy lets %s reach sshd of %s on port %d", from.name, a.name, port)
				}
			}
		}
	}
	return errs
}

// secret returns the Secret of Kubernetes and the key in it that a file of the pods comes from, as
// NAME/KEY. If the file is not in a mounted Secret, does not have mode 0400, or cannot be read by
// the pod's user, secret returns an error.
func (p podSet) secret(file string) (string, error) {
	v := p.volume(path.Dir(file))
	switch {
	case v == nil || v.Secret == nil:
		return "", fmt.Errorf("-secret-file %q is not in a mounted Secret", file)
	case v.Secret.DefaultMode == nil || *v.Secret.DefaultMode != 0o400 || len(v.Secret.Items) > 0:
		return "", fmt.Errorf("-secret-file %q does not have mode 0400", file)
	case p.spec.SecurityContext == nil || p.spec.SecurityContext.FSGroup == nil:
		return "", errors.New("no fsGroup: root owns the files of a Secret, so the pod's user could not read the secret")
	}
	return v.Secret.SecretName + "/" + path.Base(file), nil
}
