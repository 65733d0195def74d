package api_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

func TestUnknownFields(t *testing.T) {
	download := &velerov2alpha1.DataDownload{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: "another", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:zeal":{}}}`)},
		{Manager: "velero-server", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:some":{}}},"f:spec":{".":{},"f:zeal":{},
			"f:dataMoverConfig":{".":{},"f:any":{}},"f:operationTimeout":{},"f:targetVolume":{".":{},"f:pvc":{},"f:fsType":{}}}}`)},
		{Manager: "node-agent", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:news":{}}}`), Subresource: "status"},
		{Manager: "none"},
	}}}
	require.Equal(t, []string{"targetVolume.fsType", "zeal"}, api.UnknownFields(download))
}

func TestAllFieldsOfVelerosDefinitionsAreKnown(t *testing.T) {
	for kind, resource := range map[string]metav1.Object{
		"PodVolumeBackup": &velerov1.PodVolumeBackup{}, "PodVolumeRestore": &velerov1.PodVolumeRestore{},
		"DataUpload": &velerov2alpha1.DataUpload{}, "DataDownload": &velerov2alpha1.DataDownload{},
	} {
		all := slices.Concat(v1crds.CRDs, v2alpha1crds.CRDs)
		defined := slices.IndexFunc(all, func(one *apiextensionsv1.CustomResourceDefinition) bool { return one.Spec.Names.Kind == kind })
		set := fieldsOf(all[defined].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"])
		require.Greater(t, strings.Count(set, "f:"), 7, kind)
		resource.SetManagedFields([]metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":` + set + `}`)}})
		require.Empty(t, api.UnknownFields(resource), kind)
	}
}

// fieldsOf returns all fields of a schema as FieldsV1.
func fieldsOf(schema apiextensionsv1.JSONSchemaProps) string {
	var fields []string
	for name, within := range schema.Properties {
		fields = append(fields, `"f:`+name+`":`+fieldsOf(within))
	}
	return "{" + strings.Join(fields, ",") + "}"
}
