package broker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
)

// A client id that is not a device's, or a wrong password, is refused with the code that MQTT
// defines for it.
func TestRefusedConnects(t *testing.T) {
	b, _ := start(t, nil)
	good := testClientID(1)
	tests := []struct {
		name   string
		p      connectPacket
		code   int
		reason string
	}{
		{"wrong password", connectPacket{clientID: good, password: "wrong"}, 5, "forged"},
		{"wrong password, v5", connectPacket{clientID: good, password: "wrong", version: 5}, 0x86, "forged"},
		{"inline", connectPacket{clientID: "inline"}, 2, "client_id"},
		{"no client id", connectPacket{clientID: "", password: "x"}, 2, "client_id"},
		{"bare mac", connectPacket{clientID: "020000000001", version: 5}, 0x85, "client_id"},
		{"wildcard", connectPacket{clientID: "GID_default@@@#@@@x"}, 2, "client_id"},
		{"slash", connectPacket{clientID: "GID_default@@@a/b@@@x"}, 2, "client_id"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := b.Stats().Refused[tt.reason]
			if code := dialRaw(t, b.Addr()).connect(tt.p); code != tt.code {
				t.Errorf("CONNACK %d, want %d", code, tt.code)
			}
			if n := b.Stats().Refused[tt.reason] - before; n != 1 {
				t.Errorf("%d refusals counted as %s", n, tt.reason)
			}
		})
	}
}

// waiting postpones the admission of devices.
type waiting struct{ *domain }

func (waiting) Authenticate(string, string, []byte, string) (fleet.DeviceID, error) {
	return "", enrolment.CredentialsLater
}

func (waiting) AuthenticateToken(fleet.DeviceID, string, string, string) (string, error) {
	return "", enrolment.CredentialsLater
}

// If a device cannot be admitted now, its credentials are not reported as wrong.
func TestDeviceTriesAgainLater(t *testing.T) {
	b, _ := start(t, func(o *options) { o.Devices = waiting{o.Devices.(*domain)} })
	for version, want := range map[byte]int{4: 3, 5: 0x88} { // server unavailable
		if code := dialRaw(t, b.Addr()).connect(connectPacket{clientID: testClientID(1), version: version}); code != want {
			t.Errorf("MQTT level %d: CONNACK %#x, want %#x", version, code, want)
		}
	}
	_, header := socketHeader(1, 1)
	_, answer, err := websocket.DefaultDialer.Dial(socketServer(t, b), header)
	if err == nil || answer == nil || answer.StatusCode != http.StatusServiceUnavailable ||
		answer.Header.Get("Retry-After") == "" {
		t.Errorf("WebSocket: %+v, %v", answer, err)
	}
	if n := b.Stats().Refused["later"]; n != 3 {
		t.Errorf("%d refusals counted, want 3", n)
	}
}

// misnaming admits a device under the name of another.
type misnaming struct{ *domain }

func (misnaming) Authenticate(string, string, []byte, string) (fleet.DeviceID, error) {
	return testID(2), nil
}

func TestClientIDOfAnotherDevice(t *testing.T) {
	b, _ := start(t, func(o *options) { o.Devices = misnaming{o.Devices.(*domain)} })
	if code := dialRaw(t, b.Addr()).connect(connectPacket{clientID: testClientID(1)}); code != 5 {
		t.Errorf("CONNACK %d, want 5", code)
	}
}

func TestForeignTopics(t *testing.T) {
	for _, version := range []byte{4, 5} {
		for _, qos := range []byte{0, 1, 2} {
			t.Run(fmt.Sprintf("v%d qos%d", version, qos), func(t *testing.T) {
				b, dom := start(t, nil)
				victim := connectRaw(t, b, connectPacket{clientID: testClientID(2)})
				got := make(chan rpc, 10)
				victim.serve(func(r rpc) string { got <- r; return "" })
				<-got // initialize
				liar := connectRaw(t, b, connectPacket{clientID: testClientID(1), version: version})
				forged := `{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/x"}}`
				topics := []string{downTopic(victim.id), upTopic(victim.id), "device-server", "$SYS/x", "a/b"}
				for _, topic := range topics {
					liar.publishTo(topic, forged, qos)
				}
				liar.publish(strings.Replace(forged, "/x", "/end", 1))
				fleettest.Eventually(t, "the connection is kept", func() bool {
					return dom.count(fmt.Sprintf("notified %s notifications/end", liar.id)) == 1
				})
				if n := dom.count("notified"); n != 1 || len(got) != 0 {
					t.Errorf("%d forged messages arrived:\n%s", n-1+len(got), dom.happened())
				}
				if n := b.Stats().ForeignTopics; n != int64(len(topics)) {
					t.Errorf("%d publishes counted", n)
				}
			})
		}
	}
}

