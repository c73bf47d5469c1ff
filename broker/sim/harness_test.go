package sim

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// load reads a vector file.
func load(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// oneDevice makes a fleet of one device that is not switched on.
func oneDevice(t *testing.T, o Options) *Device {
	t.Helper()
	if o.OTAURL == "" {
		o.OTAURL = "http://fleet.example.org/xiaozhi/ota/"
	}
	o.Devices = 1
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return f.Device(0)
}

// vectorDevice returns the device of the vectors, with the given tools instead of its board's.
func vectorDevice(t *testing.T, tools ...*tool) *Device {
	t.Helper()
	d := oneDevice(t, Options{Boards: []string{"bread-compact-wifi"}, FirstMAC: "a0:85:e3:11:22:33", RecordCalls: 10})
	d.id.uuid = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10"
	d.link.ssid, d.link.rssi, d.link.channel, d.link.ip = "lab", -52, 6, [2]uint8{4, 27}
	d.state.Battery, d.state.Temperature = 88, 41.5
	builds := d.fleet.builds[d.board]
	d.flash.slots[0].build = builds[len(builds)-1]
	if len(tools) > 0 {
		b := *d.board
		b.tools, b.oldTools = tools, tools
		d.board = &b
		for _, t := range tools {
			t.json = t.marshal()
		}
	}
	return d
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A server is the other end of a device's MQTT connection, in memory. It is
// meant for use inside a synctest bubble.
type server struct {
	t       *testing.T
	d       *Device
	conn    *mqttConn
	packets chan packet
	cancel  context.CancelFunc
}

// attach switches d on as if its session had begun before.
func attach(t *testing.T, d *Device) *server {
	t.Helper()
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	d.nvs.topic = "device-server"
	task := d.reset(ctx, cancel)
	conn := &mqttConn{Conn: near, keepalive: time.Hour}
	conn.lastSent.Store(time.Now().UnixNano())
	d.setConn(conn)
	s := &server{t: t, d: d, conn: &mqttConn{Conn: far, keepalive: 1000 * time.Hour}, packets: make(chan packet, 100),
		cancel: cancel}
	s.conn.lastSent.Store(time.Now().UnixNano())
	received := make(chan error, 1)
	go func() { received <- d.receive(conn) }()
	go s.read()
	t.Cleanup(func() {
		cancel()
		near.Close()
		far.Close()
		<-received
		task.stop()
	})
	return s
}

func (s *server) read() {
	defer close(s.packets)
	for {
		p, err := s.conn.next()
		if err != nil {
			return
		}
		p.payload = append([]byte(nil), p.payload...)
		s.packets <- p
	}
}

func (s *server) send(payload string) {
	s.t.Helper()
	if err := s.conn.send(publishPacket(nil, "devices/p2p/any", []byte(payload))); err != nil {
		s.t.Fatal(err)
	}
}

// reply returns what the device has published once nothing moves any more, or "".
func (s *server) reply() string {
	s.t.Helper()
	synctest.Wait()
	select {
	case p, ok := <-s.packets:
		if !ok || p.kind != pktPublish {
			return ""
		}
		pub, err := parsePublish(p)
		if err != nil {
			s.t.Fatal(err)
		}
		return string(pub.payload)
	default:
		return ""
	}
}
