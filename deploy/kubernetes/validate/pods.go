package main

import (
	"fmt"
	"strings"

	mpiv2 "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/v2beta1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// podSet is the pods of one template.
type podSet struct {
	name     string          // kind and name of the object that creates the pods
	count    int             // number of pods
	longest  string          // the longest name of a pod
	host     string          // the DNS name of the first pod; "": it has none
	hostfile string          // contents of the file at mpiHostfile in the pods; "": there is no such file
	labels   labels.Set      // of each pod
	spec     *corev1.PodSpec // of each pod
}

const (
	// mpiHostfile is the path at which mpi-operator mounts its hostfile in the launcher's pod.
	mpiHostfile = "/etc/mpi/hostfile"
	// suffix is an example of the random suffix that a Job adds to the name of a pod.
	suffix = "-abcde"
)

// podSetsOf returns the pods that a controller creates for a Job, a JobSet or an MPIJob, with the
// names and labels that the controller gives them. For other objects it returns nil.
func podSetsOf(object runtime.Object, services []*corev1.Service) []podSet {
	switch o := object.(type) {
	case *batchv1.Job:
		return []podSet{podsOfJob(o, services)}
	case *jobset.JobSet:
		return podsOfJobSet(o)
	case *mpiv2.MPIJob:
		return podsOfMPIJob(o)
	}
	return nil
}

// podsOfJob returns the pods of a Job. A pod of an Indexed Job has a DNS name if a headless Service with the
// name of the pod's subdomain selects the pod. The DNS name consists of the name of the Job, the pod's
// index, and the subdomain.
func podsOfJob(job *batchv1.Job, services []*corev1.Service) podSet {
	template := &job.Spec.Template
	n := count(&job.Spec)
	p := podSet{
		name: "Job " + job.Name, count: n, longest: fmt.Sprintf("%s-%d%s", job.Name, n, suffix),
		labels: template.Labels, spec: &template.Spec,
	}
	if indexed(&job.Spec) {
		for _, s := range services {
			if s.Name == template.Spec.Subdomain && s.Spec.ClusterIP == corev1.ClusterIPNone && selects(s.Spec.Selector, p.labels) {
				p.host = fmt.Sprintf("%s-0.%s", job.Name, s.Name)
			}
		}
	}
	return p
}

func podsOfJobSet(set *jobset.JobSet) []podSet {
	var list []podSet
	subdomain := set.Name
	named := true
	if n := set.Spec.Network; n != nil {
		if n.Subdomain != "" {
			subdomain = n.Subdomain
		}
		named = n.EnableDNSHostnames == nil || *n.EnableDNSHostnames
	}
	for i := range set.Spec.ReplicatedJobs {
		r := &set.Spec.ReplicatedJobs[i]
		template := &r.Template.Spec.Template
		n := count(&r.Template.Spec)
		p := podSet{
			name: "ReplicatedJob " + r.Name, count: int(r.Replicas) * n, spec: &template.Spec,
			longest: fmt.Sprintf("%s-%s-%d-%d%s", set.Name, r.Name, r.Replicas, n, suffix),
			labels:  labels.Merge(template.Labels, labels.Set{jobset.JobSetNameKey: set.Name, jobset.ReplicatedJobNameKey: r.Name}),
		}
		// A Job of a JobSet is Indexed by default.
		if named && (r.Template.Spec.CompletionMode == nil || indexed(&r.Template.Spec)) {
			p.host = fmt.Sprintf("%s-%s-0-0.%s", set.Name, r.Name, subdomain)
		}
		list = append(list, p)
	}
	return list
}

func podsOfMPIJob(job *mpiv2.MPIJob) []podSet {
	job = job.DeepCopy()
	mpiv2.SetDefaults_MPIJob(job)
	var list []podSet
	for _, role := range []struct {
		kind       mpiv2.MPIReplicaType
		label, pod string
	}{{mpiv2.MPIReplicaTypeLauncher, "launcher", "launcher"}, {mpiv2.MPIReplicaTypeWorker, "worker", "worker-0"}} {
		r := job.Spec.MPIReplicaSpecs[role.kind]
		if r == nil || r.Replicas == nil {
			continue
		}
		p := podSet{
			name: string(role.kind), count: int(*r.Replicas), spec: &r.Template.Spec,
			host: fmt.Sprintf("%s-%s.%s", job.Name, role.pod, job.Name), longest: fmt.Sprintf("%s-%s%s", job.Name, role.label, suffix),
			labels: labels.Merge(r.Template.Labels, labels.Set{
				mpiv2.OperatorNameLabel: mpiv2.OperatorName, mpiv2.JobNameLabel: job.Name, mpiv2.JobRoleLabel: role.label,
			}),
		}
		if role.kind == mpiv2.MPIReplicaTypeLauncher {
			p.hostfile = hostfileOf(job)
		}
		list = append(list, p)
	}
	return list
}

// maxWorkers bounds the number of lines of the hostfile that hostfileOf returns.
const maxWorkers = 1 << 12

// hostfileOf returns the hostfile that mpi-operator writes for a job in the namespace default.
func hostfileOf(job *mpiv2.MPIJob) string {
	format := "%s slots=%d\n"
	if job.Spec.MPIImplementation != mpiv2.MPIImplementationOpenMPI {
		format = "%s:%d\n"
	}
	var b strings.Builder
	if w := job.Spec.MPIReplicaSpecs[mpiv2.MPIReplicaTypeWorker]; w != nil && w.Replicas != nil && job.Spec.SlotsPerWorker != nil {
		for i := range min(*w.Replicas, maxWorkers) {
			fmt.Fprintf(&b, format, fmt.Sprintf("%s-worker-%d.%s.default.svc", job.Name, i, job.Name), *job.Spec.SlotsPerWorker)
		}
	}
	return b.String()
}

// count returns how many pods of a Job run at the same time.
func count(job *batchv1.JobSpec) int {
	n := 1
	if job.Parallelism != nil {
		n = int(*job.Parallelism)
	}
	if job.Completions != nil {
		n = min(n, int(*job.Completions))
	}
	return n
}

func indexed(job *batchv1.JobSpec) bool {
	return job.CompletionMode != nil && *job.CompletionMode == batchv1.IndexedCompletion
}

func selects(selector map[string]string, have labels.Set) bool {
	return len(selector) > 0 && labels.SelectorFromSet(selector).Matches(have)
}

// command returns the command that the first container runs.
func (p podSet) command() (command, error) {
	c := p.spec.Containers[0]
	line := append(append([]string(nil), c.Command...), c.Args...)
	if len(c.Command) == 0 {
		line = nil
	}
	return commandOf(line, p.hostfile)
}

// volume returns the volume that is mounted at a path of the first container. If there is none, it returns
// nil.
func (p podSet) volume(at string) *corev1.VolumeSource {
	for _, m := range p.spec.Containers[0].VolumeMounts {
		if m.MountPath != at || m.SubPath != "" {
			continue
		}
		for i := range p.spec.Volumes {
			if v := &p.spec.Volumes[i]; v.Name == m.Name {
				return &v.VolumeSource
			}
		}
	}
	return nil
}

// ports returns the declared ports of the first container.
func (p podSet) ports() []int32 {
	var list []int32
	for _, port := range p.spec.Containers[0].Ports {
		list = append(list, port.ContainerPort)
	}
	return list
}