func TestSubscribe(t *testing.T) {
	b, _ := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	for filter, want := range map[string]byte{
		downTopic(d.id): 0, upTopic(d.id): 0x80, downTopic(testID(2)): 0x80,
		"#": 0x80, "devices/p2p/+": 0x80, "$SYS/#": 0x80, "$share/g/" + downTopic(d.id): 0x80, "": 0x80,
	} {
		d.write(frame(0x82, append(append([]byte{0, 9}, str(filter)...), 0)))
		for {
			kind, body, err := d.read()
			if err != nil {
				t.Fatal(err)
			}
			if kind != 0x90 {
				continue // initialize
			}
			if body[2] != want {
				t.Errorf("SUBSCRIBE to %q: %#x, want %#x", filter, body[2], want)
			}
			break
		}
	}
}

// Mochi publishes wills without checking the ACL.
func TestWillForgery(t *testing.T) {
	for _, version := range []byte{4, 5} {
		b, _ := start(t, nil)
		victim := connectRaw(t, b, connectPacket{clientID: testClientID(2)})
		victim.write(frame(0x82, append(append([]byte{0, 9}, str(downTopic(victim.id))...), 0)))
		got := make(chan rpc, 10)
		victim.serve(func(r rpc) string { got <- r; return "" })
		<-got // initialize
		forger := connectRaw(t, b, connectPacket{
			clientID: testClientID(1), version: version, willTopic: downTopic(victim.id),
			willBytes: `{"type":"mcp","payload":{"jsonrpc":"2.0","id":666,"method":"tools/call","params":{"name":"self.reboot"}}}`,
		})
		forger.conn.Close()
		fleettest.Eventually(t, "the forger is gone", func() bool { return b.Stats().Connections == 1 })
		if _, err := makeCall(b, victim.id, "x", `{}`, deadline, nil); err != nil {
			t.Fatal(err)
		}
		if r := <-got; r.ID == 666 {
			t.Errorf("v%d: the will was delivered", version)
		}
		if n := b.Stats().WillsRemoved; n != 1 {
			t.Errorf("%d wills counted", n)
		}
	}
}

// Mochi reads past the end of this SUBSCRIBE, and the process crashes.
func TestCrashPacket(t *testing.T) {
	crash := frame(0x82, append([]byte{0, 1, 0}, str("a")...))
	for i := range len(crash) {
		b, dom := start(t, nil)
		bystander := connectRaw(t, b, connectPacket{clientID: testClientID(2)})
		bystander.serve(nil)
		d := connectRaw(t, b, connectPacket{clientID: testClientID(1), version: 5})
		d.write(crash[:i]) // split anywhere by the network
		time.Sleep(time.Millisecond)
		d.write(crash[i:])
		if err := d.ended(deadline); err != nil {
			t.Error(err)
		}
		if _, err := makeCall(b, bystander.id, "x", `{}`, deadline, nil); err != nil {
			t.Error(err)
		}
		if s := b.Stats(); s.Panics != 0 {
			t.Error("the packet reached mochi")
		}
		fleettest.Eventually(t, "the end is told", func() bool {
			return dom.count("disconnected "+string(d.id)+
				" clean=false: "+fleet.CauseViolation+" malformed SUBSCRIBE") == 1
		})
	}
}

// panicking is a domain whose methods panic.
type panicking struct{ *domain }

func (panicking) Notified(fleet.DeviceID, string, json.RawMessage) { panic("bug") }

func TestPanicCostsOneConnection(t *testing.T) {
	b, dom := start(t, func(o *options) { o.Devices = panicking{o.Devices.(*domain)} })
	bystander := connectRaw(t, b, connectPacket{clientID: testClientID(2)})
	bystander.serve(nil)
	for range 3 {
		d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
		d.publish(`{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/x"}}`)
		if err := d.ended(deadline); err != nil {
			t.Error(err)
		}
		fleettest.Eventually(t, "the end", func() bool { return b.Stats().Connections == 1 })
	}
	fleettest.Eventually(t, "the ends are told", func() bool {
		return dom.count("disconnected "+string(testID(1))+" clean=false: "+fleet.CauseInternal) == 3
	})
	if n := b.Stats().Panics; n != 3 {
		t.Errorf("%d panics counted", n)
	}
	if n := b.edge.MQTT().Clients.Len(); n != 1 {
		t.Errorf("mochi keeps %d clients, want the bystander alone", n)
	}
	if b.registry.connection(testID(1)) != nil {
		t.Error("the registry keeps the connection")
	}
	if _, err := makeCall(b, bystander.id, "x", `{}`, deadline, nil); err != nil {
		t.Error(err)
	}
}

