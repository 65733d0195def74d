package asciicast

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A pipe may cut the output anywhere, and deliver two screens at once.
func TestARecordingHasEachScreenOnceHoweverItIsWritten(t *testing.T) {
	const output = "Velero in a\n\nMOVING é\n\nVelero in a\n\nMOVING é\n\nVelero in b\n\n"
	want := &Recording{Title: "title", Width: 11, Height: 3, Screens: []Screen{
		{0, []string{"Velero in a", "", "MOVING é"}}, {0, []string{"Velero in b"}},
	}}
	for size := 1; size <= len(output); size++ {
		synctest.Test(t, func(t *testing.T) {
			recorder := NewRecorder("title", "Velero in ")
			for rest := output; rest != ""; rest = rest[min(size, len(rest)):] {
				_, err := recorder.Write([]byte(rest[:min(size, len(rest))]))
				require.NoError(t, err)
			}
			text, err := recorder.File()
			require.NoError(t, err)
			have, err := Parse(text)
			require.NoError(t, err)
			require.Equal(t, want, have, "pieces of %d bytes", size)
		})
	}
}

func TestAScreenHasTheTimeOfItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := NewRecorder("", "Velero in ")
		for _, piece := range []string{"Velero in a\n", "\nMOVING\n\n", "Velero in b\n\n"} {
			<-time.After(1250 * time.Millisecond)
			_, err := recorder.Write([]byte(piece))
			require.NoError(t, err)
		}
		text, err := recorder.File()
		require.NoError(t, err)
		have, err := Parse(text)
		require.NoError(t, err)
		require.Equal(t, []Screen{{1.25, []string{"Velero in a", "", "MOVING"}}, {3.75, []string{"Velero in b"}}}, have.Screens)
	})
}

func TestAnEmptyRecordingIsAnError(t *testing.T) {
	_, err := NewRecorder("", "Velero in ").File()
	require.EqualError(t, err, "write recording: the program printed nothing")
}

func TestAMalformedFileIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "read header: EOF",
		`{"version":2}`:                  "read events: there are none",
		`{"version":2}` + "\n[1,":        "read event 1: unexpected EOF",
		`{"version":2}` + "\n[1,2,\"\"]": "read event 1: json: cannot unmarshal number into Go value of type string",
	} {
		_, err := Parse([]byte(text))
		require.EqualError(t, err, want, text)
	}
}
