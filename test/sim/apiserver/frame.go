package apiserver

import (
	"bytes"
	"encoding/binary"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// streamType is the media type of a watch whose frames are protobuf: each has its length in 4 bytes before it.
const streamType = runtime.ContentTypeProtobuf + ";stream=watch"

// encode appends the frame of an event.
func (w *Watch) encode(into *bytes.Buffer, kind watch.EventType, object *Object) {
	if !w.protobuf {
		into.WriteString(`{"type":"` + string(kind) + `","object":`)
		into.Write(w.filter.encoded(object))
		into.WriteString("}\n")
		return
	}
	event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object.protobuf()}}
	data, err := event.Marshal()
	if err != nil {
		panic(fmt.Sprintf("encode an event of %s: %v", object.Key(), err))
	}
	into.Write(binary.BigEndian.AppendUint32(nil, uint32(len(data)))) //nolint:gosec // an object is small
	into.Write(data)
}

// protobuf returns the encoded object of a built-in resource.
func (o *Object) protobuf() []byte {
	if o.proto != nil {
		return o.proto
	}
	typed, known := o.typed.(runtime.Object)
	if !known {
		var err error
		if typed, err = scheme.Scheme.New(o.GroupVersionKind()); err != nil {
			panic(fmt.Sprintf("make %s: %v", o.GetKind(), err))
		}
		o.decode(typed)
	}
	var data bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(typed, &data); err != nil {
		panic(fmt.Sprintf("encode %s %s: %v", o.GetKind(), o.Key(), err))
	}
	o.proto = data.Bytes()
	return o.proto
}

// expired returns the status that ends a watch with 410.
func expired() *Object {
	status := apierrors.NewResourceExpired("too old resource version").Status()
	status.Kind, status.APIVersion = "Status", "v1"
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		panic(fmt.Sprintf("convert a status: %v", err))
	}
	object := &Object{}
	object.Object = content
	return object
}
