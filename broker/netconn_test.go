package broker

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
)

// note returns a packet with the n-th notification of a device, with the given QoS and the given
// MQTT 5 properties.
func (d *rawDevice) note(n int, qos byte, properties ...byte) []byte {
	body := str(upTopic(d.id))
	if qos > 0 {
		body = append(body, 0, 7)
	}
	if d.v5 {
		body = append(append(body, byte(len(properties))), properties...)
	}
	body = fmt.Appendf(body, `{"type":"mcp","payload":{"jsonrpc":"2.0","method":"note","params":[%d]}}`, n)
	return frame(0x30|qos<<1, body)
}

// Messages that the broker handles without mochi arrive in order with all others, however the
// stream is split.
func TestMessagesKeepTheirOrder(t *testing.T) {
	pingreq := []byte{0xc0, 0}
	for _, version := range []byte{4, 5} {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) {
			b, dom := start(t, nil)
			d := connectRaw(t, b, connectPacket{clientID: testClientID(1), version: version})
			packets := [][]byte{d.note(0, 0), d.note(1, 0), pingreq, d.note(2, 0), d.note(3, 1), d.note(4, 0), d.note(5, 0)}
			if d.v5 {
				packets = append(packets, d.note(6, 0, 1, 1), d.note(7, 0)) // the payload is text
			}
			stream := slices.Concat(packets...)
			sent, want := 0, ""
			for _, step := range []int{len(stream), 1, 50, 97, 130} {
				for part := range slices.Chunk(stream, step) {
					d.write(part)
					if step > 1 {
						time.Sleep(time.Millisecond) // to send the parts one by one
					}
				}
				for n := range packets {
					if n < len(packets)-1 { // one of them is no message
						sent++
						want += fmt.Sprintf("notified %s note [%d]\n", d.id, n)
					}
				}
				fleettest.Eventually(t, "the messages", func() bool { return dom.count("notified") == sent })
			}
			var got string
			for _, e := range slices.Clone(dom.events) {
				if len(e) > 8 && e[:8] == "notified" {
					got += e + "\n"
				}
			}
			if got != want {
				t.Errorf("got\n%s", got)
			}
			if n := b.Stats().PublishesIn; n != int64(sent) {
				t.Errorf("%d messages counted, %d sent", n, sent)
			}
			for pongs := 0; pongs < 5; {
				kind, _, err := d.read()
				if err != nil {
					t.Fatal(err)
				}
				if kind == 0xd0 {
					pongs++
				}
			}
		})
	}
}

// A message resets the keepalive, even if mochi does not see it.
func TestMessagesKeepTheConnection(t *testing.T) {
	t.Parallel()
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1), keepalive: 3})
	time.Sleep(time.Second) // of 4.5 s
	begin := time.Now()
	d.write(d.note(1, 0))
	if err := d.ended(deadline); err != nil {
		t.Error("silence:", err)
	}
	if lasted := time.Since(begin); lasted < 4500*time.Millisecond {
		t.Errorf("the connection ended %v after a message", lasted)
	}
	if n := dom.count("notified"); n != 1 {
		t.Errorf("%d messages were handled", n)
	}
}

// Bytes that the socket does not accept at once are sent later, complete and unmixed.
func TestMessagesToASlowDeviceStayWhole(t *testing.T) {
	b, _ := start(t, func(o *options) { o.WriteBuffer = 4 << 10 })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	if _, err := d.request(); err != nil { // the broker's initialize
		t.Fatal(err)
	}
	c := b.registry.connection(d.id)
	const messages = 6
	for n := range messages {
		if err := c.deliver(bytes.Repeat([]byte{'a' + byte(n)}, 512<<10)); err != nil {
			t.Fatal(err)
		}
		d.write([]byte{0xc0, 0})
	}
	time.Sleep(50 * time.Millisecond) // the socket is full
	pongs := 0
	for n := 0; n < messages || pongs < messages; {
		kind, body, err := d.read()
		switch {
		case err != nil:
			t.Fatal(err)
		case kind == 0xd0:
			pongs++
		default:
			if want := bytes.Repeat([]byte{'a' + byte(n)}, 512<<10); !bytes.HasSuffix(body, want) ||
				len(body) != len(want)+2+len(downTopic(d.id)) {
				t.Fatalf("message %d is damaged", n)
			}
			n++
		}
	}
	if err := c.deliver([]byte("after")); err != nil {
		t.Error(err)
	}
	if _, payload, err := d.message(); payload != "after" {
		t.Errorf("then %q, %v", payload, err)
	}
}
