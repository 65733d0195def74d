package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"

	"github.com/lateen-project/lateen/deploy"
)

// putBack makes Velero's agents of what was made of them.
func putBack(agents *unstructured.Unstructured) error {
	kept, adopted := agents.GetAnnotations()[adoptedAnnotation]
	if !adopted {
		return fmt.Errorf("it has no annotation %s, so lateen adopt has not changed it", adoptedAnnotation)
	}
	if account := runAs(agents); account != deploy.ServiceAccountName {
		return fmt.Errorf("somebody has changed it since it was adopted: its agents run as ServiceAccount %q; if they are Velero's, take the annotation %s away", account, adoptedAnnotation)
	}
	var template map[string]any
	if err := json.Unmarshal([]byte(kept), &template); err != nil {
		return fmt.Errorf("read annotation %s: %w", adoptedAnnotation, err)
	}
	annotations := agents.GetAnnotations()
	delete(annotations, adoptedAnnotation)
	agents.SetAnnotations(annotations)
	agents.Object["spec"].(map[string]any)["template"] = template //nolint:forcetypeassert // its template was read above
	return nil
}

// runAs is the ServiceAccount of agents.
func runAs(agents *unstructured.Unstructured) string {
	account, _, _ := unstructured.NestedString(agents.Object, "spec", "template", "spec", "serviceAccountName")
	return account
}

// advance gives Lateen its rights, and then the agents' place.
func (a *adoption) advance(ctx context.Context, agents *unstructured.Unstructured) error {
	rights, err := a.rights()
	if err != nil {
		return err
	}
	for _, each := range rights {
		if err := a.install(ctx, each); err != nil {
			return err
		}
	}
	return a.update(ctx, agents)
}

// retreat gives the place back, and takes the rights away once no agent of Lateen needs them.
func (a *adoption) retreat(ctx context.Context, agents *unstructured.Unstructured) error {
	if err := a.update(ctx, agents); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := a.rollout(waiting, "daemonsets", deploy.DaemonSetName, daemonSetPods); err != nil {
		return errors.Join(err, errors.New("the rights of Lateen's agents were left: lateen uninstall takes them away"))
	}
	rights, err := a.rights()
	if err != nil {
		return err
	}
	for _, each := range rights {
		found, err := a.resource(each).Get(ctx, each.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && found.GetLabels()[installedLabel] != a.namespace:
			continue
		case err == nil:
			err = a.resource(each).Delete(ctx, each.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(found.GetUID())}})
		}
		if err != nil {
			return fmt.Errorf("remove %s %s: %w", each.GetKind(), each.GetName(), err)
		}
		fmt.Fprintf(a.out, "%s %s removed\n", each.GetKind(), each.GetName())
	}
	return nil
}

func (a *adoption) rights() ([]*unstructured.Unstructured, error) {
	return toManifests(a.namespace, deploy.Access(a.namespace))
}

// update fails if anybody has changed the specification since it was shown. The status, which controllers write all
// the time, may be another.
func (a *adoption) update(ctx context.Context, agents *unstructured.Unstructured) error {
	client := a.dynamic.Resource(daemonSets()).Namespace(a.namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		current, err := client.Get(ctx, agents.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if current.GetUID() != agents.GetUID() || current.GetGeneration() != agents.GetGeneration() {
			return errors.New("somebody has changed it since it was shown; look again")
		}
		current.SetAnnotations(agents.GetAnnotations())
		current.Object["spec"] = agents.Object["spec"]
		_, err = client.Update(ctx, current, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
	if err != nil {
		return fmt.Errorf("update DaemonSet %s: %w", agents.GetName(), err)
	}
	_, err = fmt.Fprintf(a.out, "DaemonSet %s changed\n", agents.GetName())
	return err
}

// diff are the lines of both, the old ones that went with a -, the new ones that came with a +, and some that stayed
// around them. The longest common subsequence stays.
func diff(before, after []string) []string {
	common := make([][]int, len(before)+1) // length of that of before[i:] and after[j:]
	for i := range common {
		common[i] = make([]int, len(after)+1)
	}
	for i, old := range slices.Backward(before) {
		for j, line := range slices.Backward(after) {
			if old == line {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var lines []string
	for i, j := 0, 0; i < len(before) || j < len(after); {
		switch {
		case i < len(before) && j < len(after) && before[i] == after[j]:
			lines = append(lines, "  "+before[i])
			i, j = i+1, j+1
		case j == len(after) || i < len(before) && common[i+1][j] >= common[i][j+1]:
			lines = append(lines, "- "+before[i])
			i++
		default:
			lines = append(lines, "+ "+after[j])
			j++
		}
	}
	return around(lines)
}

// around leaves out what is more than two lines from any change.
func around(lines []string) []string {
	const context = 2
	near := make([]bool, len(lines))
	for i, line := range lines {
		if line[0] == ' ' {
			continue
		}
		for j := max(0, i-context); j <= min(len(lines)-1, i+context); j++ {
			near[j] = true
		}
	}
	var kept []string
	for i, line := range lines {
		switch {
		case near[i]:
			kept = append(kept, line)
		case i > 0 && near[i-1]:
			kept = append(kept, "  …")
		}
	}
	return kept
}
