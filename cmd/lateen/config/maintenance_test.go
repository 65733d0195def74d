package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/priority"
)

const repositoryKey = "app-default-kopia"

func TestMaintenanceOfARepositoryComesBeforeThatOfAll(t *testing.T) {
	got, problems := config.ParseMaintenance(map[string]string{
		"global": `{"priorityClassName":"low","podLabels":{"a":"b"},"podAnnotations":{"c":"d"},"keepLatestMaintenanceJobs":5,
			"podResources":{"memoryLimit":"1Gi"},"loadAffinity":[{"nodeSelector":{"matchLabels":{"x":"y"}}}]}`,
		repositoryKey:          `{"podResources":{"cpuRequest":"100m"},"keepLatestMaintenanceJobs":0}`,
		"other-default-kopia":  `not read`,
		"other-default-restic": `not read`,
	}, repositoryKey)
	require.Empty(t, problems)
	require.Equal(t, "low", got.PriorityClassName)
	require.Equal(t, map[string]string{"a": "b"}, got.Jobs.Labels)
	require.Equal(t, map[string]string{"c": "d"}, got.Jobs.Annotations)
	require.Zero(t, got.Jobs.Keep)
	require.Len(t, got.Jobs.LoadAffinity, 1)
	require.Equal(t, corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}, got.Jobs.Resources,
		"a section is used as a whole")
}

// TestFieldsUnsetInGlobalAreTakenFromTheRepository follows Velero's code and its e2e case RepoMaintenance. Velero's
// documentation says that these three are read from global only.
func TestFieldsUnsetInGlobalAreTakenFromTheRepository(t *testing.T) {
	own := `{"priorityClassName":"own","podLabels":{"own":"a"},"podAnnotations":{"own":"b"}}`
	for name, global := range map[string]string{"no global": "", "a global without it": `{"keepLatestMaintenanceJobs":1}`, "a global with empty values": `{"priorityClassName":"","podLabels":{},"podAnnotations":{}}`} {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{repositoryKey: own}
			if global != "" {
				data["global"] = global
			}
			got, problems := config.ParseMaintenance(data, repositoryKey)
			require.Empty(t, problems)
			require.Equal(t, "own", got.PriorityClassName)
			require.Equal(t, map[string]string{"own": "a"}, got.Jobs.Labels)
			require.Equal(t, map[string]string{"own": "b"}, got.Jobs.Annotations)
		})
	}
	got, problems := config.ParseMaintenance(map[string]string{
		"global": `{"priorityClassName":"all","podLabels":{"all":"a"},"podAnnotations":{"all":"b"}}`, repositoryKey: own,
	}, repositoryKey)
	require.Len(t, problems, 3)
	for _, problem := range problems {
		require.Equal(t, config.Ignored, problem.Reason)
		require.Contains(t, problem.Message, "because key global sets it")
	}
	require.Equal(t, "all", got.PriorityClassName)
	require.Equal(t, map[string]string{"all": "a"}, got.Jobs.Labels)
	require.Equal(t, map[string]string{"all": "b"}, got.Jobs.Annotations)
	got, _ = config.ParseMaintenance(map[string]string{"global": `{"priorityClassName":7}`, repositoryKey: own}, repositoryKey)
	require.Equal(t, priority.ConfigInvalid, got.Unreadable, "which class global means cannot be known")
}

func TestParseInvalidMaintenance(t *testing.T) {
	for name, test := range map[string]struct {
		data       map[string]string
		reason     config.Reason
		unreadable priority.Reason
	}{
		"nothing at all":                              {nil, config.Empty, priority.ConfigEmpty},
		"no JSON for all":                             {map[string]string{"global": "x: y"}, config.InvalidJSON, priority.ConfigInvalid},
		"no JSON for this repository":                 {map[string]string{repositoryKey: "{"}, config.InvalidJSON, ""},
		"a class that is no name":                     {map[string]string{"global": `{"priorityClassName":"Not A Name"}`}, config.InvalidValue, priority.ConfigInvalid},
		"a file under its own name":                   {map[string]string{"config.json": `{"global":{"priorityClassName":"low"}}`}, config.InvalidValue, priority.ConfigInvalid},
		"a file of fields":                            {map[string]string{"config.json": `{"priorityClassName":"low"}`}, config.InvalidValue, priority.ConfigInvalid},
		"a key beside global":                         {map[string]string{"global": `{}`, "notes": "by hand"}, config.Ignored, ""},
		"global in global":                            {map[string]string{"global": `{"global":{"keepLatestMaintenanceJobs":1}}`}, config.UnknownField, ""},
		"a class that is no name, for one repository": {map[string]string{repositoryKey: `{"priorityClassName":"Not A Name"}`}, config.InvalidValue, priority.ConfigInvalid},
		"labels that are none, for one repository":    {map[string]string{repositoryKey: `{"podLabels":{"a":1}}`}, config.WrongType, ""},
		"a number below zero":                         {map[string]string{"global": `{"keepLatestMaintenanceJobs":-1}`}, config.InvalidValue, ""},
		"an unknown field":                            {map[string]string{"global": `{"keepLatest":1}`}, config.UnknownField, ""},
		"resources that are none":                     {map[string]string{"global": `{"podResources":{"cpuLimit":"lots"}}`}, config.InvalidValue, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := config.ParseMaintenance(test.data, repositoryKey)
			require.Len(t, problems, 1)
			require.Equal(t, test.reason, problems[0].Reason)
			require.Equal(t, config.SectionMaintenance, problems[0].Section)
			want := config.DefaultMaintenance()
			want.Unreadable = test.unreadable
			require.Equal(t, want, got)
		})
	}
}

func TestParseRepository(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		limit int64 // in MiB
	}{
		"an empty object":                  {`{}`, 5000},
		"a number":                         {`{"cacheLimitMB": 2048}`, 2048},
		"a number in quotes":               {`{"cacheLimitMB": "2048"}`, 2048},
		"null is left out":                 {`{"cacheLimitMB": null}`, 5000},
		"fields of the server are skipped": {`{"cacheLimitMB": 1, "fullMaintenanceInterval": "fastGC"}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			limit, problems := config.ParseRepository(map[string]string{"kopia": test.text, "other": "{"})
			require.Empty(t, problems)
			require.Equal(t, test.limit*1024*1024, limit)
		})
	}
}
