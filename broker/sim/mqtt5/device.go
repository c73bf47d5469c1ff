package mqtt5

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// The server-name of a device has its kind and its id, unless the broker suggests another one.
const serverNamePrefix = "sim/lamp/"

const (
	keepalive     = 60 * time.Second
	maxRetryDelay = time.Minute
)

// A Device is one virtual device. Its methods may be called at any time.
type Device struct {
	fleet *Fleet
	id    string
	sdk   bool
	local *net.TCPAddr // nil: the system's choice

	credentials Credentials     // zero before the first are issued; used by the device's goroutine
	known       map[string]bool // mcp-client-ids for which an SDK has subscribed; survives the connection

	mu    sync.Mutex // guards all below
	state State
	conn  *conn // nil while the device is not connected
}

// A State is the part of a device that tools can read and change.
type State struct {
	Volume     int
	Light      bool
	Brightness int
	Sensor     bool // attached: the device then has a tool to read it
}

func newDevice(f *Fleet, index int) *Device {
	d := &Device{fleet: f, id: f.options.Prefix + strconv.Itoa(index+1), sdk: index < f.options.SDK,
		state: State{Volume: 50, Brightness: 100}}
	if len(f.local) > 0 {
		d.local = f.local[index%len(f.local)]
	}
	return d
}

// ID returns the device's id, which is its MQTT client id and its server-id.
func (d *Device) ID() string { return d.id }

// SDK reports whether the device behaves like the ESP-IDF SDK 0.0.1.
func (d *Device) SDK() bool { return d.sdk }

// State returns the device's current state.
func (d *Device) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Connected reports whether the device has published its presence on an open connection.
func (d *Device) Connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conn != nil
}

// Crash closes the socket without DISCONNECT, as a device that loses power does. The device
// connects again.
func (d *Device) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		d.conn.Close()
	}
}

// live keeps the device connected until ctx ends.
func (d *Device) live(ctx context.Context) {
	delay := d.fleet.options.RetryDelay
	for {
		worked, err := d.session(ctx)
		if ctx.Err() != nil {
			return
		}
		d.fleet.options.Logger.Debug("session ended", "device", d.id, "err", err)
		if worked {
			delay = d.fleet.options.RetryDelay
		}
		if !sleep(ctx, delay/2+rand.N(delay)) {
			return
		}
		delay = min(2*delay, max(maxRetryDelay, d.fleet.options.RetryDelay))
	}
}

// provision asks for credentials, unless the device has some.
func (d *Device) provision(ctx context.Context) error {
	if d.credentials != (Credentials{}) {
		return nil
	}
	select {
	case d.fleet.asking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.fleet.asking }()
	c, err := d.fleet.options.Credentials(ctx, d.id)
	d.credentials = c
	return err
}

// session runs one connection from CONNECT to its end. It reports whether an MCP client has
// initialized the device.
func (d *Device) session(ctx context.Context) (worked bool, err error) {
	if err := d.provision(ctx); err != nil {
		if ctx.Err() == nil {
			d.fleet.failed(&d.fleet.stats.credentialsFailed, "no credentials", d.id, err)
		}
		return false, err
	}
	c, name, err := d.connect(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.fleet.failed(&d.fleet.stats.connectFailures, "no connection", d.id, err)
		}
		return false, err
	}
	defer c.Close()
	d.fleet.stats.connects.Add(1)
	defer d.offline()
	s := &session{device: d, conn: c, name: name}
	stop := context.AfterFunc(ctx, s.leave)
	defer stop()
	err = s.serve()
	return s.initialized, err
}

// connect returns a connection after a CONNACK that accepts, and the server-name.
func (d *Device) connect(ctx context.Context) (c *conn, name string, err error) {
	c, err = dial(ctx, d.credentials.Broker, d.local)
	if err != nil {
		return nil, "", err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	name = serverNamePrefix + d.id
	hello := d.hello(name)
	answer, err := c.handshake(hello)
	if err != nil {
		c.Close()
		return nil, "", err
	}
	c.keepalive = time.Duration(hello.KeepAlive) * time.Second
	if answer.ServerKeepAlive != nil {
		c.keepalive = time.Duration(*answer.ServerKeepAlive) * time.Second
	}
	if c.keepalive == 0 {
		c.keepalive = 1000 * time.Hour
	}
	for _, p := range answer.User {
		if p.Key == suggestedName && !d.sdk {
			name = p.Value
		}
	}
	return c, name, nil
}

// hello returns CONNECT, with the empty presence as will.
func (d *Device) hello(name string) *packets.Connect {
	seconds := keepalive
	if d.sdk {
		seconds = sdkKeepalive
	}
	if d.fleet.options.Keepalive > 0 {
		seconds = d.fleet.options.Keepalive
	}
	hello := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: d.credentials.ClientID, CleanStart: true,
		KeepAlive:    uint16(min(max(1, seconds/time.Second), 65535)),
		UsernameFlag: true, Username: d.credentials.Username,
		PasswordFlag: true, Password: []byte(d.credentials.Password),
		WillFlag: true, WillTopic: d.topic(presencePrefix, name), WillRetain: true, WillProperties: &packets.Properties{},
		Properties: &packets.Properties{RequestProblemInfo: new(byte(1)), User: []packets.User{
			{Key: componentType, Value: component},
			{Key: "MCP-META", Value: `{"version":"1.0.0","implementation":"fleetd sim"}`}}},
	}
	if d.sdk {
		sdkConnect(hello)
	}
	return hello
}

// topic returns the topic {prefix}{server-id}/{server-name}.
func (d *Device) topic(prefix, name string) string {
	topic := prefix + d.id + "/" + name
	if d.sdk {
		return sdkTopic(topic)
	}
	return topic
}

// online records that the presence has been published on c.
func (d *Device) online(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = c
	d.fleet.stats.connected.Add(1)
}

func (d *Device) offline() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		d.conn = nil
		d.fleet.stats.connected.Add(-1)
	}
}
