package broker

import (
	"crypto/tls"
	"crypto/x509"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/fleet"
)

// authenticate returns the device that a CONNECT belongs to. The certificate of the TLS session
// replaces user name and password; if the client sends one of them, its certificate proves nothing.
func (b *Broker) authenticate(cl *mqtt.Client, pk *packets.Packet) (fleet.DeviceID, error) {
	c := &pk.Connect
	if by := b.o.AuthenticateCertificate; by != nil && !c.UsernameFlag && !c.PasswordFlag {
		if certificate := verifiedCertificate(cl); certificate != nil {
			return by(cl.ID, certificate)
		}
	}
	return b.devices.Authenticate(cl.ID, string(c.Username), c.Password, hostOf(cl.Net.Remote))
}

// verifiedCertificate returns the certificate with which the client proved in the TLS handshake that it
// has the key, if an authority of Options.TLSConfig signed it; else nil.
func verifiedCertificate(cl *mqtt.Client) *x509.Certificate {
	nc, ok := cl.Net.Conn.(*netConn)
	if !ok {
		return nil
	}
	session, ok := nc.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	chains := session.ConnectionState().VerifiedChains
	if len(chains) == 0 || len(chains[0]) == 0 {
		return nil
	}
	return chains[0][0]
}
