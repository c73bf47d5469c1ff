package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
)

var updateDocs = flag.Bool("update", false, "write the tables of docs/mqtt.md")

// A conformanceCase is a row of docs/mqtt.md: a requirement of the specification, with the
// numbers of its statements in MQTT 3.1.1 and 5.0, and whether the broker meets it. A version
// without a number does not have the requirement. A requirement that is refused by design is
// tested too: test then shows how.
type conformanceCase struct {
	v3, v5  string // "3.1.0-1", or "none" if it has no number
	what    string
	refused string   // why it is not offered; "" if the requirement is met
	suite   []string // the Paho suites' cases for it, as version.name
	test    func(*wire)
}

// A wire is a client written byte by byte, with its broker.
type wire struct {
	*rawDevice
	b       *system
	dom     *domain
	version byte
}

func newWire(t *testing.T, version byte, change func(*options)) *wire {
	b, dom := start(t, change)
	w := &wire{rawDevice: dialRaw(t, b.Addr()), b: b, dom: dom, version: version}
	w.id, w.v5 = testID(1), version == 5
	return w
}

// again returns another client of the same broker.
func (w *wire) again() *wire {
	c := *w
	c.rawDevice = dialRaw(w.t, w.b.Addr())
	c.id, c.v5 = w.id, w.v5
	return &c
}

// by returns the value for the client's MQTT version.
func by[T any](w *wire, v3, v5 T) T {
	if w.v5 {
		return v5
	}
	return v3
}

// A hello is a CONNECT whose fields can all be changed.
type hello struct {
	name      string
	level     byte
	flags     byte
	keepalive uint16
	props     []byte
	payload   []byte // default: client id, user name, password of device 1
}

func (w *wire) hello() hello {
	payload := payloadOf(testClientID(1), passwordOf(testClientID(1)))
	return hello{name: "MQTT", level: w.version, flags: 0xc2, keepalive: 60, payload: payload}
}

func payloadOf(clientID, password string) []byte {
	return slices.Concat(str(clientID), str("user"), str(password))
}

func (h hello) bytes() []byte {
	body := append(str(h.name), h.level, h.flags)
	body = binary.BigEndian.AppendUint16(body, h.keepalive)
	if h.level == 5 {
		body = append(append(body, byte(len(h.props))), h.props...)
	}
	return frame(0x10, append(body, h.payload...))
}

// connectWith sends a CONNECT and returns CONNACK's flags, code and properties.
func (w *wire) connectWith(h hello) (flags, code byte, props map[byte]uint32) {
	w.t.Helper()
	w.write(h.bytes())
	body := w.expect(0x20)
	if w.v5 && h.level == 5 {
		props = readProps(w.t, body[2:])
	}
	return body[0], body[1], props
}

func (w *wire) connect() {
	w.t.Helper()
	if _, code, _ := w.connectWith(w.hello()); code != 0 {
		w.t.Fatalf("CONNACK code %#x", code)
	}
	fleettest.Eventually(w.t, "the core knows the connection", func() bool {
		_, ok := w.b.Connection(w.id)
		return ok
	})
}

// readProps returns the numeric properties; a text counts as 1.
func readProps(t testing.TB, b []byte) map[byte]uint32 {
	t.Helper()
	n, used := binary.Uvarint(b)
	b = b[used : used+int(n)]
	props := make(map[byte]uint32)
	for len(b) > 0 {
		id := b[0]
		switch b = b[1:]; id {
		case 0x24, 0x25, 0x28, 0x29, 0x2a:
			props[id], b = uint32(b[0]), b[1:]
		case 0x13, 0x21, 0x22:
			props[id], b = uint32(binary.BigEndian.Uint16(b)), b[2:]
		case 0x11, 0x27:
			props[id], b = binary.BigEndian.Uint32(b), b[4:]
		case 0x12, 0x1f:
			props[id], b = 1, b[2+binary.BigEndian.Uint16(b):]
		default:
			t.Fatalf("unexpected property %#x", id)
		}
	}
	return props
}

// expect returns the body of the next packet, skipping messages. The packet must be of this kind.
func (w *wire) expect(kind byte) []byte {
	w.t.Helper()
	for {
		got, body, err := w.read()
		switch {
		case err != nil:
			w.t.Fatalf("waiting for packet %#x: %v", kind, err)
		case got == kind:
			return body
		case got != 0x30:
			w.t.Fatalf("packet %#x %x, want %#x", got, body, kind)
		}
	}
}

