package broker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"fleetd/fleet/fleettest"
)

// mosquitto_pub at QoS 2 ends without an error after PUBCOMP, or if it has nothing to wait for.
// Each of its messages is handled once.
func TestMosquittoQoS2(t *testing.T) {
	for _, version := range []string{"31", "311", "5"} {
		t.Run(version, func(t *testing.T) {
			b, dom := start(t, nil)
			pub := mosquitto(t, b, 1, "mosquitto_pub", "-V", version, "-q", "2", "-t", upTopic(testID(1)), "-l")
			pub.Stdin = strings.NewReader(strings.Repeat(message+"\n", 200)) // more than it keeps in flight
			if out, err := pub.CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("mosquitto_pub: %v: %s", err, out)
			}
			if n := dom.count("notified"); n != 200 {
				t.Errorf("%d messages were handled, want 200", n)
			}
		})
	}
}

// A publish to a foreign topic is acknowledged: mosquitto_pub ends, and in MQTT 5 reports the
// refusal.
func TestMosquittoForeignTopic(t *testing.T) {
	for _, version := range []string{"311", "5"} {
		for _, qos := range []string{"1", "2"} {
			t.Run(version+" "+qos, func(t *testing.T) {
				b, dom := start(t, nil)
				args := []string{"-V", version, "-q", qos, "-t", upTopic(testID(2)), "-m", message}
				pub := mosquitto(t, b, 1, "mosquitto_pub", args...)
				out, err := pub.CombinedOutput()
				if version == "311" && (err != nil || len(out) > 0) {
					t.Errorf("mosquitto_pub: %v: %s", err, out)
				}
				if version == "5" && !strings.Contains(strings.ToLower(string(out)), "not authorized") {
					t.Errorf("mosquitto_pub does not say why: %v: %s", err, out)
				}
				if n := b.Stats().ForeignTopics; n != 1 || dom.count("notified") != 0 {
					t.Errorf("%d messages dropped; %s", n, dom.happened())
				}
			})
		}
	}
}

func TestMosquittoSubscribeQoS2(t *testing.T) {
	for _, version := range []string{"311", "5"} {
		t.Run(version, func(t *testing.T) {
			b, _ := start(t, nil)
			args := []string{"-V", version, "-q", "2", "-t", downTopic(testID(1)), "-C", "1", "-W", "60"}
			sub := mosquitto(t, b, 1, "mosquitto_sub", args...)
			out, err := sub.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "initialize") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// Paho respects Receive Maximum, so each of hundreds of simultaneous messages arrives once.
func TestPahoQoS2(t *testing.T) {
	b, dom := start(t, nil)
	id := testID(1)
	cm := startPaho(t, b, testClientID(1), func(*autopaho.ConnectionManager, []byte) {})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	const messages = 300
	errs := make(chan error, messages)
	for range messages {
		go func() {
			_, err := cm.Publish(ctx, &paho.Publish{Topic: upTopic(id), QoS: 2, Payload: []byte(message)})
			errs <- err
		}()
	}
	for range messages {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	fleettest.Eventually(t, "all messages are handled", func() bool { return dom.count("notified") >= messages })
	if n := dom.count("notified"); n != messages {
		t.Errorf("%d messages were handled, want %d", n, messages)
	}
	for _, qos := range []byte{1, 2} {
		r, err := cm.Publish(ctx, &paho.Publish{Topic: upTopic(testID(2)), QoS: qos, Payload: []byte(message)})
		if r == nil || r.ReasonCode != 0x87 {
			t.Errorf("foreign topic at QoS %d: %+v, %v", qos, r, err)
		}
	}
	if s := b.Stats(); s.Connects != 1 || s.ProtocolErrors != 0 {
		t.Errorf("%d connections, %d errors", s.Connects, s.ProtocolErrors)
	}
}

// A device that floods the broker at QoS 2 and never releases uses up its own identifiers, and
// does not affect other devices.
func TestQoS2Flood(t *testing.T) {
	b, dom := start(t, nil)
	bystander := connectRaw(t, b, connectPacket{clientID: testClientID(2)})
	bystander.serve(nil)
	flooder := &wire{rawDevice: connectRaw(t, b, connectPacket{clientID: testClientID(1)}), b: b, dom: dom, version: 4}
	done := make(chan struct{})
	go func() { // reads all packets; otherwise the broker would disconnect it
		defer close(done)
		_ = flooder.ended(deadline)
	}()
	slowest := time.Duration(0)
	for round := range 2 {
		var batch []byte
		for id := 1; id < 1<<16; id++ {
			payload := "garbage"
			if round == 0 && id%1000 == 0 {
				payload = message
			}
			batch = append(batch, flooder.messageTo(upTopic(flooder.id), 4, uint16(id), nil, payload)...)
			if len(batch) > 64<<10 {
				flooder.write(batch)
				batch = batch[:0]
				begin := time.Now()
				if _, err := makeCall(b, bystander.id, "x", `{}`, deadline, nil); err != nil {
					t.Error(err)
				}
				slowest = max(slowest, time.Since(begin))
			}
		}
		flooder.write(batch)
	}
	t.Logf("the slowest call of another device took %v", slowest)
	fleettest.Eventually(t, "all are handled", func() bool { return b.Stats().Duplicates == 1<<16-1 })
	if n := dom.count(fmt.Sprintf("notified %s", flooder.id)); n != 65 {
		t.Errorf("%d messages were handled, want 65", n)
	}
	flooder.conn.Close()
	<-done
}
