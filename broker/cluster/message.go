package cluster

import (
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"time"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/fleet"
)

// appendMessage appends a message: its topic, its properties and then the payload, which the caller
// appends.
func appendMessage(dst []byte, topic string, properties []dialect.Property) []byte {
	dst = appendField(dst, topic)
	dst = binary.AppendUvarint(dst, uint64(len(properties)))
	for _, p := range properties {
		dst = appendField(appendField(dst, p.Key), p.Value)
	}
	return dst
}

// maxProperties is how many properties a message may have: more do not fit into the longest packet.
const maxProperties = 1 << 16

// parseMessage is the inverse of appendMessage.
func parseMessage(b []byte) (topic string, properties []dialect.Property, payload []byte, err error) {
	text, b, err := field(b)
	if err != nil {
		return "", nil, nil, err
	}
	n, b, err := uvarint(b)
	if err != nil || n > maxProperties {
		return "", nil, nil, errShort
	}
	for range n {
		var key, value []byte
		if key, b, err = field(b); err != nil {
			return "", nil, nil, err
		}
		if value, b, err = field(b); err != nil {
			return "", nil, nil, err
		}
		properties = append(properties, dialect.Property{Key: string(key), Value: string(value)})
	}
	return string(text), properties, b, nil
}

// A helloFrame introduces an edge.
type helloFrame struct {
	Version string    `json:"version"` // of fleetd
	Since   time.Time `json:"since"`   // start of the process

	Incarnation uint64 `json:"incarnation"` // of the process
}

// before reports whether the edge's process is older than that of another edge with its name.
func (h helloFrame) before(other helloFrame) bool {
	if c := h.Since.Compare(other.Since); c != 0 {
		return c < 0
	}
	return h.Incarnation < other.Incarnation
}

// An openFrame asks the core to admit a connection, or announces one that was admitted.
type openFrame struct {
	Device      fleet.DeviceID  `json:"device"`
	ClientID    string          `json:"client_id"`
	Username    string          `json:"username,omitempty"`
	Password    []byte          `json:"password,omitempty"`
	Certificate []byte          `json:"certificate,omitempty"` // DER
	Transport   string          `json:"transport"`
	RemoteAddr  string          `json:"remote_addr"`
	LocalHost   string          `json:"local_host"`
	Said        dialect.Connect `json:"said"`
	State       []byte          `json:"state,omitempty"` // of the dialect

	Facts *fleet.Connection `json:"facts,omitempty"` // of one that was admitted
}

func openFrameOf(q link.Connect, facts *fleet.Connection) openFrame {
	f := openFrame{Device: q.Device, ClientID: q.ClientID, Username: q.Username, Password: q.Password,
		Transport: q.Transport, RemoteAddr: q.RemoteAddr, LocalHost: q.LocalHost, Said: q.Said, State: q.Dialect.State(),
		Facts: facts}
	if q.Certificate != nil {
		f.Certificate = q.Certificate.Raw
	}
	return f
}

// connect returns what the frame means at the core. The edge has verified the certificate.
func (f *openFrame) connect(node string) (q link.Connect, err error) {
	q = link.Connect{Device: f.Device, ClientID: f.ClientID, Username: f.Username, Password: f.Password,
		Transport: f.Transport, Node: node, RemoteAddr: f.RemoteAddr, LocalHost: f.LocalHost, Said: f.Said}
	if len(f.Certificate) > 0 {
		if q.Certificate, err = x509.ParseCertificate(f.Certificate); err != nil {
			return q, fmt.Errorf("certificate of a device: %w", err)
		}
	}
	var id fleet.DeviceID
	if f.Transport == link.WebSocket {
		q.Dialect, id = dialect.XiaozhiWebSocket(), f.Device
	} else {
		q.Dialect, id = dialect.OverMQTT(f.Said)
	}
	if q.Dialect == nil || id != f.Device {
		return q, fmt.Errorf("no dialect for client id %q", fleet.CleanText(f.ClientID, 64))
	}
	q.Dialect.Restore(f.State)
	return q, nil
}

// A closedFrame is the end of a connection.
type closedFrame struct {
	Clean bool        `json:"clean,omitempty"`
	Cause fleet.Cause `json:"cause"`
}