// closed waits for the end of the connection and, in MQTT 5, for a DISCONNECT with the code
// before it; 0 means none.
func (w *wire) closed(code byte) {
	w.t.Helper()
	_ = w.conn.SetReadDeadline(time.Now().Add(deadline))
	said := byte(0)
	for {
		kind, body, err := w.read()
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			w.t.Fatal("still connected")
		}
		if err != nil {
			break
		}
		switch kind {
		case 0x30:
		case 0xe0:
			if !w.v5 {
				w.t.Error("a DISCONNECT, which MQTT 3.1.1 does not know from a server")
				continue
			}
			said = body[0]
		default:
			w.t.Errorf("packet %#x %x before the end", kind, body)
		}
	}
	if w.v5 && said != code {
		w.t.Errorf("DISCONNECT with code %#x, want %#x", said, code)
	}
}

// message is a message to fleetd that is counted when handled.
const message = `{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/x"}}`

// messageTo returns a PUBLISH. flags are those of its first byte.
func (w *wire) messageTo(topic string, flags byte, id uint16, props []byte, payload string) []byte {
	body := str(topic)
	if flags&6 != 0 {
		body = binary.BigEndian.AppendUint16(body, id)
	}
	if w.v5 {
		body = append(append(body, byte(len(props))), props...)
	}
	return frame(0x30|flags, append(body, payload...))
}

func (w *wire) send(flags byte, id uint16) {
	w.write(w.messageTo(upTopic(w.id), flags, id, nil, message))
}

// handled checks how many messages have been handled.
func (w *wire) handled(n int) {
	w.t.Helper()
	w.ping()
	fleettest.Eventually(w.t, fmt.Sprintf("%d messages are handled", n), func() bool {
		return w.dom.count("notified") >= n
	})
	if got := w.dom.count("notified"); got != n {
		w.t.Errorf("%d messages were handled, want %d", got, n)
	}
}

// ping shows that the connection is up and all earlier packets have been handled.
func (w *wire) ping() {
	w.t.Helper()
	w.write([]byte{0xc0, 0})
	w.expect(0xd0)
}

// ack expects an acknowledgement of this kind for the packet, with this code in MQTT 5.
func (w *wire) ack(kind byte, id uint16, code byte) {
	w.t.Helper()
	body := w.expect(kind)
	if got := binary.BigEndian.Uint16(body); got != id {
		w.t.Errorf("packet %#x for %d, want %d", kind, got, id)
	}
	got := byte(0)
	if len(body) > 2 {
		got = body[2]
	}
	if !w.v5 && len(body) != 2 {
		w.t.Errorf("packet %#x %x, longer than in MQTT 3.1.1", kind, body)
	}
	if w.v5 && got != code {
		w.t.Errorf("packet %#x with code %#x, want %#x", kind, got, code)
	}
}

func idBytes(id uint16) []byte { return binary.BigEndian.AppendUint16(nil, id) }

func (w *wire) release(id uint16) { w.write(frame(0x62, idBytes(id))) }

// A wish is a filter of a SUBSCRIBE, with its options.
type wish struct {
	filter  string
	options byte
}

// subscribe sends a SUBSCRIBE and returns the codes of the SUBACK.
func (w *wire) subscribe(id uint16, props []byte, wishes ...wish) []byte {
	w.t.Helper()
	body := idBytes(id)
	if w.v5 {
		body = append(append(body, byte(len(props))), props...)
	}
	for _, f := range wishes {
		body = append(append(body, str(f.filter)...), f.options)
	}
	w.write(frame(0x82, body))
	return w.codes(w.expect(0x90), id)
}

// codes returns the codes of a SUBACK or UNSUBACK.
func (w *wire) codes(body []byte, id uint16) []byte {
	w.t.Helper()
	if got := binary.BigEndian.Uint16(body); got != id {
		w.t.Errorf("acknowledgement of %d, want %d", got, id)
	}
	if body = body[2:]; w.v5 {
		body = body[1+body[0]:]
	}
	return body
}

func (w *wire) unsubscribe(id uint16, filters ...string) []byte {
	w.t.Helper()
	body := idBytes(id)
	if w.v5 {
		body = append(body, 0)
	}
	for _, f := range filters {
		body = append(body, str(f)...)
	}
	w.write(frame(0xa2, body))
	return w.codes(w.expect(0xb0), id)
}

func (w *wire) wantCodes(got []byte, v3, v5 []byte) {
	w.t.Helper()
	if want := by(w, v3, v5); !bytes.Equal(got, want) {
		w.t.Errorf("codes %x, want %x", got, want)
	}
}

