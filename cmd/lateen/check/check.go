// Package check reports the Problems of an agent's configuration and the settings in effect. It uses the agent's own
// parser and never changes an object.
package check

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/check/preflight"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Kind is the kind of a ConfigMap that Velero's flags name.
type Kind string

// The kinds, named after the flags of Velero.
const (
	NodeAgent        Kind = "node-agent"
	BackupRepository Kind = "backup-repository"
	Maintenance      Kind = "repo-maintenance-job"
)

// Kinds lists all kinds.
func Kinds() []Kind { return []Kind{NodeAgent, BackupRepository, Maintenance} }

// Document is one ConfigMap.
type Document struct {
	Kind    Kind
	Title   string            // its name in the report
	Data    map[string]string // as in the ConfigMap
	Missing *config.Problem   // set if the named ConfigMap does not exist
	Unset   bool              // no ConfigMap is named, so the defaults apply
	// NamedBy is the workload whose flag names the ConfigMap of maintenance jobs. It is empty where that does not
	// matter.
	NamedBy startup.NamedBy
	First   int // the manifest line of the first line of its value; 0 if the value is not part of a manifest
}

// Result is the evaluation of a document.
type Result struct {
	Document Document
	// the Problems that the agent reports, and settings that match nothing in the cluster
	Problems   []config.Problem
	Parsed     int                // the first Problems, which the text itself has
	Config     config.Config      // in effect, for a node-agent ConfigMap
	CacheLimit int64              // bytes that a mover keeps in its cache, for a backup repository ConfigMap
	Jobs       config.Maintenance // the settings of all repositories, for a maintenance ConfigMap
}

// Evaluate parses a document. With a cluster, it also checks the objects that the document names.
func Evaluate(document Document, cluster *Cluster) Result {
	result := Result{
		Document: document, Config: config.Defaults(), CacheLimit: config.DefaultCacheLimit, Jobs: config.DefaultMaintenance(),
	}
	switch {
	case document.Unset:
	case document.Missing != nil:
		result.Problems = []config.Problem{*document.Missing}
	case document.Kind == BackupRepository:
		result.CacheLimit, result.Problems = config.ParseRepository(document.Data)
	case document.Kind == Maintenance:
		result.Jobs, result.Problems = config.ParseMaintenance(document.Data, "")
		for _, key := range document.repositories() {
			_, problems := config.ParseMaintenance(document.Data, key)
			for _, problem := range problems {
				if !slices.Contains(result.Problems, problem) {
					result.Problems = append(result.Problems, problem)
				}
			}
		}
	default:
		result.Config, result.Problems = config.Parse(document.Data, nil)
	}
	result.Parsed = len(result.Problems)
	if cluster != nil && document.Kind == NodeAgent {
		invalid := cluster.invalid(&result.Config)
		result.Problems = slices.Concat(result.Problems, invalid, cluster.unmatched(result.Config), cluster.CopyProblems)
		if class := result.Config.PriorityClassName; priority.Preempts(cluster.PriorityClasses[class]) {
			result.Problems = append(result.Problems, startup.PreemptingClass(class))
		}
	}
	if cluster != nil && document.Kind == Maintenance {
		global := result.Jobs.PriorityClassName // no key replaces it
		problems := cluster.invalidClass(&result.Jobs.PriorityClassName, config.SectionMaintenance, globalKey+".priorityClassName")
		result.Problems = append(result.Problems, problems...)
		for _, key := range append([]string{globalKey}, document.repositories()...) {
			jobs, _ := config.ParseMaintenance(document.Data, key)
			if global == "" {
				result.Problems = append(result.Problems, cluster.invalidClass(&jobs.PriorityClassName, config.SectionMaintenance, key+".priorityClassName")...)
			}
			if cache := jobs.Jobs.Cache; cache != nil && cluster.lacks(cache.StorageClass) {
				result.Problems = append(result.Problems, config.Problem{
					Section: config.SectionMaintenance, Path: key + ".cachePVC.storageClass", Reason: config.Missing,
					Message: noClass(cache.StorageClass, "so jobs do not start"),
				})
			}
		}
	}
	return result
}

// repositories returns the keys that configure one repository each.
func (d *Document) repositories() []string {
	data, _ := config.MaintenanceData(d.Data)
	return slices.DeleteFunc(sortedNames(data), func(key string) bool { return !config.IsRepositoryKey(key) })
}

func sortedNames[T any](all map[string]T) []string { return slices.Sorted(maps.Keys(all)) }

// globalKey is the ConfigMap key of the maintenance settings for all repositories (velero-protocol 4.5). The key of
// one repository ends with its type.
const globalKey = "global"

// Cluster holds the objects that a configuration may name. A nil field could not be read, so it is not checked.
type Cluster struct {
	Nodes           []corev1.Node
	StorageClasses  map[string]*storagev1.StorageClass
	PriorityClasses map[string]*schedulingv1.PriorityClass
	TryClass        func(class string) priority.Reason // by a dry run, why pods cannot have the class; empty if they can; nil: not tried
	MoverImage      string                             // empty if unknown
	CopyProblems    []config.Problem                   // missing permissions of the agents to copy objects
}

// invalid returns the Problems that the agent finds beyond its parser. It removes these settings from the
// configuration.
func (c *Cluster) invalid(of *config.Config) []config.Problem {
	problems := c.invalidClass(&of.PriorityClassName, config.SectionPriorityClassName, string(config.SectionPriorityClassName))
	if cache := of.Movers.Cache; cache != nil {
		if problem := c.invalidCache(cache.StorageClass); problem != nil {
			problems = append(problems, *problem)
			of.Movers.Cache = nil
		}
	}
	return problems
}

