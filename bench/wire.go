package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// The parts of MQTT 3.1.1 that a load needs: the same code simulates devices
// and controller with every broker, so its cost is the same for each.

const (
	packetConnect   = 0x10
	packetConnack   = 0x20
	packetPublish   = 0x30
	packetSubscribe = 0x82
)

// appendString appends a length-prefixed MQTT string.
func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// frame prepends the fixed header.
func frame(kind byte, body []byte) []byte {
	b := []byte{kind}
	for n := len(body); ; {
		digit := byte(n % 128)
		if n /= 128; n > 0 {
			b = append(b, digit|0x80)
			continue
		}
		b = append(b, digit)
		return append(b, body...)
	}
}

func connectPacket(c credentials) []byte {
	flags := byte(0x02) // clean session
	if c.Username != "" {
		flags |= 0xC0
	}
	b := append(appendString(nil, "MQTT"), 4, flags, 0, 60)
	b = appendString(b, c.ClientID)
	if c.Username != "" {
		b = appendString(appendString(b, c.Username), c.Password)
	}
	return frame(packetConnect, b)
}

func publishPacket(topic string, payload []byte) []byte {
	return frame(packetPublish, append(appendString(nil, topic), payload...))
}

func subscribePacket(filter string) []byte {
	return frame(packetSubscribe, append(appendString([]byte{0, 1}, filter), 0))
}

// readPacket reads one packet into buf, grown as needed.
func readPacket(r *bufio.Reader, buf []byte) (kind byte, body []byte, err error) {
	if kind, err = r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(r) // MQTT's lengths are varints of at most four bytes
	if err != nil || n > 1<<20 {
		return 0, nil, errors.Join(err, fmt.Errorf("packet of %d bytes", n))
	}
	if uint64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	body = buf[:n]
	_, err = io.ReadFull(r, body)
	return kind, body, err
}

// payload returns the payload of a QoS 0 PUBLISH.
func payload(body []byte) []byte {
	if len(body) < 2 {
		return nil
	}
	n := int(binary.BigEndian.Uint16(body)) + 2
	if n > len(body) {
		return nil
	}
	return body[n:]
}

// credentials are the login data and the topics of one device.
type credentials struct {
	ClientID, Username, Password string
	Down, Up                     string
	Subscribe                    bool // Mosquitto delivers nothing without a subscription
}

// dial connects and returns after CONNACK (and SUBSCRIBE).
func dial(addr string, c credentials) (net.Conn, *bufio.Reader, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	if _, err := conn.Write(connectPacket(c)); err != nil {
		conn.Close()
		return nil, nil, err
	}
	r := bufio.NewReaderSize(conn, 1024)
	kind, body, err := readPacket(r, nil)
	if err == nil && (kind != packetConnack || len(body) < 2 || body[1] != 0) {
		err = fmt.Errorf("connection of %s refused: %x", c.ClientID, body)
	}
	if err == nil && c.Subscribe {
		if _, err = conn.Write(subscribePacket(c.Down)); err == nil {
			_, _, err = readPacket(r, nil)
		}
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, r, nil
}
