// Package informers turns events into keys and keeps typed caches. It never writes to the API and never decides
// anything.
package informers

import (
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Clientset returns typed clients for Velero's kinds without a generated clientset.
type Clientset struct {
	v1, v2 rest.Interface
	codecs runtime.ParameterCodec
}

// NewClientset returns a Clientset; it sends no request.
func NewClientset(config *rest.Config) (*Clientset, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	if err := velerov1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register velero.io/v1: %w", err)
	}
	if err := velerov2alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register velero.io/v2alpha1: %w", err)
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.ContentType = runtime.ContentTypeJSON // custom resources have no protobuf
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	velero := &Clientset{codecs: runtime.NewParameterCodec(scheme)}
	for version, client := range map[schema.GroupVersion]*rest.Interface{velerov1.SchemeGroupVersion: &velero.v1, velerov2alpha1.SchemeGroupVersion: &velero.v2} {
		config.GroupVersion = &version
		created, err := rest.RESTClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("create client for %s: %w", version, err)
		}
		*client = created
	}
	return velero, nil
}