func TestSilentSockets(t *testing.T) {
	b, _ := start(t, func(o *options) { o.ConnectTimeout = 100 * time.Millisecond })
	begin := time.Now()
	for _, said := range [][]byte{nil, {0x10}, connectPacket{clientID: testClientID(1)}.bytes()[:20]} {
		d := dialRaw(t, b.Addr())
		d.write(said)
		if err := d.ended(deadline); err != nil {
			t.Errorf("after %d bytes: %v", len(said), err)
		}
	}
	if waited := time.Since(begin); waited < 300*time.Millisecond {
		t.Errorf("closed after %v already", waited)
	}
	fleettest.Eventually(t, "counting", func() bool {
		return b.Stats().Refused["silent"] == 3 && b.Stats().Sockets == 0
	})
}

func TestFirstPacket(t *testing.T) {
	b, _ := start(t, nil)
	long := frame(0x10, bytes.Repeat([]byte{'x'}, maxConnect+1))
	for name, first := range map[string][]byte{
		"256 MiB announced": {0x10, 0xff, 0xff, 0xff, 0x7f},
		"2 KiB and one":     long[:100],
		"PUBLISH":           frame(0x30, append(str("a/b"), "x"...)),
		"endless length":    {0x10, 0xff, 0xff, 0xff, 0xff, 0x01},
		"HTTP":              []byte("GET / HTTP/1.1\r\n\r\n"),
		"empty CONNECT":     {0x10, 0},
	} {
		d := dialRaw(t, b.Addr())
		d.write(first)
		if err := d.ended(deadline); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	fleettest.Eventually(t, "counting", func() bool { return b.Stats().Refused["malformed_connect"] == 6 })
}

// Without free descriptors accepting fails. Afterwards it must resume.
func TestAcceptAfterRunningOutOfDescriptors(t *testing.T) {
	b, _ := start(t, nil)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	low := was
	low.Cur = 200
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)
	hogs := hogDescriptors(t)
	hogs[0].Close() // one descriptor for the client's end; none for the broker's
	d := dialRaw(t, b.Addr())
	d.write(connectPacket{clientID: testClientID(1), keepalive: 60}.bytes())
	fleettest.Eventually(t, "accepting fails", func() bool { return b.Stats().AcceptErrors > 3 })
	for _, f := range hogs {
		f.Close()
	}
	if kind, _, err := d.read(); err != nil || kind != 0x20 {
		t.Fatalf("packet %#x, %v, want CONNACK", kind, err)
	}
}

func hogDescriptors(t *testing.T) (hogs []io.Closer) {
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return hogs
		}
		t.Cleanup(func() { f.Close() })
		hogs = append(hogs, f)
	}
}

func TestConnectionLimit(t *testing.T) {
	b, _ := start(t, func(o *options) { o.MaxConnections = 2 })
	first := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	connectRaw(t, b, connectPacket{clientID: testClientID(2)})
	third := dialRaw(t, b.Addr())
	third.write(connectPacket{clientID: testClientID(3), keepalive: 60}.bytes())
	_ = third.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, _, err := third.read(); err == nil {
		t.Fatal("a third connection was let in")
	}
	first.conn.Close()
	_ = third.conn.SetReadDeadline(time.Now().Add(deadline))
	if kind, _, err := third.read(); err != nil || kind != 0x20 {
		t.Errorf("packet %#x, %v, want CONNACK once there is room", kind, err)
	}
}

func TestKeepalive(t *testing.T) {
	tests := []struct {
		keepalive uint16
		version   byte
		want      uint16
		announced bool
	}{
		{43690, 4, 43690, false},
		{43691, 4, 43690, false},
		{43691, 5, 43690, true},
		{65535, 4, 43690, false},
		{60, 5, 60, false},
	}
	b, _ := start(t, nil)
	for i, tt := range tests {
		d := connectRaw(t, b, connectPacket{clientID: testClientID(i), keepalive: tt.keepalive, version: tt.version})
		cl, _ := b.edge.MQTT().Clients.Get(testClientID(i))
		if cl.State.Keepalive != tt.want || cl.State.ServerKeepalive != tt.announced {
			t.Errorf("keepalive %d, v%d: %d, announced %v", tt.keepalive, tt.version, cl.State.Keepalive, cl.State.ServerKeepalive)
		}
		if err := d.ended(50 * time.Millisecond); err == nil {
			t.Errorf("keepalive %d, v%d: the device is disconnected at once", tt.keepalive, tt.version)
		}
	}
}
