package cluster

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestAuditSaysWhoDidWhatWhen(t *testing.T) {
	ctx := deadline(t)
	namespace := namespaceFor(ctx, t)
	config, err := shared.User("scribe", "system:masters")
	require.NoError(t, err)
	config.UserAgent = "quill"
	maps := clientFor(t, config).CoreV1().ConfigMaps(namespace)
	before := time.Now()
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m1"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = maps.Patch(ctx, "m1", types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	watcher, err := maps.Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	watcher.Stop()

	records, err := shared.Audit(ctx, Query{User: "scribe", Resources: []string{"configmaps"}, Since: before})
	require.NoError(t, err)
	require.Len(t, records, 3)
	created := records[0]
	require.Equal(t, []any{"create", "configmaps", namespace, 201, "quill"},
		[]any{created.Verb, created.Resource, created.Namespace, created.Code, created.UserAgent})
	require.Equal(t, "allow", created.Annotations["authorization.k8s.io/decision"])
	require.False(t, created.Answered.Before(created.Received))
	require.Empty(t, created.Body, "bodies are Velero's alone")

	require.Len(t, records.Where(Record.Write), 2)
	require.Len(t, records.Select(Query{Verbs: []string{"patch"}, Name: "m1"}), 1)
	require.Empty(t, records.Select(Query{Since: time.Now()}))
	require.Equal(t, 200, records[2].Code, "a watch counts as answered when it has begun")
}

func TestAuditKeepsBodiesOfVelero(t *testing.T) {
	ctx := deadline(t)
	namespace := namespaceFor(ctx, t)
	config, err := shared.User("patcher", "system:masters")
	require.NoError(t, err)
	installBackups(ctx, t)
	sent := `{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{"name":"b1"},"spec":{"a":1}}`
	err = clientFor(t, config).CoreV1().RESTClient().Post().AbsPath("/apis/velero.io/v1/namespaces/"+namespace+"/backups").
		SetHeader("Content-Type", "application/json").Body([]byte(sent)).Do(ctx).Error()
	require.NoError(t, err)
	records, err := shared.Audit(ctx, Query{User: "patcher", Namespace: namespace, Resources: []string{"backups"}})
	require.NoError(t, err)
	require.Len(t, records, 1)
	var body struct {
		Spec json.RawMessage `json:"spec"`
	}
	require.NoError(t, json.Unmarshal(records[0].Body, &body))
	require.JSONEq(t, `{"a":1}`, string(body.Spec))
}

// The snapshot contains the request behind every observed watch event, even if its response is outstanding.
func TestAuditIsCompleteUpToWhatWasSeen(t *testing.T) {
	ctx := deadline(t)
	namespace := namespaceFor(ctx, t)
	watcher, err := clientFor(t, shared.Admin()).CoreV1().ConfigMaps(namespace).
		Watch(ctx, metav1.ListOptions{LabelSelector: "made=here"})
	require.NoError(t, err)
	defer watcher.Stop()
	config, err := shared.User("hasty", "system:masters")
	require.NoError(t, err)
	maps := clientFor(t, config).CoreV1().ConfigMaps(namespace)
	labels := map[string]string{"made": "here"}
	var making sync.WaitGroup
	defer making.Wait()
	const count = 100
	making.Go(func() {
		for range count {
			made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-", Labels: labels}}
			if _, err := maps.Create(ctx, made, metav1.CreateOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for seen := 1; seen <= count; seen++ {
		select {
		case <-watcher.ResultChan():
		case <-ctx.Done():
			t.Fatalf("only %d ConfigMaps were seen", seen-1)
		}
		records, err := shared.Audit(ctx, Query{User: "hasty", Verbs: []string{"create"}, Namespace: namespace})
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(records), seen)
		for _, record := range records {
			require.Equal(t, 201, record.Code, "%+v", record)
		}
	}
}
