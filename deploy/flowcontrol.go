package deploy

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// leaderElectionLevel is the priority level of the API server for Leases of the system, which exists by default.
	leaderElectionLevel = "leader-election"
	// agentShares are the shares of the agents' level: 10 of 255 beside the default levels. Others may borrow agentsLend
	// percent of its seats while agents do not need them.
	agentShares, agentsLend int32 = 10, 50
	// A FlowSchema of a lower precedence wins. Those of the system end at 900, and that of all ServiceAccounts has 9000.
	leasePrecedence, agentPrecedence int32 = 950, 1000
)

// flowControl returns the objects for API Priority and Fairness. A burst of agents then delays agents only, other
// ServiceAccounts do not delay agents, and neither delays the Lease of the coordinator.
func flowControl(namespace string) []runtime.Object {
	name := clusterName(namespace)
	return []runtime.Object{
		&flowcontrolv1.PriorityLevelConfiguration{
			TypeMeta:   metav1.TypeMeta{APIVersion: flowcontrolv1.SchemeGroupVersion.String(), Kind: "PriorityLevelConfiguration"},
			ObjectMeta: meta("", name),
			Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
				Type: flowcontrolv1.PriorityLevelEnablementLimited,
				Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
					NominalConcurrencyShares: new(agentShares),
					LendablePercent:          new(agentsLend),
					LimitResponse: flowcontrolv1.LimitResponse{
						Type: flowcontrolv1.LimitResponseTypeQueue,
						// All agents are one flow, which needs one queue. It holds a request of each agent of a large cluster.
						Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 10000},
					},
				},
			},
		},
		flowSchema(namespace, name, name, agentPrecedence, flowcontrolv1.ResourcePolicyRule{
			Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true,
		}),
		flowSchema(namespace, name+"-lease", leaderElectionLevel, leasePrecedence, flowcontrolv1.ResourcePolicyRule{
			Verbs: []string{"get", "create", "update"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"},
			Namespaces: []string{namespace},
		}),
	}
}

// flowSchema assigns requests of the agents to a priority level.
func flowSchema(namespace, name, level string, precedence int32, requests flowcontrolv1.ResourcePolicyRule) *flowcontrolv1.FlowSchema {
	return &flowcontrolv1.FlowSchema{
		TypeMeta:   metav1.TypeMeta{APIVersion: flowcontrolv1.SchemeGroupVersion.String(), Kind: "FlowSchema"},
		ObjectMeta: meta("", name),
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level},
			MatchingPrecedence:         precedence,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{
					Kind:           flowcontrolv1.SubjectKindServiceAccount,
					ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: ServiceAccountName},
				}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{requests},
			}},
		},
	}
}
