package transfer

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

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
		"nothing at all":                      {message: "", says: "empty termination message"},
		"nothing but space":                   {message: " \n", says: "empty termination message"},
		"words":                               {message: "Failed to run data path", says: `"Failed to run data path"`},
		"no snapshot, and not empty":          {message: `{"snapshotID":"","source":{"byPath":"/uid"}}`, says: ErrNoSnapshot.Error()},
		"an empty object":                     {message: `{}`, says: ErrNoSnapshot.Error()},
		"null":                                {message: `null`, says: ErrNoSnapshot.Error()},
		"the result of a restore":             {message: `{"target":{"byPath":"/uid","volumeMode":"Filesystem"},"totalBytes":3}`, says: ErrNoSnapshot.Error()},
		"a list":                              {message: `[]`, says: "array"},
		"a snapshot ID that is a number":      {message: `{"snapshotID":1}`, says: "snapshotID"},
		"bytes that are words":                {message: `{"snapshotID":"k1","totalBytes":"many"}`, says: "totalBytes"},
		"bytes that are not whole":            {message: `{"snapshotID":"k1","totalBytes":1.5}`, says: "totalBytes"},
		"a result with something behind it":   {message: `{"snapshotID":"k1"} and more`, says: "invalid character"},
		"cut off where the kubelet cuts":      {message: long[:terminationBytes], says: "unexpected end"},
		"cut off in the middle of the object": {message: `{"snapshotID":"k1","source":{"by`, says: "unexpected end"},
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
		"total only":                 {message: `{"totalBytes":10}`, progress: Progress{Total: 10}},
		"the field of the resource":  {message: `{"totalBytes":10,"bytesDone":4}`, progress: Progress{Total: 10}},
		"words":                      {message: "half way", says: "parse progress"},
		"nothing":                    {message: "", says: "parse progress"},
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

func FuzzReadBackup(f *testing.F) {
	for _, seed := range []string{
		`{"snapshotID":"k1","emptySnapshot":false,"source":{"byPath":"/uid"},"totalBytes":100}`,
		`{"emptySnapshot":true}`, `null`, `"`, `{"snapshotID":"k1"`, "", "\xff\xfe", strings.Repeat("é", 300),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message string) {
		outcome, err := readBackup("nothing in it")(message)
		if err != nil {
			require.Equal(t, Outcome{}, outcome, "half a result")
			require.True(t, utf8.ValidString(err.Error()), "the error is part of a status")
			require.Less(t, len(err.Error()), 2*terminationBytes)
			return
		}
		require.True(t, json.Valid([]byte(message)))
		require.True(t, outcome.SnapshotID != "" || outcome.Note != "", "a success without a snapshot")
	})
}