// invalidClass clears a priority class that does not exist in the cluster, or that pods cannot have.
func (c *Cluster) invalidClass(name *string, section config.Section, path string) []config.Problem {
	if *name == "" || c.PriorityClasses == nil {
		return nil
	}
	reason, problem := priority.NotFound, config.Missing
	if c.PriorityClasses[*name] != nil {
		if c.TryClass == nil {
			return nil
		}
		reason, problem = c.TryClass(*name), config.InvalidValue
	}
	if reason == "" {
		return nil
	}
	class := priority.Fallback(*name, reason)
	*name = ""
	return []config.Problem{{Section: section, Path: path, Reason: problem, Message: class.Message}}
}

func (c *Cluster) invalidCache(class string) *config.Problem {
	if problem := startup.CacheUnsupported(c.MoverImage); problem != nil || c.StorageClasses == nil {
		return problem
	}
	return startup.UnusableCacheClass(class, c.StorageClasses[class])
}

// unmatched returns the Problems of valid settings that currently match nothing in the cluster.
func (c *Cluster) unmatched(of config.Config) []config.Problem {
	var problems []config.Problem
	add := func(section config.Section, path, message string) {
		problems = append(problems, config.Problem{Section: section, Path: path, Reason: config.Missing, Message: message})
	}
	for _, rule := range of.NodeRules {
		if !c.anyNode(rule.Nodes) {
			add(config.SectionLoadConcurrency, "loadConcurrency.perNodeConfig",
				fmt.Sprintf("no node matches %s; label nodes or correct the selector", metav1.FormatLabelSelector(&rule.Nodes)))
		}
	}
	for _, class := range sortedNames(of.StorageClasses) {
		if c.lacks(class) {
			add(config.SectionLoadConcurrency, "loadConcurrency.storageClasses."+class, noClass(class, "so this limit applies to no volume"))
		}
	}
	for _, one := range of.Movers.LoadAffinity { // unusable rules are already removed, so an index would mislead
		if !c.anyNode(one.Nodes) {
			add(config.SectionLoadAffinity, "loadAffinity",
				fmt.Sprintf("no node matches %s, so movers without another rule stay pending; label nodes or correct the selector", metav1.FormatLabelSelector(&one.Nodes)))
		}
		if c.lacks(one.StorageClass) {
			add(config.SectionLoadAffinity, "loadAffinity", noClass(one.StorageClass, "so this rule applies to no volume"))
		}
	}
	for _, source := range sortedNames(of.Movers.BackupClaims) {
		claim, path := of.Movers.BackupClaims[source], "backupPVC."+source
		if c.lacks(source) {
			add(config.SectionBackupPVC, path, noClass(source, "so this rule applies to no volume"))
		}
		if c.lacks(claim.StorageClass) {
			add(config.SectionBackupPVC, path+".storageClass", noClass(claim.StorageClass, fmt.Sprintf("so volumes of class %s cannot be backed up from snapshots", source)))
		}
	}
	return problems
}

// lacks reports whether a storage class is named but does not exist. It is false while the classes are unknown.
func (c *Cluster) lacks(storageClass string) bool {
	return storageClass != "" && c.StorageClasses != nil && c.StorageClasses[storageClass] == nil
}

func noClass(name, therefore string) string {
	return fmt.Sprintf("storage class %s does not exist, %s; create it or name another", name, therefore)
}

// anyNode reports whether a node matches. It is true while the nodes are unknown.
func (c *Cluster) anyNode(wanted metav1.LabelSelector) bool {
	return c.Nodes == nil || slices.ContainsFunc(c.Nodes, func(node corev1.Node) bool { return config.NodeRule{Nodes: wanted}.Matches(node.Labels) })
}

// CopyProblems reports the missing permissions of the agents to copy the objects that their ConfigMap names. They
// need to create copies in Velero's namespace, and to read the originals in each namespace with one. Without agents,
// the ServiceAccount is unknown and nothing is reported.
func (i *Installation) CopyProblems(ctx context.Context, client kubernetes.Interface, documents []Document) ([]config.Problem, error) {
	if i.Agents == nil {
		return nil, nil
	}
	var problems []config.Problem
	for _, right := range startup.CopyRights(movers(documents)) {
		namespaces := []string{i.Namespace}
		if right.Original {
			var err error
			if namespaces, err = i.originals(ctx, client, right); err != nil {
				return nil, err
			}
		}
		for _, namespace := range namespaces {
			allowed, err := preflight.Allowed(ctx, client, i.Namespace, i.Agents.Spec.ServiceAccountName, right.Attributes(namespace))
			if err != nil {
				return nil, err
			}
			if !allowed {
				problems = append(problems, right.Missing(namespace))
			}
		}
	}
	return problems, nil
}

// originals lists the namespaces that contain an original, except Velero's own.
func (i *Installation) originals(ctx context.Context, client kubernetes.Interface, right startup.CopyRight) ([]string, error) {
	named := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, right.Name).String()}
	var namespaces []string
	if right.Resource == "secrets" {
		list, err := client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, named)
		if err != nil {
			return nil, fmt.Errorf("list secrets %s: %w", right.Name, err)
		}
		for _, secret := range list.Items {
			namespaces = append(namespaces, secret.Namespace)
		}
	} else {
		list, err := client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, named)
		if err != nil {
			return nil, fmt.Errorf("list configmaps %s: %w", right.Name, err)
		}
		for _, configMap := range list.Items {
			namespaces = append(namespaces, configMap.Namespace)
		}
	}
	return slices.DeleteFunc(namespaces, func(namespace string) bool { return namespace == i.Namespace }), nil
}
