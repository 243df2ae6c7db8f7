package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	mpiv2 "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/v2beta1"
	mpivalidation "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/validation"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
)

var types = newTypes()

func newTypes() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, batchv1.AddToScheme, networkingv1.AddToScheme, jobset.AddToScheme, mpiv2.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // only if two packages register the same kind, which is an error of this program
		}
	}
	return s
}

// checkManifest checks each YAML document of a file. If all are valid, it checks that together they are one
// job.
func checkManifest(schemas map[schema.GroupVersionKind]*kindSchema, text []byte) []error {
	var errs []error
	var objects []runtime.Object
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		doc, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return append(errs, fmt.Errorf("document %d: %w", n, err))
		}
		object, problems := checkDocument(schemas, doc)
		for _, problem := range problems {
			errs = append(errs, fmt.Errorf("document %d: %w", n, problem))
		}
		objects = append(objects, object)
	}
	if len(errs) > 0 {
		return errs
	}
	return checkJob(objects)
}

// checkDocument decodes a YAML document into the Go type of its kind, and checks it. It refuses unknown and
// repeated fields, as an API server does with fieldValidation: Strict.
func checkDocument(schemas map[schema.GroupVersionKind]*kindSchema, doc []byte) (runtime.Object, []error) {
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, types, types, json.SerializerOptions{Yaml: true, Strict: true})
	object, kind, err := decoder.Decode(doc, nil, nil)
	if err != nil {
		return nil, []error{err}
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, []error{err}
	}
	errs := checkMeta(accessor)
	tree, err := treeOf(doc)
	if err != nil {
		return nil, []error{err}
	}
	switch known := schemas[*kind]; {
	case *kind == jobKind:
		errs = append(errs, known.check(map[string]any{"spec": tree["spec"]}, false)...)
	case known != nil:
		errs = append(errs, known.check(tree, true)...)
	}
	if job, ok := object.(*mpiv2.MPIJob); ok {
		job = job.DeepCopy()
		mpiv2.SetDefaults_MPIJob(job)
		errs = append(errs, mpivalidation.ValidateMPIJob(job)...)
	}
	var list []error
	for _, err := range errs {
		list = append(list, fmt.Errorf("%s %s: %w", kind.Kind, accessor.GetName(), err))
	}
	return object, list
}

// treeOf decodes a YAML document into the form that the schemas need, in which integers are int64.
func treeOf(doc []byte) (tree map[string]any, err error) {
	text, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, err
	}
	return tree, utiljson.Unmarshal(text, &tree)
}

// checkMeta checks the name of an object, which must not be empty, and its labels.
func checkMeta(object metav1.Object) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("metadata")
	if object.GetName() == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	for _, why := range apivalidation.NameIsDNSSubdomain(object.GetName(), false) {
		errs = append(errs, field.Invalid(at.Child("name"), object.GetName(), why))
	}
	return append(errs, metav1validation.ValidateLabels(object.GetLabels(), at.Child("labels"))...)
}
