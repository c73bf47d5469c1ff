package bus

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The files of a cluster's directory (caFile and caKeyFile) and of a node's
// directory (all but caKeyFile).
const (
	caFile      = "ca.pem"
	caKeyFile   = "ca-key.pem" // its owner can issue any certificate
	nodeFile    = "node.pem"
	nodeKeyFile = "node-key.pem"
)

const (
	organization = "fleetd cluster"
	caYears      = 10
	// backdated lets a node use a certificate at once if its clock is slow.
	backdated = time.Hour
)

// Init creates a cluster: its directory, its CA and its id. It never
// overwrites a CA.
func Init(dir string) (Cluster, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot create the cluster's directory: %w", err)
	}
	for _, name := range []string{caFile, caKeyFile} {
		_, err := os.Lstat(filepath.Join(dir, name))
		if err == nil {
			return "", fmt.Errorf("%s already contains %s: choose another directory, since a new CA would lock out all nodes"+
				" of that cluster", dir, name)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	id := make([]byte, 8)
	rand.Read(id) // never fails
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          serialNumber(),
		Subject:               pkix.Name{Organization: []string{organization}, CommonName: hex.EncodeToString(id)},
		NotBefore:             now.Add(-backdated),
		NotAfter:              now.AddDate(caYears, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	key, cert, err := newCertificate(template, nil, nil)
	if err != nil {
		return "", err
	}
	if err := writeNew(filepath.Join(dir, caKeyFile), key, 0o600); err != nil {
		return "", fmt.Errorf("cannot write the CA's key: %w", err)
	}
	if err := writeNew(filepath.Join(dir, caFile), cert, 0o644); err != nil {
		_ = os.Remove(filepath.Join(dir, caKeyFile)) // made above, and of no use
		return "", fmt.Errorf("cannot write the CA's certificate: %w", err)
	}
	return Cluster(template.Subject.CommonName), nil
}

// An Order says which certificate [Issue] makes.
type Order struct {
	Name string
	Role Role
	// Hosts are further names and IP addresses in the certificate. Nodes do not
	// need them: they expect the role of their peer, whatever its address.
	Hosts []string
	// Days is how long the certificate is valid. Default: 365.
	Days int
	// Out is the node's directory. Default: a directory with the node's name in
	// the cluster's directory.
	Out string
}

// Issue writes a node's directory: the CA's certificate, and a new key with its
// certificate, which replace those that the same node had there. It returns the
// path of the directory and the end of the certificate.
func Issue(dir string, o Order) (out string, expires time.Time, err error) {
	if err := CheckName(o.Name); err != nil {
		return "", time.Time{}, err
	}
	if !o.Role.valid() {
		return "", time.Time{}, fmt.Errorf("unknown role %q; use %s or %s", o.Role, Core, Edge)
	}
	ca, caKey, err := openCA(dir)
	if err != nil {
		return "", time.Time{}, err
	}
	cluster := Cluster(ca.Subject.CommonName)
	now := time.Now()
	if o.Days == 0 {
		o.Days = 365
	}
	template := &x509.Certificate{
		SerialNumber: serialNumber(),
		Subject: pkix.Name{Organization: []string{organization}, OrganizationalUnit: []string{string(o.Role)},
			CommonName: o.Name},
		NotBefore:             now.Add(-backdated),
		NotAfter:              now.AddDate(0, 0, o.Days),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              []string{o.Name + "." + serverName(o.Role, cluster), serverName(o.Role, cluster)},
	}
	if o.Days < 1 || template.NotAfter.After(ca.NotAfter) {
		return "", time.Time{}, fmt.Errorf("a certificate cannot be valid for %d days: give 1 to %d, since the CA expires on %s",
			o.Days, int(ca.NotAfter.Sub(now).Hours()/24), ca.NotAfter.Format(time.DateOnly))
	}
	if err := addHosts(template, o.Hosts); err != nil {
		return "", time.Time{}, err
	}
	if o.Out == "" {
		o.Out = filepath.Join(dir, o.Name)
	}
	if err := checkOut(o, ca); err != nil {
		return "", time.Time{}, err
	}
	key, cert, err := newCertificate(template, ca, caKey)
	if err != nil {
		return "", time.Time{}, err
	}
	if err := os.MkdirAll(o.Out, 0o700); err != nil {
		return "", time.Time{}, fmt.Errorf("cannot create the directory of %s: %w", o.Name, err)
	}
	for _, f := range []struct {
		name string
		text []byte
		mode fs.FileMode
	}{
		{caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), 0o644},
		{nodeKeyFile, key, 0o600},
		{nodeFile, cert, 0o644},
	} {
		if err := replace(filepath.Join(o.Out, f.name), f.text, f.mode); err != nil {
			return "", time.Time{}, fmt.Errorf("cannot write the certificate of %s: %w", o.Name, err)
		}
	}
	return o.Out, template.NotAfter, nil
}

// serverName is the name that a client expects in the certificate of a node of
// a role. It does not depend on the address of the node.
func serverName(role Role, c Cluster) string { return string(role) + "." + string(c) + ".fleetd" }

func addHosts(template *x509.Certificate, hosts []string) error {
	for _, h := range hosts {
		ip := net.ParseIP(h)
		switch {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case h == "" || strings.ContainsAny(h, " */:"):
			return fmt.Errorf("%q is not a host: give a name or an IP address, without a port", h)
		case strings.HasSuffix(strings.ToLower(strings.TrimSuffix(h, ".")), ".fleetd"):
			return fmt.Errorf("%q is not possible as a host: names below .fleetd state the role of a node", h)
		default:
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	return nil
}

// checkOut refuses a directory that holds a CA's key, or files of another node.
func checkOut(o Order, ca *x509.Certificate) error {
	if err := checkNoCA(o.Out); err != nil {
		return err
	}
	old, err := readCertificate(filepath.Join(o.Out, nodeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if n := nodeOf(old); n.Name != o.Name || n.Role != o.Role || old.CheckSignatureFrom(ca) != nil {
		return fmt.Errorf("%s already contains the certificate of %s (%s), perhaps of another cluster: choose another"+
			" directory", o.Out, n.Name, n.Role)
	}
	return nil
}

// checkNoCA refuses a node's directory with a CA's key: with it, the files of one
// node would be enough to become any node.
func checkNoCA(dir string) error {
	switch _, err := os.Lstat(filepath.Join(dir, caKeyFile)); {
	case err == nil:
		return fmt.Errorf("%s contains %s, the key of the CA, which no node may have: use a directory made by"+
			" fleetd cluster cert", dir, caKeyFile)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return err
	}
}

func openCA(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	ca, err := readCA(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s is not the directory of a cluster; create one with: fleetd cluster init %s", dir, dir)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := checkValid(filepath.Join(dir, caFile), ca, time.Now()); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, caKeyFile)
	if err := checkPrivate(path); err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, fmt.Errorf("%s does not contain a key in PEM form; restore it from a backup", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s does not contain a key: %w; restore it from a backup", path, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(ca.PublicKey) {
		return nil, nil, fmt.Errorf("%s is not the key of %s; restore both from one backup", path, caFile)
	}
	return ca, key, nil
}

// newCertificate makes a key and its certificate, both as PEM. Without a parent
// the certificate signs itself.
func newCertificate(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (key, cert []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, parentKey = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, parentKey)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// serialNumber returns 127 random bits: RFC 5280 allows 20 bytes, and wants a
// positive number.
func serialNumber() *big.Int {
	n := make([]byte, 16)
	rand.Read(n) // never fails
	n[0] = n[0]&0x7f | 0x40
	return new(big.Int).SetBytes(n)
}

// readCertificate reads a file with one certificate.
func readCertificate(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s does not contain one certificate in PEM form", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cert, nil
}

// readCA reads the CA's certificate, which names the cluster.
func readCA(dir string) (*x509.Certificate, error) {
	path := filepath.Join(dir, caFile)
	ca, err := readCertificate(path)
	if err == nil && (!ca.IsCA || !clusterID.MatchString(ca.Subject.CommonName)) {
		err = fmt.Errorf("%s is not the CA of a cluster, as fleetd cluster init makes it", path)
	}
	return ca, err
}

// writeNew writes a new file and syncs it to the disk.
func writeNew(path string, text []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// replace writes a file completely or not at all.
func replace(path string, text []byte, mode fs.FileMode) error {
	tmp := path + ".new"
	_ = os.Remove(tmp) // the file of a killed process would keep its mode
	if err := writeNew(tmp, text, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
