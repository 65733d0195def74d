package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// Complete reads the environment and validates every value. Its error is one line that names each invalid flag or
// variable and its fix.
func (o *Options) Complete(getenv func(string) string) error {
	o.NodeName, o.PodUID, o.PodName = getenv("NODE_NAME"), getenv("POD_UID"), getenv("HOSTNAME")
	o.Namespace = cmp.Or(o.Namespace, getenv("VELERO_NAMESPACE"), defaultNamespace)
	o.MoverTemplate = cmp.Or(o.MoverTemplate, templateDaemonSet)
	wrong := slices.Concat(o.checkNames(), o.checkNumbers(), o.checkChoices())
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func (o *Options) checkNames() []string {
	var wrong validationErrors
	if o.NodeName == "" {
		wrong.add("NODE_NAME is not set: it must name the node of this agent; " +
			"in a DaemonSet, set env NODE_NAME to valueFrom.fieldRef.fieldPath spec.nodeName")
	} else if bad := validation.IsDNS1123Subdomain(o.NodeName); len(bad) > 0 {
		wrong.add("NODE_NAME %q is not a valid node name: %s", o.NodeName, bad[0])
	}
	if bad := validation.IsDNS1123Label(o.Namespace); len(bad) > 0 {
		wrong.add("--namespace (or VELERO_NAMESPACE) %q is not a valid namespace name: %s", o.Namespace, bad[0])
	}
	wrong.name("--node-agent-configmap", o.NodeAgentConfigMap)
	wrong.name("--backup-repository-configmap", o.BackupRepositoryConfigMap)
	wrong.name("--repo-maintenance-job-configmap", o.MaintenanceConfigMap)
	wrong.name("--mover-service-account", o.MoverServiceAccount)
	if strings.ContainsAny(o.MoverImage, " \t\r\n") {
		wrong.add("--mover-image %q contains white space: use repository:tag or repository@digest", o.MoverImage)
	}
	if _, err := o.workload(""); err != nil {
		wrong.add("%v", err)
	}
	return wrong
}

func (o *Options) checkNumbers() []string {
	var wrong validationErrors
	wrong.atLeast("--mover-retries", o.MoverRetries, 0)
	wrong.atLeast("--workers", o.Workers, 1)
	wrong.atLeast("--kube-api-burst", o.KubeAPIBurst, 1)
	if !(o.KubeAPIQPS > 0) { // NaN is rejected too
		wrong.add("--kube-api-qps is %v: use a number greater than 0", o.KubeAPIQPS)
	}
	wrong.positive("--resource-timeout", o.ResourceTimeout)
	wrong.positive("--data-mover-prepare-timeout", o.DataMoverPrepareTimeout)
	wrong.positive("--startup-timeout", o.StartupTimeout)
	wrong.atLeast("--repo-maintenance-concurrency", o.MaintenanceConcurrency, 0)
	if o.MaintenanceTimeout < time.Second {
		wrong.add("--repo-maintenance-timeout is %s: use 1s or more, such as 12h", o.MaintenanceTimeout)
	}
	if o.MaintenanceFrequency < 0 {
		wrong.add("--repo-maintenance-frequency is %s: use 0 or more, such as 24h", o.MaintenanceFrequency)
	}
	if _, _, err := o.Window(); err != nil {
		wrong.add("--repo-maintenance-window %q is invalid: %v", o.MaintenanceWindow, err)
	}
	if o.FinishedTTL < 0 {
		wrong.add("--finished-ttl is %s: use 0 to keep finished transfers, or a duration such as 168h", o.FinishedTTL)
	}
	if o.CancelGrace < 0 {
		wrong.add("--cancel-grace is %s: use 0 or more, such as 5m", o.CancelGrace)
	}
	if o.StallTimeout != 0 && o.StallTimeout < time.Second {
		wrong.add("--stall-timeout is %s: use 0 for no limit, or 1s or more, such as 2h", o.StallTimeout)
	}
	return wrong
}

func (o *Options) checkChoices() []string {
	var wrong validationErrors
	wrong.choice("--log-level", o.LogLevel, logLevels())
	wrong.choice("--log-format", o.LogFormat, logFormats())
	if err := checkAddress(o.MetricsAddress); err != nil {
		wrong.add("--metrics-address %q is invalid (%v): use host:port or :port", o.MetricsAddress, err)
	}
	// mount paths on Windows may lack a drive
	if o.HostPath != "" && !filepath.IsAbs(o.HostPath) && !path.IsAbs(o.HostPath) {
		wrong.add("--host-path %q is not absolute: use the mount path of the kubelet's pods directory, such as %s", o.HostPath, DefaultHostPath)
	}
	return wrong
}

func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	return nil
}

// validationErrors are sentences about invalid flags.
type validationErrors []string

func (v *validationErrors) add(format string, args ...any) {
	*v = append(*v, fmt.Sprintf(format, args...))
}

// name accepts an empty value: the flag is not set.
func (v *validationErrors) name(flag, value string) {
	if value == "" {
		return
	}
	if bad := validation.IsDNS1123Subdomain(value); len(bad) > 0 {
		v.add("%s %q is not a valid object name: %s", flag, value, bad[0])
	}
}

func (v *validationErrors) atLeast(flag string, value, least int) {
	if value < least {
		v.add("%s is %d: use %d or more", flag, value, least)
	}
}

func (v *validationErrors) positive(flag string, value time.Duration) {
	if value <= 0 {
		v.add("%s is %s: use a duration greater than 0, such as 10m", flag, value)
	}
}

func (v *validationErrors) choice(flag, value string, known []string) {
	if !slices.Contains(known, value) {
		v.add("%s %q is unknown: use %s", flag, value, configmap.OneOf(known))
	}
}
