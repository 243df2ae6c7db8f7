package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// kindSchema holds what an API server uses to check custom resources of one kind.
type kindSchema struct {
	props      *apiextensions.JSONSchemaProps
	structural *structural.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator // validation rules in CEL; nil: there are none
}

var (
	jobKind    = schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}
	jobSetKind = schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}
	mpiJobKind = schema.GroupVersionKind{Group: "kubeflow.org", Version: "v2beta1", Kind: "MPIJob"}
)

// definitions lists the files that hold the custom resource definitions, in the Go modules of the operators.
var definitions = []struct {
	module, file string
	kind         schema.GroupVersionKind
}{
	{"sigs.k8s.io/jobset", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml", jobSetKind},
	{"github.com/kubeflow/mpi-operator", "manifests/base/kubeflow.org_mpijobs.yaml", mpiJobKind},
}

// loadSchemas reads the definitions and returns the schemas by kind. No module has the schema of batch/v1
// Job, but the definition of JobSet contains the schema of its Job template. loadSchemas uses that schema
// for a Job.
func loadSchemas() (map[schema.GroupVersionKind]*kindSchema, error) {
	schemas := make(map[schema.GroupVersionKind]*kindSchema)
	for _, d := range definitions {
		dir, err := moduleDir(d.module)
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join(dir, d.file))
		if err != nil {
			return nil, fmt.Errorf("definition of %s: %w", d.kind.Kind, err)
		}
		props, err := propsOf(text, d.kind)
		if err != nil {
			return nil, fmt.Errorf("definition of %s: %w", d.kind.Kind, err)
		}
		if schemas[d.kind], err = newKindSchema(props, true); err != nil {
			return nil, fmt.Errorf("definition of %s: %w", d.kind.Kind, err)
		}
	}
	jobs := schemas[jobSetKind].props.Properties["spec"].Properties["replicatedJobs"]
	if jobs.Items == nil || jobs.Items.Schema == nil {
		return nil, fmt.Errorf("definition of JobSet: spec.replicatedJobs is not a list")
	}
	template := jobs.Items.Schema.Properties["template"]
	job, err := newKindSchema(&template, false)
	if err != nil {
		return nil, fmt.Errorf("definition of JobSet: template of a Job: %w", err)
	}
	schemas[jobKind] = job
	return schemas, nil
}

// moduleDir returns the directory of a Go module that this module requires.
func moduleDir(module string) (string, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Stderr = new(bytes.Buffer)
	out, err := cmd.Output()
	if dir := string(bytes.TrimSpace(out)); err == nil && dir != "" {
		return dir, nil
	}
	return "", fmt.Errorf("go list -m %s found no directory; run validate in its module: %w: %s", module, err, cmd.Stderr)
}

func propsOf(text []byte, kind schema.GroupVersionKind) (*apiextensions.JSONSchemaProps, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return nil, err
	}
	if crd.Spec.Group != kind.Group || crd.Spec.Names.Kind != kind.Kind {
		return nil, fmt.Errorf("it defines %s in %s", crd.Spec.Names.Kind, crd.Spec.Group)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == kind.Version && v.Served && v.Schema != nil {
			var props apiextensions.JSONSchemaProps
			err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, &props, nil)
			return &props, err
		}
	}
	return nil, fmt.Errorf("version %s is not served", kind.Version)
}

func newKindSchema(props *apiextensions.JSONSchemaProps, root bool) (*kindSchema, error) {
	s, err := structural.NewStructural(props)
	if err != nil {
		return nil, err
	}
	v, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		return nil, err
	}
	return &kindSchema{props: props, structural: s, validator: v, rules: cel.NewValidator(s, root, celconfig.PerCallLimit)}, nil
}

// check checks an object as an API server does when a custom resource is created: unknown fields, the schema,
// lists that must be sets or maps, metadata, and rules in CEL. It also sets defaults, so it changes the
// object. root says whether the object is a whole resource.
func (k *kindSchema) check(object map[string]any, root bool) field.ErrorList {
	var errs field.ErrorList
	unknown := pruning.PruneWithOptions(object, k.structural, root, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		errs = append(errs, field.Invalid(field.NewPath(path), "", "unknown field"))
	}
	defaulting.Default(object, k.structural)
	errs = append(errs, validation.ValidateCustomResource(nil, object, k.validator)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, k.structural, object)...)
	errs = append(errs, objectmeta.Validate(nil, object, k.structural, root)...)
	if k.rules != nil && len(errs) == 0 { // only if the object fits the schema, because the rules assume that
		broken, _ := k.rules.Validate(context.Background(), nil, k.structural, object, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, broken...)
	}
	return errs
}
