package cluster

import (
	"bytes"
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
	Device      fleet.DeviceID
	ClientID    string
	Username    string
	Password    []byte
	Certificate []byte // DER
	Transport   string
	RemoteAddr  string
	LocalHost   string
	Said        dialect.Connect
	State       []byte // of the dialect

	Facts  *fleet.Connection // of one that was admitted: Device, ClientID, At and Epoch
	Ticket []byte            // proves Facts
	Shown  link.Shown        // on one that was admitted
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

// The tags of the fields of an openFrame. A field is a tag, and a value with its length before it; a
// field without value is left out. All connections of an edge are announced at once to a new leader,
// which reads JSON too slowly. A node ignores tags that it does not know.
const (
	tagDevice = iota + 1
	tagClientID
	tagUsername
	tagPassword
	tagCertificate
	tagTransport
	tagRemoteAddr
	tagLocalHost
	tagSaidClientID // if it is not ClientID
	tagSaidUsername // if it is not Username
	tagSaidVersion
	tagSaidProperty // key and value; repeated
	tagWillTopic
	tagWillRetain
	tagState
	tagFactsDevice
	tagFactsClientID
	tagFactsAt // nanoseconds since 1970
	tagFactsEpoch
	tagTicket
	tagShown // bits; see shownBits
)

// The bits of what a device has shown.
const (
	shownUnanswered = 1 << iota
	shownGreeted
	shownTools // its hello offers MCP
	shownTalking
)

func shownBits(s link.Shown) (bits uint64) {
	for bit, set := range map[uint64]bool{shownUnanswered: s.Unanswered, shownGreeted: s.Greeted,
		shownTools: s.Greeting.MCP, shownTalking: s.Talking} {
		if set {
			bits |= bit
		}
	}
	return bits
}

func shownOf(bits uint64) link.Shown {
	return link.Shown{Unanswered: bits&shownUnanswered != 0, Greeted: bits&shownGreeted != 0,
		Greeting: dialect.Greeting{MCP: bits&shownTools != 0}, Talking: bits&shownTalking != 0}
}

func appendTagged[T ~string | ~[]byte](dst []byte, tag byte, value T) []byte {
	if len(value) == 0 {
		return dst
	}
	return append(binary.AppendUvarint(append(dst, tag), uint64(len(value))), value...)
}

func appendNumber(dst []byte, tag byte, value uint64) []byte {
	return appendTagged(dst, tag, binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), value))
}

func (f *openFrame) append(dst []byte) []byte {
	dst = appendTagged(dst, tagDevice, f.Device)
	dst = appendTagged(dst, tagClientID, f.ClientID)
	dst = appendTagged(dst, tagUsername, f.Username)
	dst = appendTagged(dst, tagPassword, f.Password)
	dst = appendTagged(dst, tagCertificate, f.Certificate)
	dst = appendTagged(dst, tagTransport, f.Transport)
	dst = appendTagged(dst, tagRemoteAddr, f.RemoteAddr)
	dst = appendTagged(dst, tagLocalHost, f.LocalHost)
	if f.Said.ClientID != f.ClientID {
		dst = appendField(append(dst, tagSaidClientID), f.Said.ClientID)
	}
	if f.Said.Username != f.Username {
		dst = appendField(append(dst, tagSaidUsername), f.Said.Username)
	}
	dst = appendNumber(dst, tagSaidVersion, uint64(f.Said.Version))
	for _, p := range f.Said.Properties {
		dst = appendTagged(dst, tagSaidProperty, appendField(appendField(nil, p.Key), p.Value))
	}
	dst = appendTagged(dst, tagWillTopic, f.Said.Will.Topic)
	if f.Said.Will.Retain {
		dst = appendNumber(dst, tagWillRetain, 1)
	}
	dst = appendTagged(dst, tagState, f.State)
	if f.Facts != nil {
		dst = appendTagged(dst, tagFactsDevice, f.Facts.Device)
		dst = appendTagged(dst, tagFactsClientID, f.Facts.ClientID)
		dst = appendNumber(dst, tagFactsAt, uint64(f.Facts.At.UnixNano()))
		dst = appendNumber(dst, tagFactsEpoch, uint64(f.Facts.Epoch))
		dst = appendTagged(dst, tagTicket, f.Ticket)
		if bits := shownBits(f.Shown); bits != 0 {
			dst = appendNumber(dst, tagShown, bits)
		}
	}
	return dst
}

// parse is the inverse of append. The frame keeps no part of b.
func (f *openFrame) parse(b []byte) (err error) {
	saidClientID, saidUsername := false, false
	for len(b) > 0 {
		var value []byte
		tag := b[0]
		if value, b, err = field(b[1:]); err != nil {
			return err
		}
		switch tag {
		case tagDevice:
			f.Device = fleet.DeviceID(value)
		case tagClientID:
			f.ClientID = string(value)
		case tagUsername:
			f.Username = string(value)
		case tagPassword:
			f.Password = bytes.Clone(value)
		case tagCertificate:
			f.Certificate = bytes.Clone(value)
		case tagTransport:
			f.Transport = string(value)
		case tagRemoteAddr:
			f.RemoteAddr = string(value)
		case tagLocalHost:
			f.LocalHost = string(value)
		case tagSaidClientID:
			f.Said.ClientID, saidClientID = string(value), true
		case tagSaidUsername:
			f.Said.Username, saidUsername = string(value), true
		case tagSaidVersion:
			var v uint64
			v, _, err = uvarint(value)
			f.Said.Version = byte(v)
		case tagSaidProperty:
			var key, rest []byte
			if key, rest, err = field(value); err == nil {
				value, _, err = field(rest)
			}
			f.Said.Properties = append(f.Said.Properties, dialect.Property{Key: string(key), Value: string(value)})
		case tagWillTopic:
			f.Said.Will.Topic = string(value)
		case tagWillRetain:
			f.Said.Will.Retain = true
		case tagTicket:
			f.Ticket = bytes.Clone(value)
		case tagState:
			f.State = bytes.Clone(value)
		case tagFactsDevice:
			f.facts().Device = fleet.DeviceID(value)
		case tagFactsClientID:
			f.facts().ClientID = string(value)
		case tagFactsAt:
			var v uint64
			v, _, err = uvarint(value)
			f.facts().At = time.Unix(0, int64(v)).UTC()
		case tagFactsEpoch:
			var v uint64
			v, _, err = uvarint(value)
			f.facts().Epoch = int64(v)
		case tagShown:
			var bits uint64
			bits, _, err = uvarint(value)
			f.Shown = shownOf(bits)
		}
		if err != nil {
			return err
		}
	}
	if !saidClientID {
		f.Said.ClientID = f.ClientID
	}
	if !saidUsername {
		f.Said.Username = f.Username
	}
	return nil
}

func (f *openFrame) facts() *fleet.Connection {
	if f.Facts == nil {
		f.Facts = new(fleet.Connection)
	}
	return f.Facts
}

// connect returns what the frame means at the core. The edge has verified the certificate.
func (f *openFrame) connect(node string) (q link.Connect, err error) {
	q = link.Connect{Device: f.Device, ClientID: f.ClientID, Username: f.Username, Password: f.Password,
		Transport: f.Transport, Node: node, RemoteAddr: f.RemoteAddr, LocalHost: f.LocalHost, Said: f.Said, Shown: f.Shown}
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

// A drainFrame starts or ends a drain of the edge.
type drainFrame struct {
	Drain bool `json:"drain"`
}

// A closedFrame is the end of a connection.
type closedFrame struct {
	Clean bool        `json:"clean,omitempty"`
	Cause fleet.Cause `json:"cause"`
}