// refusedHello sends a CONNECT and expects a refusal.
func (w *wire) refusedHello(h hello, v3, v5 byte) {
	w.t.Helper()
	flags, code, _ := w.connectWith(h)
	if want := by(w, v3, v5); code != want || flags != 0 {
		w.t.Errorf("CONNACK with code %#x and flags %#x, want %#x and 0", code, flags, want)
	}
	w.closed(0)
}

func TestConformance(t *testing.T) {
	for _, c := range conformanceCases {
		for version, number := range map[byte]string{4: c.v3, 5: c.v5} {
			if number == "" {
				continue
			}
			t.Run(fmt.Sprintf("v%d %s %s", version, number, c.what), func(t *testing.T) {
				t.Parallel() // some wait for seconds
				c.test(newWire(t, version, nil))
			})
		}
	}
}

const (
	docsFile  = "../docs/mqtt.md"
	docsBegin = "<!-- written by go test ./broker -run TestConformanceDocument -update -->\n"
	docsEnd   = "<!-- end -->\n"
)

// The document agrees with the tests.
func TestConformanceDocument(t *testing.T) {
	text, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), docsBegin)
	_, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the tables", docsFile)
	}
	want := before + docsBegin + conformanceTables() + docsEnd + after
	if want == string(text) {
		return
	}
	if !*updateDocs {
		t.Fatalf("%s is not what the tests show; run them with -update", docsFile)
	}
	if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func conformanceTables() string {
	var b strings.Builder
	fmt.Fprintln(&b, "| 3.1.1 | 5.0 | What | |\n|---|---|---|---|")
	for _, c := range conformanceCases {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", numbers(c.v3), numbers(c.v5), c.what, verdict(c))
	}
	fmt.Fprintln(&b, "\n### The cases of the Paho interoperability suites\n\n| Suite | Case | |\n|---|---|---|")
	about := make(map[string][]conformanceCase)
	for _, c := range conformanceCases {
		for _, name := range c.suite {
			about[name] = append(about[name], c)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(about)) {
		var refused []string
		holds := false
		for _, c := range about[name] {
			holds = holds || c.refused == ""
			if c.refused != "" && !slices.Contains(refused, c.refused) {
				refused = append(refused, c.refused)
			}
		}
		suite, name, _ := strings.Cut(name, ".")
		result := "refused by design: " + strings.Join(refused, "; ")
		switch {
		case refused == nil:
			result = "holds"
		case holds:
			result = "holds in part; " + result
		}
		version := map[string]string{"3": "3.1.1", "5": "5.0"}[suite]
		fmt.Fprintf(&b, "| %s | %s | %s |\n", version, strings.ReplaceAll(name, "_", " "), result)
	}
	return b.String()
}

func numbers(s string) string {
	switch s {
	case "":
		return ""
	case "none":
		return "–"
	}
	return s
}

func verdict(c conformanceCase) string {
	if c.refused != "" {
		return "refused by design: " + c.refused
	}
	return "holds"
}

// All cases of the suites are considered.
func TestConformanceCoversTheSuites(t *testing.T) {
	want := strings.Fields(`3.basic 3.retained_messages 3.zero_length_clientid 3.offline_message_queueing
		3.overlapping_subscriptions 3.keepalive 3.redelivery_on_reconnect 3.subscribe_failure 3.dollar_topics 3.unsubscribe
		5.basic 5.retained_message 5.will_message 5.zero_length_clientid 5.offline_message_queueing
		5.overlapping_subscriptions 5.keepalive 5.redelivery_on_reconnect 5.subscribe_failure 5.dollar_topics
		5.unsubscribe 5.session_expiry 5.user_properties 5.payload_format 5.publication_expiry 5.subscribe_options
		5.assigned_clientid 5.subscribe_identifiers 5.request_response 5.client_topic_alias
		5.server_topic_alias 5.maximum_packet_size 5.server_keep_alive 5.flow_control1 5.flow_control2
		5.will_delay 5.shared_subscriptions`)
	missing := make(map[string]bool)
	for _, name := range want {
		missing[name] = true
	}
	for _, c := range conformanceCases {
		for _, name := range c.suite {
			if !slices.Contains(want, name) {
				t.Errorf("the suites have no case %q", name)
			}
			delete(missing, name)
		}
	}
	for name := range missing {
		t.Errorf("case %q of the suites is not looked at", name)
	}
}
