package driver

import (
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// paged cuts the page that is asked for out of all entries. A token is the index of the first entry of a page.
func paged(all *csi.ListSnapshotsResponse, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	first := 0
	if request.StartingToken != "" {
		var err error
		if first, err = strconv.Atoi(request.StartingToken); err != nil || first < 0 || first > len(all.Entries) {
			return nil, status.Errorf(codes.Aborted, "no page starts at %q", request.StartingToken)
		}
	}
	all.Entries = all.Entries[first:]
	if most := int(request.MaxEntries); most > 0 && most < len(all.Entries) {
		all.Entries, all.NextToken = all.Entries[:most], strconv.Itoa(first+most)
	}
	return all, nil
}
