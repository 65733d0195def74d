package adopt

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// warnOf prints the consequences of an adoption for the user.
func (a *adoption) warnOf(agents *unstructured.Unstructured) {
	if agents.GetLabels()["app.kubernetes.io/managed-by"] == "Helm" {
		fmt.Fprintf(a.warnings, "Warning: DaemonSet %s is managed by Helm: the next helm upgrade restores Velero's agents, with server-side apply only by --force-conflicts; run lateen adopt again after it\n", agents.GetName())
	}
	if agents.GetName() == deploy.WindowsDaemonSetName {
		fmt.Fprintf(a.warnings, "Warning: DaemonSet %s is adopted too: --lateen-image must also support Windows nodes\n", agents.GetName())
	}
}

// warnOfRestic warns of repositories that only Velero's agents can restore from.
func (a *adoption) warnOfRestic(ctx context.Context) {
	repositories := a.Dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"})
	list, err := repositories.Namespace(a.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(a.warnings, "Warning: cannot check for restic repositories: %v\n", err)
		return
	}
	for _, repository := range list.Items {
		if kind, _, _ := unstructured.NestedString(repository.Object, "spec", "repositoryType"); kind == "restic" {
			fmt.Fprintf(a.warnings, "Warning: BackupRepository %s has type restic: only Velero's agents can restore from it (lateen adopt --undo restores them)\n", repository.GetName())
		}
	}
}

// Effects of the exchange of agents on transfers without a mover. Velero's agents ignore movers that started to run
// before them (velero-protocol 1.6).
const (
	newMeans            = "a New transfer may be accepted by an agent of Velero or of Lateen while both run"
	acceptedAtAdoption  = "an Accepted transfer belongs to Velero's agent until that agent stops, then Lateen continues it"
	acceptedAtUndo      = "an Accepted transfer whose mover starts before Velero's agent fails after the prepare timeout (30m by default)"
	transfersMayBeAwait = "lateen status shows whether there are any left"
)

// warnOfTransfers counts the transfers that are neither prepared nor terminal, and prints the effect of the exchange
// on them.
func (a *adoption) warnOfTransfers(ctx context.Context) {
	var counts []string
	accepted := false
	for _, kind := range api.Kinds() {
		resource := kind.GVR()
		list, err := a.Dynamic.Resource(resource).Namespace(a.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintf(a.warnings, "Warning: cannot check for %s that are being prepared: %v\n", resource.Resource, err)
			continue
		}
		phases := map[string]int{}
		for _, transfer := range list.Items {
			phase, _, _ := unstructured.NestedString(transfer.Object, "status", "phase")
			phases[phase]++
		}
		if count := phases[""] + phases["New"]; count > 0 {
			counts = append(counts, fmt.Sprintf("%d %s New", count, resource.Resource))
		}
		if count := phases["Accepted"]; count > 0 {
			counts = append(counts, fmt.Sprintf("%d %s Accepted", count, resource.Resource))
			accepted = true
		}
	}
	if len(counts) == 0 {
		return
	}
	means := []string{newMeans}
	switch {
	case accepted && a.undo:
		means = append(means, acceptedAtUndo)
	case accepted:
		means = append(means, acceptedAtAdoption)
	}
	fmt.Fprintf(a.warnings, "Warning: transfers without a mover: %s: %s (%s)\n", strings.Join(counts, ", "), strings.Join(means, "; "), transfersMayBeAwait)
}
