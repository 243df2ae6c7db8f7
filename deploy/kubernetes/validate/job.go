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

// member is pods, and what they do in the job.
type member struct {
	podSet
	command
}

// checkJob checks what the objects of a manifest are together: one job of weft,
// whose launcher and agents find each other; in pods that the strictest of the
// Pod Security Standards admits, and that nobody else reaches.
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
		return append(errs, fmt.Errorf("a job has one launcher and agents, and this one has %d and %d kinds of them", len(launchers), len(agents)))
	}
	launcher := launchers[0]
	for _, err := range checkAgreement(launcher, agents, policies) {
		errs = append(errs, fmt.Errorf("%s: %w", launcher.name, err))
	}
	return errs
}

// checkAgreement checks a launcher and those who run its ranks against each other.
func checkAgreement(launcher member, agents []member, policies []*networkingv1.NetworkPolicy) []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if launcher.count != 1 {
		fail("there are %d of it", launcher.count)
	}
	there := 0
	for _, a := range agents {
		there += a.count
		if a.spec.Containers[0].Image != launcher.spec.Containers[0].Image {
			fail("%s has another image", a.name)
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
		fail("-np %d, and %d pods take %d ranks", np, there, slots)
	}
	return errs
}

// checkDial: agents look for the launcher where it is, there are as many as it
// expects, and they have its secret.
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
		fail("-listen %s is none of the container's ports", j.Listen)
	}
	if launcher.host == "" {
		fail("nobody gives its pod a name: it takes an Indexed Job, and a headless Service that is named in subdomain and selects it")
	}
	if j.Agents != there {
		fail("-agents %d, and there are %d", j.Agents, there)
	}
	secret, err := launcher.secret(j.SecretFile)
	if err != nil {
		fail("%w", err)
	}
	want := net.JoinHostPort(launcher.host, text)
	for _, a := range agents {
		if a.sshd || a.agent.Connect != want {
			fail("%s connects to %q, and the launcher is at %q", a.name, a.agent.Connect, want)
			continue
		}
		if got, err := a.secret(a.agent.SecretFile); err != nil || got != secret {
			fail("%s has the secret %q, and the launcher %q", a.name, got, secret)
		}
		if !admitted(policies, a.podSet, launcher.podSet, int32(port), int32(port)) {
			fail("no NetworkPolicy lets %s reach port %d", a.name, port)
		}
	}
	return errs
}

// checkSSH: the launcher reads mpi-operator's hostfile, and its hosts run sshd.
func checkSSH(launcher member, agents []member, there int, policies []*networkingv1.NetworkPolicy) []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	j := launcher.job
	if launcher.hostfile == "" || j.Hostfile != mpiHostfile {
		fail("-hostfile %q, and the hosts stand in %s of an MPIJob", j.Hostfile, mpiHostfile)
	}
	if len(j.Hosts) != there {
		fail("the hostfile names %d hosts, and there are %d", len(j.Hosts), there)
	}
	for _, a := range agents {
		if !a.sshd {
			fail("%s runs no sshd, and the launcher has no -listen", a.name)
			continue
		}
		if len(a.ports()) == 0 {
			fail("%s does not say on which port sshd listens", a.name)
		}
		for _, port := range a.ports() {
			for _, from := range append([]member{launcher}, agents...) { // agents start others
				if !admitted(policies, from.podSet, a.podSet, port, port) {
					fail("no NetworkPolicy lets %s reach sshd of %s on port %d", from.name, a.name, port)
				}
			}
		}
	}
	return errs
}

// secret names what a file is: a Secret, and its key.
func (p podSet) secret(file string) (string, error) {
	v := p.volume(path.Dir(file))
	switch {
	case v == nil || v.Secret == nil:
		return "", fmt.Errorf("-secret-file %q is not in a mounted Secret", file)
	case v.Secret.DefaultMode == nil || *v.Secret.DefaultMode != 0o400 || len(v.Secret.Items) > 0:
		return "", fmt.Errorf("-secret-file %q has not mode 0400", file)
	case p.spec.SecurityContext == nil || p.spec.SecurityContext.FSGroup == nil:
		return "", errors.New("no fsGroup: files of a Secret are root's, and the pod's user could not read it")
	}
	return v.Secret.SecretName + "/" + path.Base(file), nil
}
