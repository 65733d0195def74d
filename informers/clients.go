// Package informers turns events into keys and keeps typed caches. It never writes to the API and
// never decides anything.
package informers

import (
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// PodVolumeBackups is a typed client for the PodVolumeBackups of one namespace.
type PodVolumeBackups = gentype.ClientWithList[*velerov1.PodVolumeBackup, *velerov1.PodVolumeBackupList]

// Velero makes typed clients for Velero's kinds without a generated clientset.
type Velero struct {
	v1     rest.Interface
	codecs runtime.ParameterCodec
}

// NewVelero prepares the clients; it calls nothing.
func NewVelero(config *rest.Config) (*Velero, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	if err := velerov1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register velero.io/v1: %w", err)
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &velerov1.SchemeGroupVersion
	config.ContentType = runtime.ContentTypeJSON // custom resources have no protobuf
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	v1, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client for velero.io/v1: %w", err)
	}
	return &Velero{v1: v1, codecs: runtime.NewParameterCodec(scheme)}, nil
}

// PodVolumeBackups is the client for one namespace.
func (v *Velero) PodVolumeBackups(namespace string) *PodVolumeBackups {
	return gentype.NewClientWithList(
		"podvolumebackups", v.v1, v.codecs, namespace,
		func() *velerov1.PodVolumeBackup { return &velerov1.PodVolumeBackup{} },
		func() *velerov1.PodVolumeBackupList { return &velerov1.PodVolumeBackupList{} },
	)
}
