package configmap

import apiequality "k8s.io/apimachinery/pkg/api/equality"

// Edit is the effect of an edited configuration on a running agent.
type Edit struct {
	Config  Config
	Applied []string // fields that changed and are in force
	Pending []string // fields that changed and need a restart
}

// Apply returns the effect of an edited configuration on the one in force. It is pure. What only new movers read, and
// the limits of movers, are in force at once. The agent's restart applies the rest: volumes of transfers in flight
// depend on backupPVC, restorePVC and cachePVC, and agents that have different queues would admit too many transfers.
func Apply(inForce, edited Config) Edit {
	edit := Edit{Config: edited}
	for _, field := range []struct {
		name    string
		of      func(*Config) any
		restore func() // keeps the value in force; nil if the edited value is in force at once
	}{
		{name: string(SectionPriorityClassName), of: func(c *Config) any { return c.PriorityClassName }},
		{name: string(SectionLoadConcurrency), of: func(c *Config) any { return []any{c.GlobalConcurrency, c.NodeRules} }},
		{name: string(SectionLoadAffinity), of: func(c *Config) any { return c.Movers.LoadAffinity }},
		{name: string(SectionPodResources), of: func(c *Config) any { return c.Movers.Resources }},
		{name: string(SectionPodLabels), of: func(c *Config) any { return c.Movers.Labels }},
		{name: string(SectionPodAnnotations), of: func(c *Config) any { return c.Movers.Annotations }},
		{name: string(SectionTolerations), of: func(c *Config) any { return c.Movers.Tolerations }},
		{name: string(SectionPrivilegedFsBackup), of: func(c *Config) any { return c.Movers.Privileged }},
		{
			name: string(SectionLoadConcurrency) + ".prepareQueueLength", of: func(c *Config) any { return c.PrepareQueueLength },
			restore: func() { edit.Config.PrepareQueueLength = inForce.PrepareQueueLength },
		},
		{
			name: string(SectionBackupPVC), of: func(c *Config) any { return c.Movers.BackupClaims },
			restore: func() { edit.Config.Movers.BackupClaims = inForce.Movers.BackupClaims },
		},
		{
			name: string(SectionRestorePVC), of: func(c *Config) any { return []any{c.Movers.IgnoreDelayBinding, c.Movers.RestoreCopies} },
			restore: func() {
				edit.Config.Movers.IgnoreDelayBinding, edit.Config.Movers.RestoreCopies = inForce.Movers.IgnoreDelayBinding, inForce.Movers.RestoreCopies
			},
		},
		{
			name: string(SectionCachePVC), of: func(c *Config) any { return c.Movers.Cache },
			restore: func() { edit.Config.Movers.Cache = inForce.Movers.Cache },
		},
	} {
		switch changed := !apiequality.Semantic.DeepEqual(field.of(&inForce), field.of(&edited)); {
		case changed && field.restore != nil:
			field.restore()
			edit.Pending = append(edit.Pending, field.name)
		case changed:
			edit.Applied = append(edit.Applied, field.name)
		}
	}
	return edit
}
