package edge

import (
	"crypto/tls"
	"crypto/x509"
)

// verifiedCertificate returns the certificate with which the client proved in the TLS handshake that it
// has the key, if an authority of Options.TLSConfig signed it; else nil.
func (c *netConn) verifiedCertificate() *x509.Certificate {
	session, ok := c.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	chains := session.ConnectionState().VerifiedChains
	if len(chains) == 0 || len(chains[0]) == 0 {
		return nil
	}
	return chains[0][0]
}
