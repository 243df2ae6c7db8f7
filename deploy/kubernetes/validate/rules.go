package main

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// The range of the ports on which ranks listen. Package launcher/internal/procs chooses ports from
// firstRankPort on, or the kernel assigns ephemeral ports, which are in this range too.
const (
	firstRankPort = 10000
	lastPort      = 65535
)

// checkPods checks the pods of a template: they must meet the profile "restricted" of the Pod Security
// Standards, must not have errors for which a Job controller or a kubelet would refuse them, and must
// follow this project's rules, for example an emptyDir at /tmp.
func checkPods(p podSet) []error {
	var errs []error
	for _, why := range validation.IsDNS1123Label(p.longest) {
		errs = append(errs, fmt.Errorf("the name of a pod, for example %s: %s", p.longest, why))
	}
	restricted, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return []error{err}
	}
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, r := range restricted.EvaluatePod(level, &metav1.ObjectMeta{Labels: p.labels}, p.spec) {
		if !r.Allowed {
			errs = append(errs, fmt.Errorf("restricted by the Pod Security Standards: %s: %s", r.ForbiddenReason, r.ForbiddenDetail))
		}
	}
	if v := p.volume("/tmp"); v == nil || v.EmptyDir == nil {
		errs = append(errs, errors.New("no emptyDir at /tmp"))
	}
	if token := p.spec.AutomountServiceAccountToken; token == nil || *token {
		errs = append(errs, errors.New("ranks have the token of a service account"))
	}
	volumes := make(map[string]bool)
	for _, v := range p.spec.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range p.spec.Containers {
		for _, err := range checkContainer(c, volumes) {
			errs = append(errs, fmt.Errorf("container %s: %w", c.Name, err))
		}
	}
	return errs
}

func checkContainer(c corev1.Container, volumes map[string]bool) []error {
	var errs []error
	if c.Image == "" {
		errs = append(errs, errors.New("no image"))
	}
	if c.SecurityContext == nil || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
		errs = append(errs, errors.New("its root file system is not read-only"))
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q := c.Resources.Limits[name]; q.Sign() <= 0 {
			errs = append(errs, fmt.Errorf("no limit of %s", name))
		}
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] || !path.IsAbs(m.MountPath) || strings.Contains(m.MountPath, ":") {
			errs = append(errs, fmt.Errorf("no volume %q for %q", m.Name, m.MountPath))
		}
	}
	return errs
}

// checkSharedMemory checks that the volume at /dev/shm is in memory and has a size limit that is smaller
// than the pod's memory limit.
func checkSharedMemory(p podSet) []error {
	v := p.volume("/dev/shm")
	if v == nil || v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumMemory || v.EmptyDir.SizeLimit == nil {
		return []error{errors.New("no emptyDir of Memory with a sizeLimit at /dev/shm")}
	}
	limit := p.spec.Containers[0].Resources.Limits[corev1.ResourceMemory]
	if v.EmptyDir.SizeLimit.Cmp(limit) >= 0 {
		return []error{fmt.Errorf("/dev/shm of %s, but the pod's memory limit is %s", v.EmptyDir.SizeLimit, &limit)}
	}
	return nil
}

// checkIsolation checks that network policies limit the incoming and outgoing connections of the pods p, and
// that only pods which the same policy selects can connect to them.
func checkIsolation(p podSet, policies []*networkingv1.NetworkPolicy) []error {
	var errs []error
	in, out := false, false
	for _, n := range policies {
		if !selected(&n.Spec.PodSelector, p.labels) {
			continue
		}
		in = in || limits(n, networkingv1.PolicyTypeIngress, p)
		out = out || limits(n, networkingv1.PolicyTypeEgress, p)
		for _, rule := range n.Spec.Ingress {
			if len(rule.From) == 0 || len(rule.Ports) == 0 {
				errs = append(errs, fmt.Errorf("NetworkPolicy %s admits any source, or any port", n.Name))
			}
			for _, from := range rule.From {
				if !isOwn(from) || !sameSelector(from.PodSelector, &n.Spec.PodSelector) {
					errs = append(errs, fmt.Errorf("NetworkPolicy %s admits pods other than those that it selects", n.Name))
				}
			}
		}
	}
	if !in || !out {
		errs = append(errs, errors.New("no NetworkPolicy limits its incoming and outgoing connections"))
	}
	return errs
}

// admitted reports whether the network policies permit connections from the pods from to the pods to, on all
// ports of a range. As in Kubernetes, if no policy for a direction selects a pod, all connections of the
// pod in that direction are permitted.
func admitted(policies []*networkingv1.NetworkPolicy, from, to podSet, first, last int32) bool {
	in, out := true, true
	for _, n := range policies {
		in = in && !limits(n, networkingv1.PolicyTypeIngress, to)
		out = out && !limits(n, networkingv1.PolicyTypeEgress, from)
	}
	for _, n := range policies {
		if selected(&n.Spec.PodSelector, to.labels) {
			for _, r := range n.Spec.Ingress {
				in = in || (len(r.From) == 0 || names(r.From, from.labels)) && covers(r.Ports, first, last)
			}
		}
		if selected(&n.Spec.PodSelector, from.labels) {
			for _, r := range n.Spec.Egress {
				out = out || (len(r.To) == 0 || names(r.To, to.labels)) && covers(r.Ports, first, last)
			}
		}
	}
	return in && out
}

// limits reports whether a network policy applies to the pods p in this direction.
func limits(n *networkingv1.NetworkPolicy, direction networkingv1.PolicyType, p podSet) bool {
	return selected(&n.Spec.PodSelector, p.labels) && slices.Contains(n.Spec.PolicyTypes, direction)
}

func names(peers []networkingv1.NetworkPolicyPeer, have labels.Set) bool {
	return slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool { return isOwn(p) && selected(p.PodSelector, have) })
}

// isOwn reports whether the peer p of a network policy names pods of the policy's own namespace, and nothing
// else.
func isOwn(p networkingv1.NetworkPolicyPeer) bool {
	return p.PodSelector != nil && p.NamespaceSelector == nil && p.IPBlock == nil
}

// covers reports whether one entry of ports covers the whole range of TCP ports from first to last.
// An empty list stands for all ports.
func covers(ports []networkingv1.NetworkPolicyPort, first, last int32) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			return false
		}
		if p.Port == nil {
			return true
		}
		end := p.Port.IntVal
		if p.EndPort != nil {
			end = *p.EndPort
		}
		return p.Port.StrVal == "" && p.Port.IntVal <= first && last <= end
	})
}

func selected(s *metav1.LabelSelector, have labels.Set) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(have)
}

func sameSelector(a, b *metav1.LabelSelector) bool {
	return metav1.FormatLabelSelector(a) == metav1.FormatLabelSelector(b)
}
