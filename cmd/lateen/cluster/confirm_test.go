package cluster

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfirm(t *testing.T) {
	for answer, want := range map[string]string{"y\n": "", " Yes \n": "", "y": "", "n\n": "not confirmed", "\n": "not confirmed", "": "not confirmed"} {
		var out bytes.Buffer
		err := Prompt{In: strings.NewReader(answer), Out: &out}.Confirm(t.Context(), "Do it?")
		require.Equal(t, "Do it? [y/N] \n", out.String())
		if want == "" {
			require.NoError(t, err, "%q", answer)
		} else {
			require.EqualError(t, err, want, "%q", answer)
		}
	}
}

func TestForceSkipsThePrompt(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Prompt{In: strings.NewReader("n\n"), Out: &out, Force: true}.Confirm(t.Context(), "Do it?"))
	require.Empty(t, out.String())
}

func TestAnInterruptEndsThePrompt(t *testing.T) {
	never, hold := io.Pipe() // a terminal without input
	defer hold.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	require.EqualError(t, Prompt{In: never, Out: io.Discard}.Confirm(ctx, "Do it?"), "interrupted")
}
