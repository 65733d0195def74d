package cluster

import (
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenSeconds is the lifetime of a ServiceAccount token: longer than that of any cluster.
const tokenSeconds = int64(24 * 60 * 60)

// Admin returns the client configuration of a member of system:masters, which RBAC never restricts. Like every
// configuration of this package, it has no client-side rate limit (QPS -1). The caller owns it.
func (c *Cluster) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// HasRights reports that RBAC restricts what users may do.
func (*Cluster) HasRights() bool { return true }

// User returns the client configuration of the user name in groups, with a client certificate. The user has only the
// permissions that RBAC grants to that name and those groups.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, error) {
	cert, key, err := c.pki.issue(client(name, groups))
	if err != nil {
		return nil, fmt.Errorf("issue certificate of user %s: %w", name, err)
	}
	config := unthrottled(c.address, c.pki.pem)
	config.CertData, config.KeyData = cert, key
	return config, nil
}

// ServiceAccount returns the client configuration of an existing ServiceAccount, with a token valid for 24 hours.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	admin, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	seconds := tokenSeconds
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	answer, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	config := unthrottled(c.address, c.pki.pem)
	config.BearerToken = answer.Status.Token
	return config, nil
}

// WriteKubeconfig is the function WriteKubeconfig.
func (*Cluster) WriteKubeconfig(config *rest.Config, path, namespace string) error {
	return WriteKubeconfig(config, path, namespace)
}

// WriteKubeconfig writes config as a kubeconfig file. Its only context has the given default namespace. The error
// means that config has no credentials, or that the file cannot be written.
func WriteKubeconfig(config *rest.Config, path, namespace string) error {
	if config.CertData == nil && config.BearerToken == "" {
		return errors.New("write kubeconfig: the configuration has neither a certificate nor a token; take one of this package")
	}
	const name = "lateen-test"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
