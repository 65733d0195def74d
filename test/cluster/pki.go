package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
)

// validity is the validity of every certificate, longer than the life of a cluster.
const validity = 7 * 24 * time.Hour

// authority is the cluster's certificate authority for servers and clients.
type authority struct {
	dir         string
	key         crypto.Signer
	certificate *x509.Certificate
	pem         []byte
}

// newAuthority creates an authority and writes the files of the API server to dir. The server certificate covers
// loopback and addresses.
func newAuthority(dir string, addresses []net.IP) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key}
	if a.certificate, err = cert.NewSelfSignedCACert(cert.Config{CommonName: "lateen-test"}, key); err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
	if err := a.write("ca.crt", a.pem); err != nil {
		return nil, err
	}
	return a, a.writePairs(addresses)
}

// writePairs writes the API server's serving pair, its client pair for kubelets, and the signing key of
// ServiceAccount tokens.
func (a *authority) writePairs(addresses []net.IP) error {
	server := certificate(pkix.Name{CommonName: "kube-apiserver"})
	server.IPAddresses = append([]net.IP{net.IPv4(127, 0, 0, 1)}, addresses...)
	server.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	pairs := map[string]*x509.Certificate{
		"server":         server,
		"kubelet-client": client("kube-apiserver-kubelet-client", []string{"system:masters"}),
		"sa":             certificate(pkix.Name{CommonName: "service-accounts"}),
	}
	for name, template := range pairs {
		pair, key, err := a.issue(template)
		if err != nil {
			return fmt.Errorf("issue %s: %w", name, err)
		}
		if err := a.write(name+".crt", pair); err != nil {
			return err
		}
		if err := a.write(name+".key", key); err != nil {
			return err
		}
	}
	return nil
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, content []byte) error {
	return os.WriteFile(a.path(name), content, 0o600)
}

// issue signs a new key with the template's names and returns certificate and key as PEM.
func (a *authority) issue(template *x509.Certificate) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), nil
}

// client returns the template of a client certificate. Kubernetes uses the common name as the user and the
// organizations as the groups.
func client(name string, groups []string) *x509.Certificate {
	template := certificate(pkix.Name{CommonName: name, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return template
}

func certificate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject: subject, SerialNumber: big.NewInt(now.UnixNano()),
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(validity),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}
