package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// mosquitto runs one of Debian's MQTT clients as the test's n-th device.
func mosquitto(t *testing.T, b *system, n int, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian: mosquitto-clients)", name)
	}
	host, port, _ := strings.Cut(b.Addr().String(), ":")
	id := testClientID(n)
	args = append([]string{"-h", host, "-p", port, "-i", id, "-u", "user", "-P", passwordOf(id)}, args...)
	return exec.CommandContext(t.Context(), path, args...)
}

// A mosquitto client receives a call and, since it cannot answer on the same
// connection, answers over a later one.
func TestMosquittoDevice(t *testing.T) {
	for _, version := range []string{"mqttv311", "mqttv5"} {
		t.Run(version, func(t *testing.T) {
			b, dom := start(t, nil)
			id := testID(1)
			sub := mosquitto(t, b, 1, "mosquitto_sub", "-V", version, "-t", downTopic(id), "-C", "3", "-W", "60")
			out, err := sub.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := sub.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			fleettest.Eventually(t, "mosquitto_sub connects", func() bool { return b.registry.connection(id) != nil })
			if !lines.Scan() || !strings.Contains(lines.Text(), "initialize") {
				t.Fatalf("mosquitto_sub was told %q", lines.Text())
			}
			late := make(chan fleet.Answer, 1)
			lost := make(chan error, 1)
			go func() {
				_, err := makeCall(b, id, "self.get_device_status", `{}`, deadline, func(a fleet.Answer) { late <- a })
				lost <- err
			}()
			b.registry.connection(id).session.Receive(initAnswer(lines.Text()))
			rpcID := int64(0)
			for rpcID == 0 && lines.Scan() {
				rpcID = calledID(lines.Text(), "self.get_device_status")
			}
			if rpcID == 0 {
				t.Fatal("mosquitto_sub was not told the call")
			}
			_ = sub.Wait() // it ends after three messages
			if err := <-lost; !errors.Is(err, fleet.ErrLost) {
				t.Errorf("call: %v, want %v", err, fleet.ErrLost)
			}
			answer := fmt.Sprintf(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":%d,%s}}`, rpcID, textResult("from mosquitto"))
			if out, err := mosquitto(t, b, 1, "mosquitto_pub", "-V", version, "-t", upTopic(id), "-q", "1", "-m",
				answer).CombinedOutput(); err != nil {
				t.Fatalf("mosquitto_pub: %v: %s", err, out)
			}
			if a := <-late; a.Text != "from mosquitto" {
				t.Errorf("late answer %q", a.Text)
			}
			if dom.count("connected") != 2 {
				t.Errorf("connections:\n%s", dom.happened())
			}
		})
	}
}

func calledID(line, tool string) int64 {
	var m struct {
		Payload rpc `json:"payload"`
	}
	if json.Unmarshal([]byte(line), &m) != nil || m.Payload.Method != "tools/call" ||
		!strings.Contains(string(m.Payload.Params), tool) {
		return 0
	}
	return m.Payload.ID
}

func TestMosquittoIsRefused(t *testing.T) {
	b, dom := start(t, nil)
	other := connectRaw(t, b, connectPacket{clientID: testClientID(2)})
	other.serve(nil)
	out, err := mosquitto(t, b, 1, "mosquitto_pub", "-t", upTopic(testID(1)), "-m", "x", "-P", "wrong").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "not authorised") {
		t.Errorf("wrong password: %v: %s", err, out)
	}
	out, err = mosquitto(t, b, 1, "mosquitto_sub", "-t", downTopic(testID(2)), "-W", "60").CombinedOutput()
	if !strings.Contains(string(out), "rejected") && !strings.Contains(string(out), "denied") {
		t.Errorf("another device's topic: %v: %s", err, out)
	}
	will := []string{"--will-topic", downTopic(testID(2)), "--will-payload", "x", "-t", upTopic(testID(2)),
		"-m", `{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/x"}}`}
	if out, err := mosquitto(t, b, 1, "mosquitto_pub", will...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	fleettest.Eventually(t, "the publish is dropped", func() bool { return b.Stats().ForeignTopics == 1 })
	if dom.count("notified") != 0 {
		t.Errorf("a message of another device was taken:\n%s", dom.happened())
	}
}

// A device written with paho's MQTT 5 client lists its tools and answers calls.
func TestPahoDevice(t *testing.T) {
	b, dom := start(t, func(o *options) { o.Devices.(*domain).fresh = false })
	clientID := testClientID(1)
	id := testID(1)
	cm := startPaho(t, b, clientID, func(cm *autopaho.ConnectionManager, payload []byte) {
		reply := pahoReply(payload)
		if reply == "" {
			return
		}
		// The first request can come before paho has noticed that it is connected.
		err := cm.AwaitConnection(t.Context())
		if err == nil {
			_, err = cm.Publish(t.Context(), &paho.Publish{Topic: upTopic(id), QoS: 1, Payload: []byte(reply)})
		}
		if err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	fleettest.Eventually(t, "a listing", func() bool { return len(dom.listed()) == 1 })
	if l := dom.listed()[0]; len(l.Inventory.Tools) != 2 || l.ServerName != "paho" || l.Partial {
		t.Errorf("listing %+v", l)
	}
	for i := range 20 {
		want := strings.Repeat("x", i*1000)
		a, err := makeCall(b, id, "echo", fmt.Sprintf(`{"text":%q}`, want[:min(i*100, 2000)]), deadline, nil)
		if err != nil || a.IsError {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if err := cm.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
	want := "disconnected " + string(id) + " clean=true"
	fleettest.Eventually(t, want, func() bool { return dom.count(want) == 1 })
}

func startPaho(t *testing.T, b *system, clientID string, on func(*autopaho.ConnectionManager,
	[]byte)) *autopaho.ConnectionManager {
	t.Helper()
	u, err := url.Parse("mqtt://" + b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var cm *autopaho.ConnectionManager
	ready := make(chan struct{})
	up := make(chan struct{}, 10)
	cfg := autopaho.ClientConfig{
		ServerUrls: []*url.URL{u}, KeepAlive: 30, ConnectUsername: "user", ConnectPassword: []byte(passwordOf(clientID)),
		ConnectTimeout:        deadline,
		SessionExpiryInterval: 3600, // requested but not granted
		WillMessage:           &paho.WillMessage{Topic: upTopic(deviceOfClientID(clientID)), Payload: []byte("gone")},
		OnConnectionUp: func(cm *autopaho.ConnectionManager, ack *paho.Connack) {
			if p := ack.Properties; ack.SessionPresent || p.RetainAvailable || p.WildcardSubAvailable || p.SharedSubAvailable ||
				p.MaximumQoS != nil ||
				p.SessionExpiryInterval == nil || *p.SessionExpiryInterval != 0 {
				t.Errorf("CONNACK %+v %+v", ack, ack.Properties)
			}
			up <- struct{}{}
		},
		ClientConfig: paho.ClientConfig{
			ClientID:      clientID,
			PacketTimeout: deadline,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
				payload := p.Packet.Payload
				go func() { <-ready; on(cm, payload) }()
				return true, nil
			}},
		},
	}
	cm, err = autopaho.NewConnection(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	close(ready)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = cm.Disconnect(ctx)
		<-cm.Done()
	})
	select {
	case <-up:
	case <-time.After(deadline):
		t.Fatal("paho does not connect")
	}
	return cm
}

func pahoReply(payload []byte) string {
	var m struct {
		Payload rpc `json:"payload"`
	}
	if json.Unmarshal(payload, &m) != nil || m.Payload.ID == 0 {
		return ""
	}
	result := `{"content":[{"type":"text","text":"true"}],"isError":false}`
	switch m.Payload.Method {
	case "initialize":
		result = `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"paho","version":"1"}}`
	case "tools/list":
		result = "{\"tools\":[" + toolJSON("echo", "") + "," + toolJSON("self.reboot", userOnly) + "]}"
	}
	return fmt.Sprintf(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":%d,"result":%s}}`, m.Payload.ID, result)
}

// initAnswer returns the answer to an initialize request.
func initAnswer(line string) []byte {
	var m struct {
		Payload rpc `json:"payload"`
	}
	_ = json.Unmarshal([]byte(line), &m)
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,%s}`, m.Payload.ID, initResult)
}
