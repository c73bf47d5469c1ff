package broker

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// testClientID is the client id of the test's n-th device.
func testClientID(n int) string {
	return fmt.Sprintf("GID_default@@@02_00_00_00_%02x_%02x@@@uuid-%d", n>>8, n&255, n)
}

func testID(n int) fleet.DeviceID { return deviceOfClientID(testClientID(n)) }

// The topics are written from the protocol's document, not with the code under test.
func upTopic(id fleet.DeviceID) string   { return "fleet/" + string(id) + "/up" }
func downTopic(id fleet.DeviceID) string { return "devices/p2p/" + string(id) }

func deviceOfClientID(clientID string) fleet.DeviceID {
	_, id := dialect.OverMQTT(dialect.Connect{ClientID: clientID})
	return id
}

// A connectPacket is a CONNECT, written byte by byte so that it can be wrong.
type connectPacket struct {
	version              byte // 4 or 5. Default: 4
	clientID             string
	password             string // default: the correct one
	keepalive            uint16
	unclean              bool
	willTopic, willBytes string
}

func str(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

func frame(kind byte, body []byte) []byte {
	out := []byte{kind}
	for n := len(body); ; {
		b := byte(n & 127)
		if n >>= 7; n > 0 {
			out = append(out, b|128)
			continue
		}
		out = append(out, b)
		return append(out, body...)
	}
}

func (p connectPacket) bytes() []byte {
	if p.version == 0 {
		p.version = 4
	}
	if p.password == "" {
		p.password = passwordOf(p.clientID)
	}
	flags := byte(0xc2)
	if p.unclean {
		flags &^= 2
	}
	if p.willTopic != "" {
		flags |= 4
	}
	body := append(str("MQTT"), p.version, flags)
	body = binary.BigEndian.AppendUint16(body, p.keepalive)
	if p.version == 5 {
		body = append(body, 0)
	}
	body = append(body, str(p.clientID)...)
	if p.willTopic != "" {
		if p.version == 5 {
			body = append(body, 0)
		}
		body = append(append(body, str(p.willTopic)...), str(p.willBytes)...)
	}
	return frame(0x10, append(append(body, str("user")...), str(p.password)...))
}

// A rawDevice is a device with a minimal MQTT implementation.
type rawDevice struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
	id   fleet.DeviceID
	v5   bool
	mu   sync.Mutex // for writes
}

func dialRaw(t testing.TB, addr net.Addr) *rawDevice {
	t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(2 * deadline))
	return &rawDevice{t: t, conn: conn, r: bufio.NewReader(conn)}
}

// connectRaw connects the test's n-th device.
func connectRaw(t testing.TB, b *system, p connectPacket) *rawDevice {
	t.Helper()
	before := b.registry.connection(deviceOfClientID(p.clientID))
	d := dialRaw(t, b.Addr())
	if code := d.connect(p); code != 0 {
		t.Fatalf("CONNACK code %#x", code)
	}
	fleettest.Eventually(t, "the connection is the device's", func() bool {
		c := b.registry.connection(d.id)
		return c != nil && c != before
	})
	return d
}

// connect returns CONNACK's code, or -1 if the connection ended instead.
func (d *rawDevice) connect(p connectPacket) int {
	d.t.Helper()
	d.id, d.v5 = deviceOfClientID(p.clientID), p.version == 5
	if p.keepalive == 0 {
		p.keepalive = 60
	}
	d.write(p.bytes())
	kind, body, err := d.read()
	if err != nil {
		return -1
	}
	if kind != 0x20 {
		d.t.Fatalf("packet %#x instead of CONNACK", kind)
	}
	return int(body[1])
}

func (d *rawDevice) write(b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, _ = d.conn.Write(b)
}

func (d *rawDevice) read() (kind byte, body []byte, err error) {
	if kind, err = d.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(d.r)
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, n)
	_, err = io.ReadFull(d.r, body)
	return kind, body, err
}

// message returns the next message to the device.
func (d *rawDevice) message() (topic, payload string, err error) {
	for {
		kind, body, err := d.read()
		if err != nil {
			return "", "", err
		}
		if kind>>4 != 3 {
			continue
		}
		n := int(binary.BigEndian.Uint16(body))
		topic, body = string(body[2:2+n]), body[2+n:]
		if d.v5 {
			body = body[1:]
		}
		return topic, string(body), nil
	}
}

func (d *rawDevice) publishTo(topic, payload string, qos byte) {
	body := str(topic)
	if qos > 0 {
		body = append(body, 0, 7)
	}
	if d.v5 {
		body = append(body, 0)
	}
	d.write(frame(0x30|qos<<1, append(body, payload...)))
}

func (d *rawDevice) publish(payload string) { d.publishTo(upTopic(d.id), payload, 0) }

// A rpc is a request as the device receives it.
type rpc struct {
	ID     int64           `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// request returns the next request to the device and skips notifications.
func (d *rawDevice) request() (rpc, error) {
	for {
		topic, payload, err := d.message()
		if err != nil {
			return rpc{}, err
		}
		if want := "devices/p2p/" + string(d.id); topic != want {
			return rpc{}, fmt.Errorf("topic %q, want %q", topic, want)
		}
		var m struct {
			Type    string `json:"type"`
			Payload rpc    `json:"payload"`
		}
		if err := json.Unmarshal([]byte(payload), &m); err != nil {
			return rpc{}, err
		}
		if m.Type == "mcp" && m.Payload.ID != 0 {
			return m.Payload, nil
		}
	}
}

func (d *rawDevice) reply(id int64, member string) {
	d.publish(fmt.Sprintf(`{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0","id":%d,%s}}`, id, member))
}

func textResult(text string) string {
	quoted, _ := json.Marshal(text)
	return fmt.Sprintf(`"result":{"content":[{"type":"text","text":%s}],"isError":false}`, quoted)
}

const initResult = `"result":{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"bread-compact-wifi","version":"2.4.2"}}`

// serve answers requests until the connection ends, with the result of answer or, if that is "",
// with the usual answer. The channel is closed at the end.
func (d *rawDevice) serve(answer func(rpc) string) <-chan struct{} {
	done := make(chan struct{})
	d.t.Cleanup(func() { d.conn.Close(); <-done })
	go func() {
		defer close(done)
		for {
			r, err := d.request()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
					d.t.Error(err)
				}
				return
			}
			d.answer(r, answer)
		}
	}()
	return done
}

func (d *rawDevice) answer(r rpc, answer func(rpc) string) {
	member := ""
	if answer != nil {
		member = answer(r)
	}
	switch {
	case member == "silence":
	case member != "":
		d.reply(r.ID, member)
	case r.Method == "initialize":
		d.reply(r.ID, initResult)
	case r.Method == "tools/call":
		d.reply(r.ID, textResult("true"))
	default:
		d.reply(r.ID, `"error":{"message":"Method not implemented: `+r.Method+`"}`)
	}
}

// ended waits until the broker closes the connection.
func (d *rawDevice) ended(within time.Duration) error {
	_ = d.conn.SetReadDeadline(time.Now().Add(within))
	for {
		if _, _, err := d.read(); err != nil {
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				return fmt.Errorf("still connected after %v", within)
			}
			return nil
		}
	}
}
