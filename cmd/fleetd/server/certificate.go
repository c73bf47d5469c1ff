package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// certificateEvery is how often the files of the certificate are looked at.
const certificateEvery = 10 * time.Second

// A certificate is that of the TLS broker, read again when its files change. A
// new pair that does not work, such as one whose second file is not written
// yet, changes nothing.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	every             time.Duration

	current atomic.Pointer[tls.Certificate]
	bad     atomic.Bool   // the files are not those in use, since they do not work
	seen    [2]contentSum // at the last look, used or not; belongs to run
}

// A contentSum is the SHA-256 of a file's content. Time and size are not enough:
// two files written within a tick of the clock may have the same.
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

// sums reads the files. One that is missing has the zero sum.
func (c *certificate) sums() (now [2]contentSum) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if content, err := os.ReadFile(name); err == nil {
			now[i] = sha256.Sum256(content)
		}
	}
	return now
}

// get is GetCertificate of a [tls.Config].
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

// run follows the files until ctx ends.
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

// follow uses the files if they have changed and work. Files that do not are
// logged once, and tried again when they change.
func (c *certificate) follow(now time.Time) {
	changed := c.sums() // before the reading, so that a change meanwhile is seen next time
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
			c.log.Error("the changed certificate is not used, the one before stays", "err", err, "expires", c.expiry())
		}
		return
	}
	c.bad.Store(false)
	c.current.Store(cert)
	c.log.Info("the certificate was changed", "file", c.certFile, "expires", cert.Leaf.NotAfter)
}

// followCertificate follows the files' changes and shows when they expire. It
// returns nil without a certificate.
func (s *Server) followCertificate(cert *certificate) *tls.Config {
	if cert == nil {
		return nil
	}
	s.stages.add("certificate", cert.run)
	s.metrics.gauge("fleetd_tls_certificate_expiry_timestamp_seconds",
		"When the certificate in use expires, in seconds since 1970.",
		nil, func() float64 { return float64(cert.expiry().Unix()) })
	s.metrics.gauge("fleetd_tls_certificate_files_bad",
		"1 while the certificate's files are not used since they do not work.",
		nil, cert.filesBad)
	return &tls.Config{GetCertificate: cert.get, MinVersion: tls.VersionTLS12}
}
