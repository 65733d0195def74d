package transfer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// terminationBytes is the kubelet's limit of a termination message.
const terminationBytes = 4096

func TestReadBackup(t *testing.T) {
	long := `{"snapshotID":"` + strings.Repeat("s", 2*terminationBytes) + `"}`
	for name, test := range map[string]struct {
		message string
		outcome Outcome
		says    string // part of the error message
	}{
		"a snapshot": {
			message: `{"snapshotID":"k1","emptySnapshot":false,"source":{"byPath":"/uid","volumeMode":"Filesystem"},"totalBytes":100,"incrementalBytes":7}`,
			outcome: Outcome{SnapshotID: "k1", Path: "/uid", TotalBytes: 100, IncrementalBytes: 7},
		},
		"a snapshot of files without a byte: the numbers are left out": {
			message: `{"snapshotID":"k1","emptySnapshot":false,"source":{"byPath":"/uid","volumeMode":"Filesystem"}}`,
			outcome: Outcome{SnapshotID: "k1", Path: "/uid"},
		},
		"an empty volume has no snapshot": {
			message: `{"snapshotID":"","emptySnapshot":true,"source":{"byPath":"/uid","volumeMode":"Filesystem"}}`,
			outcome: Outcome{Path: "/uid", Note: "nothing in it"},
		},
		"a newer mover reports more": {
			message: `{"snapshotID":"k1","source":{"byPath":"/uid"},"checksum":{"sha":"1"},"totalBytes":1}`,
			outcome: Outcome{SnapshotID: "k1", Path: "/uid", TotalBytes: 1},
		},
		"space around it does no harm": {
			message: "\n" + `{"snapshotID":"k1"}` + "\n",
			outcome: Outcome{SnapshotID: "k1"},
		},
		"nothing at all":                 {message: "", says: "empty termination message"},
		"nothing but space":              {message: " \n", says: "empty termination message"},
		"words":                          {message: "Failed to run data path", says: `"Failed to run data path"`},
		"no snapshot, and not empty":     {message: `{"snapshotID":"","source":{"byPath":"/uid"}}`, says: ErrNoSnapshot.Error()},
		"the result of a restore":        {message: `{"target":{"byPath":"/uid","volumeMode":"Filesystem"},"totalBytes":3}`, says: ErrNoSnapshot.Error()},
		"cut off where the kubelet cuts": {message: long[:terminationBytes], says: "unexpected end"},
	} {
		t.Run(name, func(t *testing.T) {
			outcome, err := readBackup("nothing in it")(test.message)
			if test.says != "" {
				require.ErrorContains(t, err, test.says)
				require.Less(t, len(err.Error()), 400, "the error is part of a status")
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.outcome, outcome)
		})
	}
}

func TestReadProgress(t *testing.T) {
	for name, test := range map[string]struct {
		message  string
		progress Progress
		says     string
	}{
		"under way":                  {message: `{"totalBytes":10,"doneBytes":4}`, progress: Progress{Total: 10, Done: 4}},
		"begun: zeros are left out":  {message: `{}`, progress: Progress{}},
		"words":                      {message: "half way", says: "parse progress"},
		"a message alone":            {message: `{"totalBytes":-1,"doneBytes":-1,"message":"no changed blocks are known"}`, says: "no progress"},
		"no bytes yet done":          {message: `{"totalBytes":5,"doneBytes":-1}`, says: "no progress"},
		"a number that is too large": {message: `{"doneBytes":9999999999999999999}`, says: "doneBytes"},
	} {
		t.Run(name, func(t *testing.T) {
			progress, err := ReadProgress(test.message)
			if test.says != "" {
				require.ErrorContains(t, err, test.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.progress, progress)
		})
	}
}
