package bus

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// rereadEvery is how often an Identity looks for a renewed certificate.
const rereadEvery = 10 * time.Second

// An Identity is a node's place in a cluster: its name, its role, and the key
// and certificate that prove them. It follows changes of its files, so that
// a node with a renewed certificate need not restart.
type Identity struct {
	Cluster Cluster
	Node

	dir  string
	ca   *x509.Certificate
	pool *x509.CertPool // the CA alone

	mu      sync.Mutex
	current *tls.Certificate
	read    time.Time
}

// Open reads a node's directory, as [Issue] writes it.
func Open(dir string) (*Identity, error) {
	if err := checkNoCA(dir); err != nil {
		return nil, err
	}
	ca, err := readCA(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; make the directory of a node with: fleetd cluster cert", err)
	}
	if err != nil {
		return nil, err
	}
	if err := checkValid(filepath.Join(dir, caFile), ca, time.Now()); err != nil {
		return nil, err
	}
	id := &Identity{Cluster: Cluster(ca.Subject.CommonName), dir: dir, ca: ca, pool: x509.NewCertPool()}
	id.pool.AddCert(ca)
	cert, err := id.load()
	if err != nil {
		return nil, err
	}
	id.Node = nodeOf(cert.Leaf)
	id.current, id.read = cert, time.Now()
	return id, nil
}

// load reads the node's certificate and key, and checks them.
func (id *Identity) load() (*tls.Certificate, error) {
	certFile, keyFile := filepath.Join(id.dir, nodeFile), filepath.Join(id.dir, nodeKeyFile)
	leaf, err := readCertificate(certFile)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if err := checkValid(certFile, leaf, now); err != nil {
		return nil, err
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: id.pool, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, fmt.Errorf("%s was not issued by the CA in %s (%w): both must come from the same cluster", certFile, caFile,
			err)
	}
	if err := checkNode(leaf); err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	if err := checkPrivate(keyFile); err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("the certificate %s and its key %s do not work: %w; issue them again with: fleetd cluster cert",
			certFile, nodeKeyFile, err)
	}
	return &cert, nil
}

// certificate returns the certificate in use. Changed files that do not work
// change nothing, for example while the second one is not written yet.
func (id *Identity) certificate() *tls.Certificate {
	id.mu.Lock()
	defer id.mu.Unlock()
	if time.Since(id.read) >= rereadEvery {
		id.read = time.Now()
		if cert, err := id.load(); err == nil && nodeOf(cert.Leaf) == id.Node {
			id.current = cert
		}
	}
	return id.current
}

// Expires returns when the certificate in use expires.
func (id *Identity) Expires() time.Time { return id.certificate().Leaf.NotAfter }

// ServerTLS is for servers of this node. They serve only nodes of the cluster
// that have one of the roles; no role means any. [PeerOf] returns the node.
func (id *Identity) ServerTLS(roles ...Role) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return id.certificate(), nil },
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              id.pool,
		SessionTicketsDisabled: true, // a resumed session would outlive the peer's certificate
		VerifyConnection: func(cs tls.ConnectionState) error {
			peer, err := PeerOf(&cs)
			if err == nil && len(roles) > 0 && !slices.Contains(roles, peer.Role) {
				err = fmt.Errorf("the node %s has the role %s, which may not connect here", peer.Name, peer.Role)
			}
			return err
		},
	}
}

// ClientTLS is for connections of this node to a core, at any address.
func (id *Identity) ClientTLS() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetClientCertificate: id.clientCertificate,
		RootCAs:              id.pool,
		ServerName:           serverName(Core, id.Cluster),
	}
}

func (id *Identity) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return id.certificate(), nil
}

// PeerOf returns the node at the other end of a connection that was made with
// ServerTLS or ClientTLS.
func PeerOf(cs *tls.ConnectionState) (Node, error) {
	if cs == nil || len(cs.VerifiedChains) == 0 {
		return Node{}, errors.New("the connection has no verified certificate")
	}
	leaf := cs.VerifiedChains[0][0]
	return nodeOf(leaf), checkNode(leaf)
}

func nodeOf(cert *x509.Certificate) Node {
	n := Node{Name: cert.Subject.CommonName}
	if units := cert.Subject.OrganizationalUnit; len(units) == 1 {
		n.Role = Role(units[0])
	}
	return n
}

func checkNode(cert *x509.Certificate) error {
	n := nodeOf(cert)
	if !n.Role.valid() {
		return fmt.Errorf("the certificate of %q has the unknown role %q; roles are %s and %s", n.Name, n.Role, Core, Edge)
	}
	return CheckName(n.Name)
}

// checkValid explains what to do about a certificate that is not valid now.
func checkValid(path string, cert *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Errorf("%s is not valid before %s, and the clock of this machine shows %s: set the clock", path,
			cert.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.After(cert.NotAfter):
		return fmt.Errorf("%s expired on %s (the clock of this machine shows %s): issue a new one with: fleetd cluster cert",
			path, cert.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// checkPrivate refuses a key that everybody on the machine can read or change.
// The file's group may have access, as with secrets that are mounted into a
// container.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("cannot read the key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf("%s is accessible to everybody on this machine (mode %o): run chmod 600 %s, and make a new cluster"+
			" if somebody may have read it", path, mode, path)
	}
	return nil
}
