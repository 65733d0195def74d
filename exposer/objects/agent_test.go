package objects

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

func TestVelerosAgentsAreDistinguishedFromLateens(t *testing.T) {
	labelled := map[string]string{api.LabelAgent: "true"}
	for name, test := range map[string]struct {
		command, args []string
		veleros       bool
		labels        map[string]string
	}{
		"as velero install and the chart make it": {[]string{"/velero"}, []string{"node-agent", "server", "--features="}, true, nil},
		"all in its command":                      {[]string{"/velero", "node-agent", "server"}, nil, true, nil},
		"by a shell":                              {[]string{"sh", "-c"}, []string{"exec /velero node-agent server"}, true, nil},
		"Lateen's own":                            {nil, []string{"node-agent", "--mover-template=deployment/velero"}, false, nil},
		"one that was adopted":                    {[]string{"/lateen"}, []string{"node-agent", "--log-level=debug", "--mover-template=deployment/velero"}, false, nil},
		"Lateen's own with Velero's arguments":    {[]string{"/velero"}, []string{"node-agent", "server"}, false, labelled},
		"something else":                          {nil, nil, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "beside", Args: []string{"server"}}, {Name: "node-agent", Command: test.command, Args: test.args},
			}}}
			require.Equal(t, test.veleros, IsVelerosAgent(pod))
		})
	}
}
