package broker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetd/fleet/fleettest"
)

// Reasons why a feature is not offered, in the words of docs/mqtt.md.
const (
	byIDs      = "a client id is one that fleetd issued"
	byRouting  = "a message goes to fleetd and nowhere else"
	bySessions = "a session ends with its connection: a call must not run at an unexpected time"
	byRetained = "nothing is retained"
	byWills    = "wills are accepted and dropped: fleetd notices when a device is gone"
	byFilters  = "a device can subscribe to its own topic alone, without wildcards, groups or identifiers"
)

var conformanceCases = []conformanceCase{
	// CONNECT
	{
		v3: "3.1.0-1", v5: "3.1.0-1",
		what: "a first packet other than CONNECT ends the connection",
		test: func(w *wire) {
			w.write(w.messageTo("a/b", 0, 0, nil, "x"))
			w.closed(0)
		},
	},
	{
		v3: "3.1.0-2", v5: "3.1.0-2",
		what:  "a second CONNECT ends the connection",
		suite: []string{"3.basic", "5.basic"},
		test: func(w *wire) {
			w.connect()
			w.write(w.hello().bytes())
			w.closed(0x82)
		},
	},
	{
		v3: "3.1.2-1", v5: "3.1.2-1",
		what:  "another protocol name ends the connection",
		suite: []string{"3.basic", "5.basic"},
		test: func(w *wire) {
			h := w.hello()
			h.name = "MQTQ"
			w.write(h.bytes())
			w.closed(0)
		},
	},
	{
		v3: "3.1.2-2", v5: "3.1.2-2",
		what: "an unknown protocol level is answered with return code 1, in the form of 3.1.1",
		test: func(w *wire) {
			for _, level := range []byte{0, 3, 6, 0x84, 0xff} {
				c := w.again()
				h := c.hello()
				h.level = level
				c.write(h.bytes())
				if body := c.expect(0x20); !bytes.Equal(body, []byte{0, 1}) {
					c.t.Errorf("level %d: CONNACK %x, want 0001", level, body)
				}
				c.closed(0)
			}
			w.conn.Close()
			fleettest.Eventually(w.t, "counting", func() bool { return w.b.Stats().Refused["protocol_level"] == 5 })
		},
	},
	{
		v3: "3.1.2-3", v5: "3.1.2-3",
		what: "the reserved flag of CONNECT ends the connection",
		test: func(w *wire) {
			h := w.hello()
			h.flags |= 1
			w.write(h.bytes())
			w.closed(0)
		},
	},
	{
		v3: "3.1.2-13, 3.1.2-15", v5: "3.1.2-11, 3.1.2-13",
		what: "flags of a will without a will end the connection",
		test: func(w *wire) {
			for _, flag := range []byte{0x08, 0x10, 0x20} {
				c := w.again()
				h := c.hello()
				h.flags |= flag
				c.write(h.bytes())
				c.closed(0)
			}
		},
	},
	{
		v3: "3.1.2-14", v5: "3.1.2-12",
		what: "a will at QoS 3 ends the connection",
		test: func(w *wire) {
			w.write(w.willing(0x04|0x18, upTopic(w.id)))
			w.closed(0)
		},
	},
	{
		v3:   "3.1.2-22",
		what: "a password without a user name ends the connection",
		test: func(w *wire) {
			h := w.hello()
			h.flags = 0x42
			h.payload = append(str(testClientID(1)), str(passwordOf(testClientID(1)))...)
			w.write(h.bytes())
			w.closed(0)
		},
	},
	{
		v3: "3.1.2-24", v5: "3.1.2-22",
		what:  "silence for 1.5 times the keepalive ends the connection, and no shorter one",
		suite: []string{"3.keepalive", "5.keepalive"},
		test: func(w *wire) {
			h := w.hello()
			h.keepalive = 3
			w.connectWith(h)
			time.Sleep(time.Second) // of 4.5 s
			begin := time.Now()
			w.ping()
			w.closed(0)
			if waited := time.Since(begin); waited < 4500*time.Millisecond {
				w.t.Errorf("closed after %v", waited)
			}
		},
	},
	{
		v3: "1.5.3-1, 1.5.3-2", v5: "1.5.4-1, 1.5.4-2",
		what: "text that is no UTF-8, or holds the character 0, ends the connection",
		test: func(w *wire) {
			for _, text := range []string{"\xff", "\xed\xa0\x80", "a\x00b"} {
				c := w.again()
				h := c.hello()
				h.payload = payloadOf(text, "x")
				c.write(h.bytes())
				c.closed(0)
				c = w.again()
				c.connect()
				c.write(c.messageTo(upTopic(c.id)+text, 0, 0, nil, "x"))
				c.closed(0)
			}
		},
	},
	{
		v3: "3.1.3-5", v5: "3.1.3-5",
		what:    "any client id of 1 to 23 letters and digits is allowed",
		refused: byIDs,
		test: func(w *wire) {
			h := w.hello()
			h.payload = payloadOf("myclientid", "x")
			w.refusedHello(h, 2, 0x85)
		},
	},
	{
		v3: "3.1.3-8, 3.1.3-9", v5: "3.1.3-8",
		what: "a client id that is not accepted is answered with its code",
		test: func(w *wire) {
			h := w.hello()
			h.flags &^= 2
			h.payload = payloadOf("", "x")
			w.refusedHello(h, 2, 0x85)
		},
	},
	{
		v3: "3.1.3-6", v5: "3.1.3-6, 3.1.3-7",
		what:    "an empty client id is given another",
		refused: byIDs,
		suite:   []string{"3.zero_length_clientid", "5.zero_length_clientid", "5.assigned_clientid"},
		test: func(w *wire) {
			h := w.hello()
			h.payload = payloadOf("", "x")
			w.refusedHello(h, 2, 0x85)
		},
	},
	{
		v3: "3.2.2-4, 3.2.2-5", v5: "3.1.4-2, 3.2.2-6, 3.2.2-7",
		what: "wrong credentials are answered with their code, and the connection ends",
		test: func(w *wire) {
			for _, password := range []string{"wrong", ""} {
				c := w.again()
				h := c.hello()
				h.payload = payloadOf(testClientID(1), password)
				c.refusedHello(h, 5, 0x86)
			}
		},
	},
	{
		v3: "3.1.4-5", v5: "3.1.4-6",
		what: "packets after a refused CONNECT are not handled",
		test: func(w *wire) {
			h := w.hello()
			h.payload = payloadOf(testClientID(1), "wrong")
			w.write(append(h.bytes(), w.messageTo(upTopic(w.id), 2, 7, nil, message)...))
			if _, code, _ := w.connackOnly(); code != by[byte](w, 5, 0x86) {
				w.t.Errorf("code %#x", code)
			}
			w.closed(0)
			if w.dom.count("notified") != 0 {
				w.t.Error("the message was handled")
			}
		},
	},
	{
		v3: "3.1.4-2", v5: "3.1.4-3",
		what: "a second connection of a device ends the first",
		test: func(w *wire) {
			w.connect()
			w.ping() // it is the device's from then on
			second := w.again()
			second.connect()
			second.ping()
			w.closed(0x8e)
		},
	},
	{
		v3: "3.2.0-1, 3.2.2-1", v5: "3.2.0-1, 3.2.2-1, 3.2.2-2",
		what:  "CONNACK comes first and says that there is no session",
		suite: []string{"3.basic", "5.basic"},
		test: func(w *wire) {
			w.write(append(w.hello().bytes(), 0xc0, 0))
			kind, body, err := w.read()
			if err != nil || kind != 0x20 || body[0] != 0 || body[1] != 0 {
				w.t.Fatalf("packet %#x %x, %v", kind, body, err)
			}
			w.expect(0xd0)
		},
	},
	{
		v3: "3.1.2-4, 3.1.2-5, 4.4.0-1", v5: "3.1.2-5, 3.1.2-23, 4.4.0-1",
		what:    "a session outlives its connection; CONNACK says that it does not",
		refused: bySessions,
		suite: []string{
			"3.offline_message_queueing", "3.redelivery_on_reconnect", "5.offline_message_queueing",
			"5.redelivery_on_reconnect", "5.session_expiry",
		},
		test: func(w *wire) {
			for range 2 {
				c := w.again()
				h := c.hello()
				h.flags &^= 2
				h.props = []byte{0x11, 0, 0, 0x0e, 0x10}
				flags, code, props := c.connectWith(h)
				if flags != 0 || code != 0 {
					c.t.Errorf("session present %d, code %#x", flags, code)
				}
				if seconds, said := props[0x11]; c.v5 && (!said || seconds != 0) {
					c.t.Errorf("Session Expiry Interval %d, said %v; want 0", seconds, said)
				}
				c.subscribe(9, nil, wish{downTopic(c.id), 1})
				c.write(by(c, []byte{0xe0, 0}, []byte{0xe0, 7, 0, 5, 0x11, 0, 0, 0, 9})) // requested in CONNECT, so no error
				c.closed(0)
				want := fmt.Sprintf("disconnected %s clean=true", c.id)
				fleettest.Eventually(c.t, want, func() bool { return c.dom.count(want) > 0 })
			}
		},
	},
	{
		v5:    "3.2.2-9, 3.2.2-21, 3.2.2-22",
		what:  "CONNACK states only what differs from the request",
		suite: []string{"5.server_keep_alive"},
		test: func(w *wire) {
			h := w.hello()
			_, _, props := w.connectWith(h)
			want := map[byte]uint32{0x21: receiveMaximum, 0x25: 0, 0x27: maxPacket, 0x28: 0, 0x29: 0, 0x2a: 0}
			if fmt.Sprint(props) != fmt.Sprint(want) {
				w.t.Errorf("properties %v, want %v", props, want)
			}
			c := w.again()
			h.keepalive = 0
			_, _, props = c.connectWith(h)
			if props[0x13] != defaultKeepalive {
				w.t.Errorf("Server Keep Alive %d, want %d", props[0x13], defaultKeepalive)
			}
		},
	},
	{
		v5:   "4.12.0-1",
		what: "an authentication method is answered with code 0x8C",
		test: func(w *wire) {
			h := w.hello()
			h.props = append([]byte{0x15}, str("SCRAM-SHA-1")...)
			w.refusedHello(h, 0, 0x8c)
			if n := w.b.Stats().Refused["auth_method"]; n != 1 {
				w.t.Errorf("%d refusals counted", n)
			}
			c := w.again()
			h.props = append([]byte{0x16}, str("data")...)
			c.refusedHello(h, 0, 0x82)
		},
	},
	{
		v3: "2.2.2-1", v5: "4.12.0-7",
		what: "AUTH without an authentication method ends the connection",
		test: func(w *wire) {
			w.connect()
			w.write([]byte{0xf0, 2, 0x19, 0})
			w.closed(0x82)
		},
	},
	{
		v3: "3.1.2-8", v5: "3.1.2-7, 3.1.2-8",
		what:    "the will is published when the connection ends",
		refused: byWills,
		suite:   []string{"5.will_message", "5.will_delay", "3.keepalive", "5.keepalive"},
		test: func(w *wire) {
			w.write(w.willing(0x04, upTopic(w.id)))
			if body := w.expect(0x20); body[1] != 0 {
				w.t.Fatalf("code %#x", body[1])
			}
			w.conn.Close()
			fleettest.Eventually(w.t, "the end", func() bool { return w.dom.count("disconnected") == 1 })
			if w.dom.count("notified") != 0 {
				w.t.Error("the will was published")
			}
		},
	},
	{
		v5:   "3.2.2-13",
		what: "a retained will is answered with code 0x9A",
		test: func(w *wire) {
			w.write(w.willing(0x24, upTopic(w.id)))
			if _, code, _ := w.connackOnly(); code != 0x9a {
				w.t.Errorf("code %#x", code)
			}
			w.closed(0)
		},
	},

	// PUBLISH
	{
		v3: "4.5.0-1", v5: "4.5.0-1",
		what:    "a message goes to all subscribers of its topic",
		refused: byRouting,
		suite: []string{
			"3.basic", "3.overlapping_subscriptions", "3.dollar_topics", "3.unsubscribe", "5.basic",
			"5.overlapping_subscriptions", "5.dollar_topics", "5.unsubscribe", "5.user_properties",
			"5.payload_format", "5.publication_expiry", "5.request_response", "5.flow_control1",
		},
		test: func(w *wire) {
			w.connect()
			w.subscribe(9, nil, wish{downTopic(w.id), 2})
			w.write(w.messageTo(downTopic(w.id), 0, 0, nil, message))
			w.ping()
			if n := w.b.Stats().ForeignTopics; n != 1 || w.dom.count("notified") != 0 {
				w.t.Errorf("%d messages dropped; %s", n, w.dom.happened())
			}
		},
	},
	{
		v3: "4.3.1-1", v5: "3.3.4-1",
		what:  "a message at QoS 0 is handled",
		suite: []string{"3.basic", "5.basic"},
		test: func(w *wire) {
			w.connect()
			w.send(0, 0)
			w.handled(1)
		},
	},
	{
		v3: "4.3.2-2", v5: "4.3.2-4, 4.3.2-5",
		what:  "a message at QoS 1 is handled and acknowledged, and its identifier is free then",
		suite: []string{"3.basic", "5.basic"},
		test: func(w *wire) {
			w.connect()
			for _, flags := range []byte{2, 2, 10} {
				w.send(flags, 7)
				w.ack(0x40, 7, 0)
			}
			w.handled(3)
		},
	},
	{
		v3: "4.3.3-2", v5: "4.3.3-8, 4.3.3-11, 4.3.3-12",
		what:  "a message at QoS 2 is handled once: PUBREC, PUBREL, PUBCOMP; its identifier is free then",
		suite: []string{"3.basic", "5.basic"},
		test: func(w *wire) {
			w.connect()
			for range 2 {
				w.send(4, 7)
				w.ack(0x50, 7, 0)
				w.release(7)
				w.ack(0x70, 7, 0)
			}
			w.handled(2)
		},
	},
	{
		v3: "4.3.3-2", v5: "4.3.3-10",
		what: "a message at QoS 2 that comes again before its PUBREL is acknowledged and not handled again",
		test: func(w *wire) {
			w.connect()
			for _, flags := range []byte{4, 12, 4} { // the duplicate flag changes nothing
				w.send(flags, 7)
				w.ack(0x50, 7, 0)
			}
			w.send(4, 8)
			w.ack(0x50, 8, 0)
			w.handled(2)
			if n := w.b.Stats().Duplicates; n != 2 {
				w.t.Errorf("%d duplicates counted", n)
			}
			w.release(7)
			w.ack(0x70, 7, 0)
			w.send(12, 8)
			w.ack(0x50, 8, 0)
			w.handled(2)
		},
	},
	{
		v3: "4.3.3-2", v5: "4.3.3-11",
		what: "PUBREL is answered also when its message is not known; 5.0 says so",
		test: func(w *wire) {
			w.connect()
			w.release(7)
			w.ack(0x70, 7, 0x92)
			if w.v5 { // with a reason
				w.send(4, 7)
				w.ack(0x50, 7, 0)
				w.write(frame(0x62, []byte{0, 7, 0x92, 0}))
				w.ack(0x70, 7, 0)
			}
		},
	},
	{
		v3: "none", v5: "3.3.4-7, 3.3.4-8, 4.9.0-3",
		what:  "in 5.0 Receive Maximum bounds the QoS 2 messages without PUBREL; all else is handled meanwhile",
		suite: []string{"5.flow_control2"},
		test: func(w *wire) {
			w.connect()
			for id := range uint16(receiveMaximum) {
				w.send(4, id+1)
				w.ack(0x50, id+1, 0)
			}
			w.send(0, 0)
			w.send(2, 900)
			w.ack(0x40, 900, 0)
			w.send(12, 3)
			w.ack(0x50, 3, 0)
			w.handled(receiveMaximum + 2)
			if w.v5 {
				w.send(4, 100)
				w.closed(0x93)
				return
			}
			for id := range uint16(5000) {
				w.send(4, id+100)
				w.ack(0x50, id+100, 0)
			}
			w.handled(receiveMaximum + 2 + 5000)
		},
	},
	{
		v3: "3.3.5-2", v5: "3.3.4-1",
		what: "a message to a foreign topic is acknowledged and dropped; 5.0 says so with code 0x87",
		test: func(w *wire) {
			w.connect()
			for i, topic := range []string{downTopic(testID(2)), "$SYS/x", "$share/x", "a", upTopic(w.id) + "/"} {
				id := uint16(i + 1)
				w.write(w.messageTo(topic, 0, 0, nil, message))
				w.write(w.messageTo(topic, 2, id, nil, message))
				w.ack(0x40, id, 0x87)
				w.write(w.messageTo(topic, 4, id, nil, message))
				w.ack(0x50, id, 0x87)
				w.release(id)
				w.ack(0x70, id, 0x92)
			}
			w.handled(0)
			if n := w.b.Stats().ForeignTopics; n != 15 {
				w.t.Errorf("%d messages counted", n)
			}
		},
	},
	{
		v5:   "4.3.3-9",
		what: "an identifier is free after a PUBREC that refuses its message",
		test: func(w *wire) {
			w.connect()
			w.write(w.messageTo("a/b", 4, 7, nil, message))
			w.ack(0x50, 7, 0x87)
			w.send(4, 7)
			w.ack(0x50, 7, 0)
			w.handled(1)
		},
	},
	{
		v3: "4.3.3-2", v5: "4.3.3-8",
		what: "a message that cannot be read is acknowledged",
		test: func(w *wire) {
			w.connect()
			for i, payload := range []string{"", "garbage", "\xff\x00", strings.Repeat("x", maxPacket-100)} {
				for _, flags := range []byte{2, 4} {
					w.write(w.messageTo(upTopic(w.id), flags, uint16(i+1), nil, payload))
					w.ack(map[byte]byte{2: 0x40, 4: 0x50}[flags], uint16(i+1), 0)
				}
			}
			w.handled(0)
			fleettest.Eventually(w.t, "counting", func() bool { return w.b.Stats().Unreadable == 8 })
		},
	},
	{
		v3: "3.3.1-4", v5: "3.3.1-4",
		what: "QoS 3 ends the connection",
		test: func(w *wire) {
			w.connect()
			w.send(6, 7)
			w.closed(0x81)
		},
	},
	{
		v3: "3.3.1-2", v5: "3.3.1-2",
		what: "the flag for duplicates at QoS 0 ends the connection",
		test: func(w *wire) {
			w.connect()
			w.send(8, 0)
			w.closed(0x81)
		},
	},
	{
		v3: "2.3.1-1", v5: "2.2.1-3",
		what: "packet identifier 0 ends the connection",
		test: func(w *wire) {
			for _, flags := range []byte{2, 4} {
				c := w.again()
				c.connect()
				c.send(flags, 0)
				c.closed(0x82)
			}
		},
	},
	{
		v3: "3.3.2-2", v5: "3.3.2-2",
		what: "a topic with wildcards ends the connection",
		test: func(w *wire) {
			for _, topic := range []string{"#", "fleet/+/up"} {
				c := w.again()
				c.connect()
				c.write(c.messageTo(topic, 4, 7, nil, message))
				c.closed(0x82)
			}
		},
	},
	{
		v3: "4.7.3-1", v5: "4.7.3-1",
		what: "an empty topic ends the connection",
		test: func(w *wire) {
			w.connect()
			w.write(w.messageTo("", 0, 0, nil, message))
			w.closed(0x82)
		},
	},
	{
		v3:      "3.3.1-5",
		what:    "a message with the retain flag is stored; it is handled like any other",
		refused: byRetained,
		suite:   []string{"3.retained_messages"},
		test: func(w *wire) {
			w.connect()
			w.send(1, 0)
			w.send(3, 7)
			w.ack(0x40, 7, 0)
			w.send(5, 8)
			w.ack(0x50, 8, 0)
			w.handled(3)
			if n := len(w.b.edge.MQTT().Topics.Messages("fleet/#")); n != 0 {
				w.t.Errorf("%d messages retained", n)
			}
		},
	},
	{
		v5:      "3.2.2-14, 3.3.1-5",
		what:    "a message with the retain flag is stored; CONNACK says no, and the connection ends with code 0x9A",
		refused: byRetained,
		suite:   []string{"5.retained_message"},
		test: func(w *wire) {
			w.connect()
			w.send(1, 0)
			w.closed(0x9a)
		},
	},
	{
		v5:    "3.2.2-17, 3.2.2-18, 3.3.2-9",
		what:  "a topic alias beyond the maximum, which is 0, ends the connection with code 0x94",
		suite: []string{"5.client_topic_alias"},
		test: func(w *wire) {
			w.connect()
			w.write(w.messageTo(upTopic(w.id), 0, 0, []byte{0x23, 0, 1}, message))
			w.closed(0x94)
		},
	},
	{
		v5:    "3.1.2-26, 3.1.2-27",
		what:  "no message to the device has a topic alias, even if the device allows one",
		suite: []string{"5.server_topic_alias"},
		test: func(w *wire) {
			h := w.hello()
			h.props = []byte{0x22, 0, 10}
			w.connectWith(h)
			fleettest.Eventually(w.t, "the connection", func() bool { return w.b.registry.connection(w.id) != nil })
			for range 3 {
				if err := w.b.registry.connection(w.id).deliver([]byte("{}")); err != nil {
					w.t.Fatal(err)
				}
				body := w.expect(0x30)
				n := 2 + int(binary.BigEndian.Uint16(body))
				if topic := string(body[2:n]); topic != downTopic(w.id) || body[n] != 0 {
					w.t.Errorf("topic %q, %d bytes of properties", topic, body[n])
				}
			}
		},
	},
	{
		v5:   "3.3.4-6",
		what: "a message with a subscription identifier ends the connection",
		test: func(w *wire) {
			w.connect()
			w.write(w.messageTo(upTopic(w.id), 0, 0, []byte{0x0b, 1}, message))
			w.closed(0x82)
		},
	},
	{
		v5:   "3.3.2-13, 3.3.2-19",
		what: "messages with properties are handled",
		suite: []string{
			"5.user_properties", "5.payload_format", "5.publication_expiry", "5.request_response",
		},
		test: func(w *wire) {
			w.connect()
			props := append([]byte{0x01, 1, 0x02, 0, 0, 0, 9, 0x26}, append(str("a"), str("2")...)...)
			props = append(append(append(props, 0x08), str("answer")...), append([]byte{0x09}, str("id")...)...)
			props = append(append(props, 0x03), str("text/plain")...)
			for _, flags := range []byte{0, 2, 4} {
				w.write(w.messageTo(upTopic(w.id), flags, 7, props, message))
			}
			w.ack(0x40, 7, 0)
			w.ack(0x50, 7, 0)
			w.handled(3)
		},
	},
	{
		v3: "none", v5: "3.2.2-15",
		what:  "a packet longer than 512 KiB ends the connection, in 5.0 with code 0x95; earlier packets are handled",
		suite: []string{"5.maximum_packet_size"},
		test: func(w *wire) {
			w.connect()
			long := w.messageTo(upTopic(w.id), 0, 0, nil, strings.Repeat("x", maxPacket))
			w.write(append(w.messageTo(upTopic(w.id), 0, 0, nil, message), long...))
			w.closed(0x95)
			fleettest.Eventually(w.t, "the message before is handled", func() bool { return w.dom.count("notified") == 1 })
		},
	},
	{
		v5:    "3.1.2-24, 3.1.2-25",
		what:  "a packet longer than the device accepts is not sent",
		suite: []string{"5.maximum_packet_size"},
		test: func(w *wire) {
			h := w.hello()
			h.props = []byte{0x27, 0, 0, 1, 0}
			w.connectWith(h)
			w.ping()
			fleettest.Eventually(w.t, "it is connected", func() bool { _, ok := w.b.Connection(w.id); return ok })
			_, err := makeCall(w.b, w.id, "x", fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", 300)), deadline, nil)
			if err == nil || !strings.Contains(err.Error(), "at most 256 bytes") {
				w.t.Errorf("error %v", err)
			}
		},
	},
	{
		v3: "3.6.1-1", v5: "3.6.1-1",
		what: "PUBREL with other flags ends the connection",
		test: func(w *wire) {
			w.connect()
			w.write(frame(0x60, idBytes(7)))
			w.closed(0x81)
		},
	},
	{
		v3: "3.3.5-1, 4.3.1-1", v5: "4.3.1-1",
		what: "messages to the device are at QoS 0, and need no SUBSCRIBE",
		test: func(w *wire) {
			w.connect()
			if body := w.expect(0x30); !bytes.Contains(body, []byte("initialize")) {
				w.t.Errorf("message %q", body)
			}
		},
	},

	// SUBSCRIBE
	{
		v3: "3.8.4-1, 3.8.4-2, 3.8.4-3", v5: "3.8.4-1, 3.8.4-2, 3.8.4-3, 3.8.4-7",
		what:  "a device can subscribe to its own topic at any QoS, again and again",
		suite: []string{"3.basic", "5.basic", "5.subscribe_options"},
		test: func(w *wire) {
			w.connect()
			for qos := range byte(3) {
				codes := w.subscribe(uint16(qos)+1, nil, wish{downTopic(w.id), qos})
				w.wantCodes(codes, []byte{qos}, []byte{qos})
			}
			if w.v5 {
				w.wantCodes(w.subscribe(9, nil, wish{downTopic(w.id), 0x2e}), nil, []byte{2})
			}
		},
	},
	{
		v3: "3.8.4-4, 3.8.4-5, 3.9.3-1", v5: "3.8.4-5, 3.8.4-6, 3.9.3-1",
		what:  "each filter has its own code, in order; refused filters have an error code",
		suite: []string{"3.subscribe_failure", "5.subscribe_failure"},
		test: func(w *wire) {
			w.connect()
			codes := w.subscribe(9, nil, wish{"a", 0}, wish{downTopic(w.id), 1}, wish{upTopic(w.id), 1},
				wish{downTopic(testID(2)), 2}, wish{"", 0})
			w.wantCodes(codes, []byte{0x80, 1, 0x80, 0x80, 0x80}, []byte{0x87, 1, 0x87, 0x87, 0x8f})
		},
	},
	{
		v3: "3.8.3-2", v5: "3.8.4-7",
		what:    "filters with wildcards",
		refused: byFilters,
		suite: []string{
			"3.retained_messages", "3.overlapping_subscriptions", "3.dollar_topics",
			"5.overlapping_subscriptions", "5.dollar_topics",
		},
		test: func(w *wire) {
			w.connect()
			w.wantCodes(w.subscribe(9, nil, wish{"#", 0}, wish{"devices/p2p/+", 0}, wish{"$SYS/#", 0}),
				[]byte{0x80, 0x80, 0x80}, []byte{0xa2, 0xa2, 0xa2})
		},
	},
	{
		v5:      "4.8.2-1, 3.8.3-4",
		what:    "shared subscriptions",
		refused: byFilters,
		suite:   []string{"5.shared_subscriptions"},
		test: func(w *wire) {
			w.connect()
			codes := w.subscribe(9, nil, wish{"$share/g/" + downTopic(w.id), 0}, wish{"$share/g/a", 4}, wish{"$share", 0})
			w.wantCodes(codes, nil, []byte{0x9e, 0x9e, 0x9e})
		},
	},
	{
		v5:      "3.3.4-3",
		what:    "subscription identifiers",
		refused: byFilters,
		suite:   []string{"5.subscribe_identifiers"},
		test: func(w *wire) {
			w.connect()
			w.wantCodes(w.subscribe(9, []byte{0x0b, 1}, wish{downTopic(w.id), 0}, wish{"a", 0}), nil, []byte{0xa1, 0xa1})
			w.wantCodes(w.unsubscribe(10, downTopic(w.id)), nil, []byte{0x11})
		},
	},
	{
		v5:      "3.3.1-9 to 3.3.1-13, 3.8.3-3",
		what:    "options of subscriptions are accepted; they are about messages that are not routed",
		refused: byRouting,
		suite:   []string{"5.subscribe_options"},
		test: func(w *wire) {
			w.connect()
			for _, options := range []byte{0x04, 0x08, 0x10, 0x20} {
				w.wantCodes(w.subscribe(9, nil, wish{downTopic(w.id), options}), nil, []byte{0})
			}
		},
	},
	{
		v3: "3.8.1-1", v5: "3.8.1-1",
		what: "SUBSCRIBE with other flags ends the connection",
		test: func(w *wire) {
			w.connect()
			w.write(frame(0x80, append(append([]byte{0, 9}, str("a")...), 0)))
			w.closed(0x81)
		},
	},
	{
		v3: "3.8.3-3", v5: "3.8.3-2",
		what: "SUBSCRIBE without a filter ends the connection",
		test: func(w *wire) {
			w.connect()
			w.write(frame(0x82, by(w, []byte{0, 9}, []byte{0, 9, 0})))
			w.closed(0x82)
		},
	},
	{
		v3: "3.8.3-4", v5: "3.8.3-5",
		what: "reserved bits of a filter's options end the connection",
		test: func(w *wire) {
			for _, options := range by(w, []byte{3, 4, 0x80}, []byte{3, 0x30, 0x40, 0x80}) {
				c := w.again()
				c.connect()
				c.write(frame(0x82, append(append(by(c, []byte{0, 9}, []byte{0, 9, 0}), str("a")...), options)))
				c.closed(0x81)
			}
		},
	},
	{
		v3: "2.3.1-1", v5: "2.2.1-3",
		what: "SUBSCRIBE and UNSUBSCRIBE with identifier 0 end the connection",
		test: func(w *wire) {
			for _, kind := range []byte{0x82, 0xa2} {
				c := w.again()
				c.connect()
				body := append(by(c, []byte{0, 0}, []byte{0, 0, 0}), str("a")...)
				if kind == 0x82 {
					body = append(body, 0)
				}
				c.write(frame(kind, body))
				c.closed(0x82)
			}
		},
	},
	{
		v3: "3.10.4-4, 3.10.4-5, 3.10.4-6", v5: "3.10.4-4, 3.10.4-5, 3.10.4-6, 3.11.3-1",
		what:  "UNSUBSCRIBE is answered, whether or not there was a subscription",
		suite: []string{"3.unsubscribe", "5.unsubscribe"},
		test: func(w *wire) {
			w.connect()
			w.subscribe(9, nil, wish{downTopic(w.id), 1})
			w.wantCodes(w.unsubscribe(10, "a", downTopic(w.id)), nil, []byte{0x11, 0})
			w.wantCodes(w.unsubscribe(11, downTopic(w.id)), nil, []byte{0x11})
		},
	},
	{
		v3: "3.10.1-1", v5: "3.10.1-1",
		what: "UNSUBSCRIBE with other flags ends the connection",
		test: func(w *wire) {
			w.connect()
			w.write(frame(0xa0, append([]byte{0, 9}, str("a")...)))
			w.closed(0x81)
		},
	},
	{
		v3: "3.10.3-2", v5: "3.10.3-2",
		what: "UNSUBSCRIBE without a filter ends the connection",
		test: func(w *wire) {
			w.connect()
			w.write(frame(0xa2, by(w, []byte{0, 9}, []byte{0, 9, 0})))
			w.closed(0x82)
		},
	},

	// Other packets
	{
		v3: "3.12.4-1", v5: "3.12.4-1",
		what: "PINGREQ is answered",
		test: func(w *wire) {
			w.connect()
			w.ping()
		},
	},
	{
		v3: "2.2.2-2", v5: "2.1.3-1",
		what: "reserved flags of a packet end the connection",
		test: func(w *wire) {
			for _, header := range []byte{0xc1, 0x42, 0x5f, 0x78} {
				c := w.again()
				c.connect()
				c.write([]byte{header, 2, 0, 7})
				c.closed(0x81)
			}
		},
	},
	{
		v3: "4.8.0-1", v5: "4.13.1-1",
		what: "packets that only a server sends end the connection",
		test: func(w *wire) {
			for _, header := range []byte{0x00, 0x20, 0x90, 0xb0, 0xd0} {
				c := w.again()
				c.connect()
				c.write([]byte{header, 2, 0, 0})
				c.closed(0x82)
			}
		},
	},
	{
		v3: "3.14.4-2", v5: "3.14.4-3",
		what: "DISCONNECT ends the connection in good order",
		test: func(w *wire) {
			w.connect()
			w.write([]byte{0xe0, 0})
			w.closed(0)
			want := fmt.Sprintf("disconnected %s clean=true", w.id)
			fleettest.Eventually(w.t, want, func() bool { return w.dom.count(want) == 1 })
		},
	},
	{
		v3: "3.14.1-1", v5: "3.14.1-1",
		what: "DISCONNECT with other flags ends the connection as an error",
		test: func(w *wire) {
			w.connect()
			w.write([]byte{0xe1, 0})
			w.closed(0x81)
			want := fmt.Sprintf("disconnected %s clean=false", w.id)
			fleettest.Eventually(w.t, want, func() bool { return w.dom.count(want) == 1 })
		},
	},
	{
		v5:    "4.13.1-1",
		what:  "DISCONNECT that asks for a session which CONNECT did not ask for is an error",
		suite: []string{"5.session_expiry"},
		test: func(w *wire) {
			w.connect()
			w.write([]byte{0xe0, 7, 0, 5, 0x11, 0, 0, 0, 9})
			w.closed(0x82)
			want := fmt.Sprintf("disconnected %s clean=false", w.id)
			fleettest.Eventually(w.t, want, func() bool { return w.dom.count(want) == 1 })
		},
	},
}

// willing returns a CONNECT with a will.
func (w *wire) willing(flags byte, topic string) []byte {
	h := w.hello()
	h.flags |= flags
	props := by(w, nil, []byte{0})
	will := slices.Concat(props, str(topic), str(message))
	h.payload = slices.Concat(str(testClientID(1)), will, str("user"), str(passwordOf(testClientID(1))))
	return h.bytes()
}

// connackOnly reads a CONNACK whose CONNECT was sent by other means.
func (w *wire) connackOnly() (flags, code byte, props map[byte]uint32) {
	w.t.Helper()
	body := w.expect(0x20)
	return body[0], body[1], nil
}
