package asciicast

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A pipe may cut the output anywhere. The file of a recording has all of it.
func TestARecordingHasEachScreenOnceWithTheTimeOfItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		output, program := io.Pipe()
		go func() {
			for _, piece := range []string{"Velero in a\n", "\nMOV", "ING é\n\nVelero in a\n\nMOVING é\n\nVel", "ero in b\n\n"} {
				<-time.After(1250 * time.Millisecond)
				_, _ = io.WriteString(program, piece)
			}
			_ = program.Close()
		}()
		recorded, err := Record(output, "title", "Velero in ")
		require.NoError(t, err)
		require.Equal(t, &Recording{Title: "title", Width: 11, Height: 3, Screens: []Screen{
			{1.25, []string{"Velero in a", "", "MOVING é"}}, {5, []string{"Velero in b"}},
		}}, recorded)
		text, err := recorded.Encode()
		require.NoError(t, err)
		read, err := Parse(text)
		require.NoError(t, err)
		require.Equal(t, recorded, read)
	})
}

func TestAnEmptyRecordingIsAnError(t *testing.T) {
	_, err := Record(strings.NewReader("\n"), "", "Velero in ")
	require.EqualError(t, err, "record screens: the program printed none")
}
