package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
)

// veleroVersion reads the version of Velero and compares it with what Lateen was tested with; nil if no workload names
// an image.
func veleroVersion(ctx context.Context, connection *rest.Config, installation *check.Installation) (*check.Velero, error) {
	image := installation.MoverImage()
	if image == "" {
		return nil, nil
	}
	connection = rest.CopyConfig(connection)
	connection.QPS = -1 // no limit: the requests are sequential
	client, err := dynamic.NewForConfig(connection)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	fields, err := unknownFields(ctx, client)
	if err != nil {
		return nil, err
	}
	return &check.Velero{
		Image: image, TestedVersions: config.TestedVersions(), Untested: config.UntestedVelero(image), UnknownFields: append([]string{}, fields...),
	}, nil
}

// kubernetesVersion reads the version of the API server and compares it with what Lateen was tested with.
func kubernetesVersion(client kubernetes.Interface) (*check.Kubernetes, error) {
	found, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("get version of the API server: %w", err)
	}
	return &check.Kubernetes{
		Version: found.GitVersion, TestedVersions: config.TestedKubernetes(), Untested: config.UntestedKubernetes(found.GitVersion),
	}, nil
}

// warn prints what was not tested. None of it is a Problem.
func warn(to io.Writer, velero *check.Velero, server *check.Kubernetes) {
	untested := []string{server.Untested}
	if velero != nil {
		untested = append(untested, velero.Untested)
	}
	for _, each := range untested {
		if each != "" {
			fmt.Fprintf(to, "Warning: %s; use a newer Lateen, or test a backup and a restore first\n", each)
		}
	}
	if velero != nil && len(velero.UnknownFields) > 0 {
		fmt.Fprintf(to, "Warning: Velero's CustomResourceDefinitions have fields that Lateen does not know and ignores: %s\n", strings.Join(velero.UnknownFields, ", "))
	}
}

// unknownFields lists the fields of Velero's definitions in the cluster that are not in Lateen's version of them, by kind.
// It ignores missing and forbidden definitions.
func unknownFields(ctx context.Context, client dynamic.Interface) ([]string, error) {
	var all []string
	for _, object := range deploy.Definitions() {
		ours, err := deploy.Manifest(object)
		if err != nil {
			return nil, err
		}
		theirs, err := client.Resource(cluster.Definitions()).Get(ctx, ours.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get definition %s: %w", ours.GetName(), err)
		}
		kind, _, _ := unstructured.NestedString(ours.Object, "spec", "names", "kind")
		for _, field := range cluster.NewerFields(theirs, ours) {
			all = append(all, kind+" "+field)
		}
	}
	return all, nil
}
