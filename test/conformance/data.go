package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// moved wants every transfer of the case that is Completed to have moved its own data.
func (c *caseRun) moved(ctx context.Context) error {
	if c.testCase.maintains() || c.testCase.Mover.Result != nil { // these movers move nothing
		return nil
	}
	for _, word := range []string{"NAME", "SECOND"} {
		name := c.placeholders.of(word)
		if name == "" {
			continue
		}
		c.plane.History.lock.Lock()
		transfer, err := c.transfer(name)
		c.plane.History.lock.Unlock()
		if err != nil {
			return err
		}
		if transfer.Status.Phase != testenv.Completed {
			continue
		}
		if err := c.Moved(ctx, transfer); err != nil {
			return fmt.Errorf("data of $%s: %w", word, err)
		}
	}
	return nil
}

// repository is the kind of cases about maintenance, whose resource is no transfer.
const repository testenv.Kind = "BackupRepository"

// kinds are those that there are cases of.
func kinds() []testenv.Kind { return append(testenv.Kinds(), repository) }

// jobs plays maintenance, which succeeds at once.
type jobs struct{}

func (jobs) Run(context.Context, *corev1.Pod, node.Host) node.Result { return node.Result{} }

// maintains reports whether the case is about maintenance.
func (c *Case) maintains() bool { return c.Kind == repository }

// configureJobs writes the ConfigMap of maintenance jobs, whose pods are for the first node unless the case says otherwise.
func (c *caseRun) configureJobs(ctx context.Context) error {
	if c.testCase.Maintenance == nil {
		return nil
	}
	data := map[string]string{}
	for key, content := range c.testCase.Maintenance {
		content = maps.Clone(content)
		if content["loadAffinity"] == nil {
			content["loadAffinity"] = c.here()
		}
		text, err := json.Marshal(c.expand(content))
		if err != nil {
			return fmt.Errorf("write key %s of ConfigMap %s: %w", key, jobMap, err)
		}
		description := c.placeholders.all()
		data[fmt.Sprint(expand(key, description))] = string(text)
	}
	return c.ConfigMap(ctx, jobMap, data)
}

// prepareRepository makes a repository that is Ready and due. Nothing looks into it but its jobs, which are played.
func (c *caseRun) prepareRepository() error {
	c.create = func(ctx context.Context, alter func(metav1.Object)) (metav1.Object, error) {
		return c.Repository(ctx, c.Apps, func(wanted *velerov1.BackupRepository) {
			wanted.GenerateName, wanted.Name = "", c.Apps+"-default-kopia-abcde"
			wanted.Spec.MaintenanceFrequency = metav1.Duration{Duration: frequency}
			wanted.Status.Phase = velerov1.BackupRepositoryPhaseReady
			alter(wanted)
		})
	}
	return nil
}
