module github.com/lateen-project/lateen/test/csidriver

go 1.26.0

require (
	github.com/lateen-project/lateen/test v0.0.0
	google.golang.org/grpc v1.83.1
	k8s.io/kubelet v0.36.3
)

require (
	github.com/container-storage-interface/spec v1.13.0 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/lateen-project/lateen => ../..
	github.com/lateen-project/lateen/test => ..
	github.com/lateen-project/lateen/test/cluster => ../cluster
)
