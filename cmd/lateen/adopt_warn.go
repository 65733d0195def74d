package main

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/deploy"
)

// warnOf prints the consequences of an adoption for the user.
func (a *adoption) warnOf(agents *unstructured.Unstructured) {
	if agents.GetLabels()["app.kubernetes.io/managed-by"] == "Helm" {
		fmt.Fprintf(a.warnings, "Warning: DaemonSet %s is Helm's: the next helm upgrade puts Velero's agents back; run lateen adopt again after it\n", agents.GetName())
	}
	if agents.GetName() == deploy.WindowsDaemonSetName {
		fmt.Fprintf(a.warnings, "Warning: DaemonSet %s is adopted too: --lateen-image has to be for Windows nodes as well\n", agents.GetName())
	}
}

// warnOfRestic warns of repositories that only Velero's agents can restore from.
func (a *adoption) warnOfRestic(ctx context.Context) {
	repositories := a.dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"})
	list, err := repositories.Namespace(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(a.warnings, "Warning: cannot tell whether there are restic repositories: %v\n", err)
		return
	}
	for _, repository := range list.Items {
		if kind, _, _ := unstructured.NestedString(repository.Object, "spec", "repositoryType"); kind == "restic" {
			fmt.Fprintf(a.warnings, "Warning: BackupRepository %s is restic's: only Velero's agents restore from it (lateen adopt --undo puts them back)\n", repository.GetName())
		}
	}
}

// Effects of the exchange of agents on transfers without a mover. Velero's agents ignore movers that started to run
// before them (velero-protocol 1.6).
const (
	newMeans            = "a New transfer is accepted by either side while both have agents"
	acceptedAtAdoption  = "an Accepted one stays with Velero's agent until that agent is gone, and Lateen goes on from there"
	acceptedAtUndo      = "an Accepted one, whose mover comes to run before Velero's agent does, fails when its preparation times out (30m by default)"
	transfersMayBeAwait = "lateen status shows when there is none"
)

// warnOfTransfers counts the transfers that are neither prepared nor terminal, and prints the effect of the exchange
// on them.
func (a *adoption) warnOfTransfers(ctx context.Context) {
	var counts []string
	accepted := false
	for _, each := range allFinalized() {
		if each.server {
			continue
		}
		list, err := a.dynamic.Resource(each.GroupVersionResource).Namespace(a.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintf(a.warnings, "Warning: cannot tell whether %s are being prepared: %v\n", each.Resource, err)
			continue
		}
		phases := map[string]int{}
		for _, transfer := range list.Items {
			phase, _, _ := unstructured.NestedString(transfer.Object, "status", "phase")
			phases[phase]++
		}
		if count := phases[""] + phases["New"]; count > 0 {
			counts = append(counts, fmt.Sprintf("%d %s New", count, each.Resource))
		}
		if count := phases["Accepted"]; count > 0 {
			counts = append(counts, fmt.Sprintf("%d %s Accepted", count, each.Resource))
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
