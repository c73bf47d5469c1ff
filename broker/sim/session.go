package sim

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

const (
	reconnectWait    = 10 * time.Second
	defaultKeepalive = 240 // seconds
	tlsPort          = 8883
)

// startProtocol stays on MQTT until the device restarts: it reconnects every
// ten seconds for ever, with the credentials it has (2).
func (d *Device) startProtocol(ctx context.Context, saw answer) error {
	webSocketOnly := saw.websocket && !saw.mqtt
	if webSocketOnly && d.nvs.socket.url != "" { // MQTT is not used: the socket is opened when somebody talks
		socket := d.nvs.socket
		d.mu.Lock()
		d.onSocket = &socket
		d.mu.Unlock()
		d.talkNowAndThen(ctx)
		return nil
	}
	if webSocketOnly || d.nvs.endpoint == "" || d.faults.has(FaultNoConnect) || d.newBuildHas(FaultPollWithoutMQTT) {
		<-ctx.Done()
		return nil
	}
	host, port, err := parseEndpoint(d.nvs.endpoint)
	if err != nil {
		return err
	}
	if d.board.software {
		d.waitForTalks(ctx, host, port)
		return nil
	}
	for ctx.Err() == nil {
		if err := d.serveMQTT(ctx, host, port); err != nil && ctx.Err() == nil {
			d.log().Debug("no MQTT session", "err", err)
		}
		d.awaitSetUp(ctx)
		d.sleep(ctx, reconnectWait)
	}
	return nil
}

// serveMQTT runs one session from CONNECT to its end.
func (d *Device) serveMQTT(ctx context.Context, host string, port int) error {
	conn, err := d.connect(ctx, host, port)
	if err != nil {
		d.stats().connectFailures.Add(1)
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.hangUp)
	defer stop()
	d.setConn(conn)
	defer d.setConn(nil)
	d.reportOutcome()
	return d.receive(conn)
}

// A serverConn is the device's connection: MQTT, or a WebSocket.
type serverConn interface {
	message(topic string, payload []byte) error // a JSON message to the server
	hangUp()
	Close() error // without notice to the server
}

func (d *Device) setConn(conn serverConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = conn
	if conn != nil {
		d.stats().connects.Add(1)
		d.stats().connected.Add(1)
	} else {
		d.stats().connected.Add(-1)
		d.session.close()
	}
}

// connect dials and waits for a successful CONNACK.
func (d *Device) connect(ctx context.Context, host string, port int) (*mqttConn, error) {
	seconds := d.keepalive()
	hello, err := connectPacket(d.nvs.clientID, d.nvs.username, d.nvs.password, uint16(seconds))
	if err != nil {
		return nil, err
	}
	raw, err := d.dialMQTT(ctx, host, port)
	if err != nil {
		return nil, err
	}
	conn := &mqttConn{Conn: raw, keepalive: time.Duration(seconds) * time.Second}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	if err := conn.handshake(hello); err != nil {
		raw.Close()
		return nil, err
	}
	if d.faults.has(FaultFlap) {
		conn.breakAt = time.Now().Add(d.fleet.scaled(d.fleet.fault(FaultFlap).Delay))
	}
	return conn, nil
}

func (c *mqttConn) handshake(hello []byte) error {
	if err := c.send(hello); err != nil {
		return err
	}
	c.breakAt = time.Now().Add(networkWait) // a server that never answers
	p, err := c.next()
	c.breakAt = time.Time{}
	switch {
	case err != nil:
		return fmt.Errorf("no CONNACK: %w", err)
	case p.kind != pktConnack || len(p.payload) != 2:
		return fmt.Errorf("packet of kind %d in place of CONNACK", p.kind)
	case p.payload[1] != 0:
		return fmt.Errorf("CONNECT refused with code %d", p.payload[1])
	}
	return nil
}

func (d *Device) keepalive() int {
	switch {
	case d.fleet.options.Keepalive > 0:
		return max(1, int(d.fleet.options.Keepalive/time.Second))
	case d.nvs.keepalive <= 0:
		return defaultKeepalive
	}
	return min(d.nvs.keepalive, 65535)
}

func (d *Device) dialMQTT(ctx context.Context, host string, port int) (net.Conn, error) {
	conn, err := d.dialEndpoint(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil || port != tlsPort {
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, networkWait)
	defer cancel()
	secure := tls.Client(conn, &tls.Config{ServerName: host})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// dialEndpoint connects to the endpoint, or to the first of the addresses behind it that accepts.
func (d *Device) dialEndpoint(ctx context.Context, endpoint string) (net.Conn, error) {
	addrs := d.fleet.options.Endpoints
	if len(addrs) == 0 {
		return dialFrom(ctx, d.localAddr(), endpoint)
	}
	var errs []error
	for i := range addrs {
		conn, err := dialFrom(ctx, d.localAddr(), addrs[(d.index+i)%len(addrs)])
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// receive runs the MQTT task: it reads, acknowledges and dispatches.
func (d *Device) receive(conn *mqttConn) error {
	for {
		p, err := conn.next()
		if err != nil {
			return err
		}
		switch p.kind {
		case pktPublish:
			err = d.onPublish(conn, p)
		case pktPubrel:
			if len(p.payload) >= 2 {
				err = conn.acknowledge(pktPubcomp, p.payload)
			}
		}
		if err != nil {
			return err
		}
	}
}

func (d *Device) onPublish(conn *mqttConn, p packet) error {
	pub, err := parsePublish(p)
	if err != nil {
		return err
	}
	d.onMessage(conn, pub.payload)
	switch pub.qos {
	case 1:
		return conn.acknowledge(pktPuback, pub.id)
	case 2:
		return conn.acknowledge(pktPubrec, pub.id)
	}
	return nil
}

// publish sends to the device's only topic. Without a session the message is lost.
func (d *Device) publish(payload []byte) bool {
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	return conn != nil && conn.message(d.nvs.topic, payload) == nil
}

var errNoTopic = errors.New("the server sent no publish_topic")

func (c *mqttConn) message(topic string, payload []byte) error {
	if topic == "" {
		return errNoTopic
	}
	buf := packetBuffers.Get().(*[]byte)
	defer packetBuffers.Put(buf)
	*buf = publishPacket((*buf)[:0], topic, payload)
	return c.send(*buf)
}
