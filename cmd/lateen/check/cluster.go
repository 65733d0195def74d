package check

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Cluster holds the objects that a configuration may name. A nil field could not be read, so it is not checked.
type Cluster struct {
	Nodes           []corev1.Node
	StorageClasses  map[string]*storagev1.StorageClass
	PriorityClasses map[string]*schedulingv1.PriorityClass
	TryClass        func(class string) priority.Reason // by a dry run, why pods cannot have the class; empty if they can; nil: not tried
	MoverImage      string                             // empty if unknown
	CopyProblems    []configmap.Problem                // missing permissions of the agents to copy objects
}

// invalid returns the Problems that the agent finds beyond its parser. It removes these settings from the
// configuration.
func (c *Cluster) invalid(of *configmap.Config) []configmap.Problem {
	problems := c.invalidClass(&of.PriorityClassName, configmap.SectionPriorityClassName, string(configmap.SectionPriorityClassName))
	if cache := of.Movers.Cache; cache != nil {
		if problem := c.invalidCache(cache.StorageClass); problem != nil {
			problems = append(problems, *problem)
			of.Movers.Cache = nil
		}
	}
	return problems
}

// invalidClass clears a priority class that does not exist in the cluster, or that pods cannot have.
func (c *Cluster) invalidClass(name *string, section configmap.Section, path string) []configmap.Problem {
	if *name == "" || c.PriorityClasses == nil {
		return nil
	}
	reason, problem := priority.NotFound, configmap.Missing
	if c.PriorityClasses[*name] != nil {
		if c.TryClass == nil {
			return nil
		}
		reason, problem = c.TryClass(*name), configmap.InvalidValue
	}
	if reason == "" {
		return nil
	}
	class := priority.Fallback(*name, reason)
	*name = ""
	return []configmap.Problem{{Section: section, Path: path, Reason: problem, Message: class.Message}}
}

func (c *Cluster) invalidCache(class string) *configmap.Problem {
	if problem := config.CacheUnsupported(c.MoverImage); problem != nil || c.StorageClasses == nil {
		return problem
	}
	return config.UnusableCacheClass(class, c.StorageClasses[class])
}

// unmatched returns the Problems of valid settings that currently match nothing in the cluster.
func (c *Cluster) unmatched(of configmap.Config) []configmap.Problem {
	var problems []configmap.Problem
	add := func(section configmap.Section, path, message string) {
		problems = append(problems, configmap.Problem{Section: section, Path: path, Reason: configmap.Missing, Message: message})
	}
	for _, rule := range of.NodeRules {
		if !c.anyNode(rule.Nodes) {
			add(configmap.SectionLoadConcurrency, "loadConcurrency.perNodeConfig",
				fmt.Sprintf("no node matches %s; label nodes or correct the selector", formatSelector(rule.Nodes)))
		}
	}
	for _, one := range of.Movers.LoadAffinity { // unusable rules are already removed, so an index would mislead
		if !c.anyNode(one.Nodes) {
			add(configmap.SectionLoadAffinity, "loadAffinity",
				fmt.Sprintf("no node matches %s, so movers without another rule stay pending; label nodes or correct the selector", formatSelector(one.Nodes)))
		}
		if c.lacks(one.StorageClass) {
			add(configmap.SectionLoadAffinity, "loadAffinity", noClass(one.StorageClass, "so this rule applies to no volume"))
		}
	}
	for _, source := range sortedNames(of.Movers.BackupClaims) {
		claim, path := of.Movers.BackupClaims[source], "backupPVC."+source
		if c.lacks(source) {
			add(configmap.SectionBackupPVC, path, noClass(source, "so this rule applies to no volume"))
		}
		if c.lacks(claim.StorageClass) {
			add(configmap.SectionBackupPVC, path+".storageClass", noClass(claim.StorageClass, fmt.Sprintf("so volumes of class %s cannot be backed up from snapshots", source)))
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
	if c.Nodes == nil {
		return true
	}
	rule := configmap.NodeRule{Nodes: wanted}
	for _, node := range c.Nodes {
		if rule.Matches(node.Labels) {
			return true
		}
	}
	return false
}
