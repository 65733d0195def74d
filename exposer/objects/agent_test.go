package objects

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestVelerosAgentsAreDistinguishedFromLateens(t *testing.T) {
	for name, test := range map[string]struct {
		command, args []string
		veleros       bool
	}{
		"as velero install and the chart make it": {[]string{"/velero"}, []string{"node-agent", "server", "--features="}, true},
		"all in its command":                      {[]string{"/velero", "node-agent", "server"}, nil, true},
		"by a shell":                              {[]string{"sh", "-c"}, []string{"exec /velero node-agent server"}, true},
		"Lateen's own":                            {nil, []string{"node-agent", "--mover-template=deployment/velero"}, false},
		"one that was adopted":                    {[]string{"/lateen"}, []string{"node-agent", "--log-level=debug", "--mover-template=deployment/velero"}, false},
		"something else":                          {nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "beside", Args: []string{"server"}}, {Name: "node-agent", Command: test.command, Args: test.args},
			}}}
			require.Equal(t, test.veleros, IsVelerosAgent(pod))
		})
	}
}
