package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"fleetd/fleet"
)

// certificateEvery is the interval between checks of the certificate's files.
const certificateEvery = 10 * time.Second

// A certificate is the certificate of the TLS broker. It is read again when its
// files change. A new pair that does not work changes nothing, for example while
// its second file is not written yet.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	every             time.Duration

	current atomic.Pointer[tls.Certificate]
	bad     atomic.Bool   // the files do not work, so the earlier ones are in use
	seen    [2]contentSum // of the last check, whether used or not; belongs to run
}

// A contentSum is the SHA-256 of a file's content. Time and size are not enough:
// two files written within one tick of the clock may have the same.
type contentSum [sha256.Size]byte

// openCertificate reads the files. Afterwards run follows their changes.
func openCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log, every: certificateEvery}
	c.seen = c.sums()
	cert, err := c.load()
	if err != nil {
		return nil, err
	}
	if time.Now().After(cert.Leaf.NotAfter) {
		log.Warn("the certificate has expired", "file", certFile, "expired", cert.Leaf.NotAfter)
	}
	c.current.Store(cert)
	return c, nil
}

func (c *certificate) load() (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return nil, fmt.Errorf("the certificate %s and key %s do not work: %w", c.certFile, c.keyFile, err)
	}
	return &cert, nil
}

// sums reads the files. A missing file has the zero sum.
func (c *certificate) sums() (now [2]contentSum) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if content, err := os.ReadFile(name); err == nil {
			now[i] = sha256.Sum256(content)
		}
	}
	return now
}

// get implements GetCertificate of a [tls.Config].
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load(), nil
}

func (c *certificate) expiry() time.Time { return c.current.Load().Leaf.NotAfter }

func (c *certificate) filesBad() float64 {
	if c.bad.Load() {
		return 1
	}
	return 0
}

// run checks the files for changes until ctx ends.
func (c *certificate) run(ctx context.Context) error {
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.follow(time.Now())
		case <-ctx.Done():
			return nil
		}
	}
}

// follow starts to use the files if they have changed and work. If they do not
// work, it logs that once, and tries again when they change.
func (c *certificate) follow(now time.Time) {
	changed := c.sums() // before the files are read, so the next check sees a later change
	if changed == c.seen {
		return
	}
	c.seen = changed
	cert, err := c.load()
	if err == nil && now.After(cert.Leaf.NotAfter) {
		err = fmt.Errorf("the certificate %s expired on %s", c.certFile, cert.Leaf.NotAfter.Format(time.DateOnly))
	}
	if err != nil {
		if !c.bad.Swap(true) {
			c.log.Error("the changed certificate is not used, the earlier one stays in use", "err", err, "expires", c.expiry())
		}
		return
	}
	c.bad.Store(false)
	c.current.Store(cert)
	c.log.Info("the certificate was changed", "file", c.certFile, "expires", cert.Leaf.NotAfter)
}

// followCertificate follows changes of the files, and adds the metric of their
// expiry. It returns nil without a certificate.
func followCertificate(cert *certificate, clientCAs *x509.CertPool, parts *stages, m *metrics) *tls.Config {
	if cert == nil {
		return nil
	}
	cert.follow(time.Now()) // this process may have stood by since it read the files
	parts.add("certificate", cert.run)
	m.gauge("fleetd_tls_certificate_expiry_timestamp_seconds",
		"When the certificate in use expires, in seconds since 1970.",
		nil, func() float64 { return float64(cert.expiry().Unix()) })
	m.gauge("fleetd_tls_certificate_files_bad",
		"1 while the certificate's files are not used since they do not work.",
		nil, cert.filesBad)
	config := &tls.Config{GetCertificate: cert.get, MinVersion: tls.VersionTLS12}
	if clientCAs != nil {
		config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, clientCAs
	}
	return config
}

// openClientCAs reads the authorities of client certificates; nil without a file.
func openClientCAs(file string, log *slog.Logger) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--mqtts-client-ca: %w", err)
	}
	pool, now, found := x509.NewCertPool(), time.Now(), false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("--mqtts-client-ca: %s contains a %s; give the certificates of authorities only", file, block.Type)
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return nil, fmt.Errorf("--mqtts-client-ca: %s: %w", file, err)
		case !ca.IsCA:
			return nil, fmt.Errorf("--mqtts-client-ca: the certificate %q in %s is not of an authority", ca.Subject, file)
		case now.After(ca.NotAfter):
			log.Warn("the authority of client certificates has expired", "file", file, "subject", ca.Subject.String(),
				"expired", ca.NotAfter)
		}
		pool.AddCert(ca)
		found = true
	}
	if !found {
		return nil, fmt.Errorf("--mqtts-client-ca: %s contains no certificate in PEM form", file)
	}
	return pool, nil
}

// certified authenticates devices by certificate; nil if there is no authority. The edges of a cluster
// have their own.
func (s *Server) certified(clientCAs *x509.CertPool) func(string, *x509.Certificate) (fleet.DeviceID, error) {
	if clientCAs == nil && s.node == nil {
		return nil
	}
	return func(clientID string, c *x509.Certificate) (fleet.DeviceID, error) {
		return s.Enrolments.AuthenticateCertificate(clientID, c.Subject.CommonName)
	}
}
