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
)

// validity of every certificate; a cluster does not live longer.
const validity = 7 * 24 * time.Hour

// authority is the cluster's certificate authority, for servers and clients alike.
type authority struct {
	dir         string
	key         crypto.Signer
	certificate *x509.Certificate
	pem         []byte
}

// newAuthority makes an authority and writes what the API server reads into dir. The server has loopback and addresses.
func newAuthority(dir string, addresses []net.IP) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key}
	template := certificate(pkix.Name{CommonName: "lateen-test"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := a.write("ca.crt", a.pem); err != nil {
		return nil, err
	}
	return a, a.writePairs(addresses)
}

// writePairs writes the API server's serving pair, the pair that it shows to kubelets, and the key that
// ServiceAccount tokens are signed with.
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
		cert, key, err := a.issue(template)
		if err != nil {
			return fmt.Errorf("issue %s: %w", name, err)
		}
		if err := a.write(name+".crt", cert); err != nil {
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

// issue signs a new key with the template's names, and returns certificate and key as PEM.
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

// client is the template of a certificate that makes its bearer a user: Kubernetes takes the common name
// as the user and the organizations as the groups.
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
