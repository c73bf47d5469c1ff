package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// A subscriber is a client of the feed that speaks MQTT 3.1.1.
type subscriber struct {
	mqtt.Client
	t    *testing.T
	lost chan error

	mu   sync.Mutex
	list []received
}

type received struct {
	topic, payload string
	retained       bool
	qos            byte
}

// A cloudEvent is a message under fleet/events.
type cloudEvent struct {
	SpecVersion, ID, Source, Type, Subject, Sequence string
	Data                                             json.RawMessage
}

// startFeedServer starts a server with the feed, and two simulated devices, which end turns off.
func startFeedServer(t *testing.T, change func(*Config)) (d *testServer, devices []fleet.DeviceID, end func()) {
	t.Helper()
	d = startTestServer(t, func(c *Config) {
		c.EventsMQTTAddr = freeAddr(t)
		if change != nil {
			change(c)
		}
	})
	_, end = d.simulateFor(sim.Options{Devices: 2, Seed: 7, TimeScale: 0.01, BootDelay: time.Millisecond})
	for _, v := range d.listed(2) {
		devices = append(devices, fleet.DeviceID(v.ID))
	}
	return d, devices, end
}

// subscriber connects with a token. change may be nil.
func (d *testServer) subscriber(t *testing.T, secret string, change func(*mqtt.ClientOptions)) *subscriber {
	t.Helper()
	s := &subscriber{t: t, lost: make(chan error, 1)}
	o := mqtt.NewClientOptions().AddBroker("tcp://" + d.EventsMQTTAddr().String()).SetClientID("sub-" + rand8()).
		SetUsername("anything").SetPassword(secret).SetProtocolVersion(4).SetAutoReconnect(false).SetOrderMatters(true).
		SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.list = append(s.list, received{m.Topic(), string(m.Payload()), m.Retained(), m.Qos()})
		}).
		SetConnectionLostHandler(func(_ mqtt.Client, err error) { s.lost <- err })
	if change != nil {
		change(o)
	}
	s.Client = mqtt.NewClient(o)
	if err := wait(s.Connect()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Disconnect(0) })
	return s
}

func rand8() string { return strconv.FormatInt(time.Now().UnixNano(), 36) }

func wait(token mqtt.Token) error {
	if !token.WaitTimeout(10 * time.Second) {
		return errors.New("no answer")
	}
	return token.Error()
}

// subscribe returns the return code of SUBACK.
func (s *subscriber) subscribe(filter string, qos byte) byte {
	s.t.Helper()
	token := s.Client.Subscribe(filter, qos, nil).(*mqtt.SubscribeToken)
	err := wait(token)
	for _, code := range token.Result() { // paho shortens the filter of a shared subscription
		return code
	}
	s.t.Fatal(filter, err)
	return 0xff
}

// messages returns what has arrived under a prefix.
func (s *subscriber) messages(prefix string) (list []received) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.list {
		if strings.HasPrefix(m.topic, prefix) {
			list = append(list, m)
		}
	}
	return list
}

// has reports whether a payload under the prefix contains the text.
func (s *subscriber) has(prefix, text string) bool {
	return slices.ContainsFunc(s.messages(prefix), func(m received) bool { return strings.Contains(m.payload, text) })
}

// calls returns the ids of the calls that have arrived as entries.
func (s *subscriber) calls() (ids []string) {
	for _, m := range s.messages("fleet/events/call/") {
		var e cloudEvent
		var line struct{ ID string }
		if json.Unmarshal([]byte(m.payload), &e) != nil || json.Unmarshal(e.Data, &line) != nil {
			s.t.Errorf("payload %s", m.payload)
		}
		ids = append(ids, line.ID)
	}
	return ids
}

func (s *subscriber) hasCall(id string) func() bool {
	return func() bool { return slices.Contains(s.calls(), id) }
}

// volume sets the volume by REST, and returns the id of the call.
func (d *testServer) volume(t *testing.T, id fleet.DeviceID) string {
	t.Helper()
	var c struct{ ID, State string }
	d.mqtt5REST(t, "POST", "/devices/"+string(id)+"/calls",
		`{"tool":"self.audio_speaker.set_volume","arguments":{"volume":40},"timeout_ms":20000}`, 200, &c)
	if c.State != "succeeded" {
		t.Fatalf("the call is %s", c.State)
	}
	return c.ID
}

// Programs get the entries as they were sealed, in order, and those of their scope alone.
func TestFeedOfTheRecord(t *testing.T) {
	d, devices, _ := startFeedServer(t, nil)
	_, viewer := d.newToken(t, operator.TokenRequest{Name: "viewer", Role: fleet.RoleViewer})
	_, scoped := d.newToken(t, operator.TokenRequest{Name: "lab", Role: fleet.RoleViewer, Scope: "tag:lab"})
	d.mqtt5REST(t, "PATCH", "/devices/"+string(devices[0]), `{"tags":["lab"]}`, 200, nil)

	all, lab := d.subscriber(t, viewer, nil), d.subscriber(t, scoped, nil)
	only := d.subscriber(t, viewer, nil)
	for s, filter := range map[*subscriber]string{all: "fleet/events/#", lab: "fleet/events/#",
		only: "fleet/events/call/" + string(devices[1])} {
		if code := s.subscribe(filter, 1); code != 1 {
			t.Fatalf("SUBACK %#x for %s", code, filter)
		}
	}
	first, second := d.volume(t, devices[0]), d.volume(t, devices[1])
	another, _ := d.newToken(t, operator.TokenRequest{Name: "another", Role: fleet.RoleViewer}) // about no device
	third := d.volume(t, devices[0])
	d.eventually("the calls of all devices", func() bool { return all.hasCall(first)() && all.hasCall(second)() && all.hasCall(third)() })
	d.eventually("the calls of the scope", func() bool { return lab.hasCall(first)() && lab.hasCall(third)() })
	d.eventually("the calls of a filter", only.hasCall(second))
	if got := only.calls(); len(got) != 1 {
		t.Errorf("the filter for a device got the calls %v", got)
	}

	last := int64(-1)
	tokens := 0
	for _, m := range all.messages("") {
		var e cloudEvent
		if err := json.Unmarshal([]byte(m.payload), &e); err != nil {
			t.Fatalf("%s: %v", m.payload, err)
		}
		number, err := strconv.ParseInt(e.ID, 10, 64)
		if err != nil || number <= last || e.SpecVersion != "1.0" || e.Source != d.Record.Status().Origin || m.qos != 1 || m.retained {
			t.Errorf("event %s after %d, QoS %d, retained %v: %s", e.ID, last, m.qos, m.retained, m.payload)
		}
		last = number
		sealed, err := d.Record.Read(t.Context(), number, number+1)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(sealed[0].Line, e.Data) {
			t.Errorf("entry %d is\n%s, and was sealed as\n%s", number, e.Data, sealed[0].Line)
		}
		if want := "fleet/events/" + sealed[0].Kind + "/"; !strings.HasPrefix(m.topic, want) || e.Type != "fleetd."+sealed[0].Kind {
			t.Errorf("entry %d of kind %s has the topic %s and the type %s", number, sealed[0].Kind, m.topic, e.Type)
		}
		if m.topic == "fleet/events/action/-" && strings.Contains(m.payload, another.ID.String()) {
			tokens++
		}
	}
	if tokens != 1 {
		t.Errorf("%d entries about the new token", tokens)
	}
	for _, m := range lab.messages("") {
		if !strings.HasSuffix(m.topic, "/"+string(devices[0])) || strings.Contains(m.payload, string(devices[1])) {
			t.Errorf("the scoped token got %s %s", m.topic, m.payload)
		}
	}

	// The device leaves the scope and comes back. Only what the scope has now is sent.
	d.mqtt5REST(t, "PATCH", "/devices/"+string(devices[0]), `{"tags":["home"]}`, 200, nil)
	outside := d.volume(t, devices[0])
	d.eventually("the call outside of the scope", all.hasCall(outside))
	d.mqtt5REST(t, "PATCH", "/devices/"+string(devices[0]), `{"tags":["lab"]}`, 200, nil)
	inside := d.volume(t, devices[0])
	d.eventually("the call inside of the scope again", lab.hasCall(inside))
	if lab.hasCall(outside)() {
		t.Error("the scoped token got a call of a device that had left its scope")
	}

	t.Run("mosquitto_sub", func(t *testing.T) {
		path, err := exec.LookPath("mosquitto_sub")
		if err != nil {
			t.Skip("mosquitto_sub is not installed (Debian: mosquitto-clients)")
		}
		host, port, _ := net.SplitHostPort(d.EventsMQTTAddr().String())
		before := d.feed.Stats().Connections
		for _, version := range []string{"mqttv311", "mqttv5"} {
			d.eventually("the earlier connection has ended", func() bool { return d.feed.Stats().Connections == before })
			cmd := exec.CommandContext(t.Context(), path, "-V", version, "-h", host, "-p", port, "-u", "me", "-P", viewer,
				"-q", "1", "-t", "fleet/events/call/+", "-C", "1", "-W", "60", "-v")
			var out, problems bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &problems
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			d.eventually("mosquitto_sub connects", func() bool { return d.feed.Stats().Connections > before })
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			for done := false; !done; { // it may not have subscribed yet
				d.volume(t, devices[1])
				select {
				case err = <-ended:
					done = true
				case <-time.After(100 * time.Millisecond):
				}
			}
			if err != nil || !strings.HasPrefix(out.String(), "fleet/events/call/"+string(devices[1])+" {") {
				t.Errorf("%s: %v %s %s", version, err, out.String(), problems.String())
			}
		}
	})
}

// connectV5 connects with MQTT 5 and returns the reason code of CONNACK.
func (d *testServer) connectV5(t *testing.T, secret string, change func(*paho.Connect)) (c *paho.Client,
	ended chan byte, code byte) {
	t.Helper()
	conn, err := net.Dial("tcp", d.EventsMQTTAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan byte, 1)
	c = paho.NewClient(paho.ClientConfig{Conn: conn,
		OnServerDisconnect: func(p *paho.Disconnect) { ended <- p.ReasonCode }})
	cp := &paho.Connect{ClientID: "v5-" + rand8(), CleanStart: true, KeepAlive: 30, UsernameFlag: true, Username: "me",
		PasswordFlag: true, Password: []byte(secret)}
	if change != nil {
		change(cp)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ack, err := c.Connect(ctx, cp)
	if ack == nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return c, ended, ack.ReasonCode
}

// Others are refused, and clients cannot do anything but read.
func TestFeedRefuses(t *testing.T) {
	d := startTestServer(t, func(c *Config) { c.EventsMQTTAddr = freeAddr(t) })
	_, viewer := d.newToken(t, operator.TokenRequest{Name: "viewer", Role: fleet.RoleViewer})
	_, admin := d.newToken(t, operator.TokenRequest{Name: "admin", Role: fleet.RoleAdmin})
	_, model := d.newToken(t, operator.TokenRequest{Name: "model", Kind: fleet.KindModel, Role: fleet.RoleAdmin,
		Tools: []string{"*"}})
	past := time.Now().Add(-time.Hour)
	_, expired := d.newToken(t, operator.TokenRequest{Name: "expired", Role: fleet.RoleViewer, ExpiresAt: &past})
	gone, revoked := d.newToken(t, operator.TokenRequest{Name: "revoked", Role: fleet.RoleViewer})
	if err := d.Operators.Revoke(t.Context(), testOperator, gone.ID); err != nil {
		t.Fatal(err)
	}
	will := func(c *paho.Connect) {
		c.WillMessage = &paho.WillMessage{Topic: "fleet/events/call/x", Payload: []byte("forged")}
	}
	for name, tt := range map[string]struct {
		secret string
		change func(*paho.Connect)
		code   byte
	}{
		"good":              {viewer, nil, 0},
		"model":             {model, nil, 0x87},
		"expired":           {expired, nil, 0x86},
		"revoked":           {revoked, nil, 0x86},
		"wrong":             {"flt_wrong", nil, 0x86},
		"none":              {"", func(c *paho.Connect) { c.PasswordFlag = false }, 0x86},
		"an operator's":     {"long enough, surely", func(c *paho.Connect) { c.Username = "ana" }, 0x86},
		"a will":            {viewer, will, 0x87},
		"a bad client id":   {viewer, func(c *paho.Connect) { c.ClientID = "a/#" }, 0x85},
		"an assigned id":    {viewer, func(c *paho.Connect) { c.ClientID = "" }, 0},
		"a kept session":    {viewer, func(c *paho.Connect) { c.CleanStart = false }, 0},
		"enhanced sign-in":  {viewer, func(c *paho.Connect) { c.Properties = &paho.ConnectProperties{AuthMethod: "x"} }, 0x8c},
		"a will of a model": {model, will, 0x87},
	} {
		if _, _, code := d.connectV5(t, tt.secret, tt.change); code != tt.code {
			t.Errorf("%s: CONNACK %#x, want %#x", name, code, tt.code)
		}
	}

	for _, secret := range []string{"flt_wrong", model} {
		o := mqtt.NewClientOptions().AddBroker("tcp://" + d.EventsMQTTAddr().String()).SetClientID("old").SetUsername("me").
			SetPassword(secret).SetProtocolVersion(4).SetConnectRetry(false)
		if err := wait(mqtt.NewClient(o).Connect()); !errors.Is(err, packets.ErrorRefusedNotAuthorised) {
			t.Errorf("MQTT 3.1.1: %v", err)
		}
	}

	watch := d.subscriber(t, viewer, nil)
	if code := watch.subscribe("fleet/events/#", 2); code != 1 {
		t.Errorf("SUBACK %#x for QoS 2, want QoS 1", code)
	}
	for _, filter := range []string{"#", "+/events/#", "fleet/#", "fleet/+/#", "$SYS/#", "$share/all/fleet/events/#",
		"homeassistant/#", "fleet/state/#", "fleet/command/#", "$mcp-server/presence/#"} {
		if code := watch.subscribe(filter, 0); code != 0x80 {
			t.Errorf("SUBACK %#x for %s", code, filter)
		}
	}

	// What a client publishes reaches no other client, whatever its role.
	for _, topic := range []string{"fleet/events/call/x", "fleet/events/action/-", "homeassistant/status", "$SYS/x",
		"fleet/command/lamp-1/light.read"} {
		c, _, _ := d.connectV5(t, admin, nil)
		if _, err := c.Publish(t.Context(), &paho.Publish{Topic: topic, Payload: []byte("forged")}); err != nil {
			t.Errorf("%s: %v", topic, err)
		}
		ack, err := c.Publish(t.Context(), &paho.Publish{Topic: topic, Payload: []byte("forged"), QoS: 1})
		if topic == "$SYS/x" {
			continue // paho gets no answer to an invalid topic
		}
		if ack == nil || ack.ReasonCode != 0x87 {
			t.Errorf("PUBACK %+v %v for %s", ack, err, topic)
		}
	}
	raw := d.subscriber(t, admin, nil) // paho.golang would refuse to send this
	raw.Publish("fleet/events/call/x", 0, true, "forged and kept")
	select {
	case <-raw.lost:
	case <-time.After(10 * time.Second):
		t.Error("a client that publishes a retained message stays connected")
	}
	late := d.subscriber(t, viewer, nil)
	late.subscribe("fleet/events/#", 1)
	made, _ := d.newToken(t, operator.TokenRequest{Name: "the end", Role: fleet.RoleViewer})
	for _, s := range []*subscriber{watch, late} {
		d.eventually("the entry about the last token", func() bool { return s.has("", made.ID.String()) })
		for _, m := range s.messages("") {
			if strings.Contains(m.payload, "forged") {
				t.Errorf("a client got %s %s", m.topic, m.payload)
			}
		}
	}

	// Connections of one token are limited, and so are wrong tokens of one address.
	var last byte
	for range 18 {
		_, _, last = d.connectV5(t, admin, nil)
	}
	if last != 0x97 {
		t.Errorf("CONNACK %#x for one connection too many", last)
	}
	for range 31 {
		_, _, last = d.connectV5(t, "flt_guess", nil)
	}
	if last != 0x97 {
		t.Errorf("CONNACK %#x after many wrong tokens", last)
	}
	if n := d.feed.Stats().Refused; n < 31 {
		t.Errorf("%d refused connections are counted", n)
	}
}

// A connection ends when its token is revoked, expires or is given to another scope.
func TestFeedEndsWithTheToken(t *testing.T) {
	d := startTestServer(t, func(c *Config) { c.EventsMQTTAddr = freeAddr(t) })
	made, secret := d.newToken(t, operator.TokenRequest{Name: "short", Role: fleet.RoleViewer})
	soon := time.Now().Add(3 * time.Second)
	_, expires := d.newToken(t, operator.TokenRequest{Name: "expires", Role: fleet.RoleViewer, ExpiresAt: &soon})
	_, ended, code := d.connectV5(t, secret, nil)
	_, expired, codeOfExpiring := d.connectV5(t, expires, nil)
	old := d.subscriber(t, secret, nil)
	if code != 0 || codeOfExpiring != 0 {
		t.Fatalf("CONNACK %#x, %#x", code, codeOfExpiring)
	}
	if err := d.Operators.Revoke(t.Context(), testOperator, made.ID); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]chan byte{"revoked": ended, "expired": expired} {
		select {
		case code := <-c:
			if code != 0x87 {
				t.Errorf("DISCONNECT %#x of a token that %s", code, name)
			}
		case <-time.After(15 * time.Second):
			t.Errorf("a client whose token is %s stays connected", name)
		}
	}
	select {
	case <-old.lost:
	case <-time.After(10 * time.Second):
		t.Error("a client of MQTT 3.1.1 with a revoked token stays connected")
	}
}

// With TLS the client checks the certificate, and autopaho connects again after a restart of fleetd.
func TestFeedTLSAndRestart(t *testing.T) {
	files := newCertFiles(t)
	files.writePair(1, time.Now().Add(24*time.Hour))
	d := startTestServer(t, func(c *Config) {
		c.TLSCert, c.TLSKey = files.cert, files.key
		c.MQTTSAddr, c.EventsMQTTSAddr = freeAddr(t), freeAddr(t)
	})
	if d.EventsMQTTAddr() != nil {
		t.Error("it listens without TLS, too")
	}
	pem, err := os.ReadFile(files.cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	_, secret := d.newToken(t, operator.TokenRequest{Name: "viewer", Role: fleet.RoleViewer})
	u, _ := url.Parse("mqtts://" + d.EventsMQTTSAddr().String())
	got := make(chan string, 100)
	up := make(chan error, 10)
	m, err := autopaho.NewConnection(t.Context(), autopaho.ClientConfig{ServerUrls: []*url.URL{u}, KeepAlive: 10,
		TlsCfg: &tls.Config{RootCAs: roots, ServerName: "fleet.test"}, ConnectUsername: "me", ConnectPassword: []byte(secret),
		ReconnectBackoff: autopaho.NewConstantBackoff(50 * time.Millisecond),
		OnConnectionUp: func(m *autopaho.ConnectionManager, _ *paho.Connack) {
			_, err := m.Subscribe(t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
				{Topic: "fleet/events/action/#", QoS: 1}}})
			up <- err
		},
		ClientConfig: paho.ClientConfig{ClientID: "keeps trying",
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
				got <- string(p.Packet.Payload)
				return true, nil
			}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Disconnect(context.WithoutCancel(t.Context())) })
	for i := range 2 {
		select {
		case err := <-up:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("not connected")
		}
		made, _ := d.newToken(t, operator.TokenRequest{Name: fmt.Sprint("token ", i), Role: fleet.RoleViewer})
		for found := false; !found; {
			select {
			case payload := <-got:
				found = strings.Contains(payload, made.ID.String())
			case <-time.After(30 * time.Second):
				t.Fatal("no entry about the token")
			}
		}
		if i == 0 {
			d.restart()
		}
	}
}

// A token with a scope gets the steps of campaigns that its audit log has, and no call of another campaign.
func TestFeedOfCampaigns(t *testing.T) {
	s := newRightsWorld(t)
	admin := s.token
	scoped, secret := s.newToken(t, operator.TokenRequest{Name: "lab", Role: fleet.RoleViewer, Scope: "tag:lab"})
	_, viewer := s.newToken(t, operator.TokenRequest{Name: "viewer", Role: fleet.RoleViewer})
	lab, all := s.subscriber(t, secret, nil), s.subscriber(t, viewer, nil)
	lab.subscribe("fleet/events/#", 1)
	all.subscribe("fleet/events/#", 1)
	for _, plan := range []struct{ q, version string }{{"tag:lab", "2.5.0"}, {"", "2.6.0"}} {
		q, version := plan.q, plan.version
		release := releaseForSim(t, s.testServer, version)
		var c struct{ ID, State string }
		if status := s.rest("POST", "/campaigns", map[string]any{"name": "campaign to " + version, "release_id": release.ID, "q": q,
			"mode": "push", "waves": []any{map[string]any{"percent": 100, "soak_ms": 100}}}, &c); status != 201 {
			t.Fatalf("planning is answered %d, %+v", status, c)
		}
		if status := s.rest("POST", "/campaigns/"+c.ID+"/start", nil, &c); status != 200 {
			t.Fatalf("the start is answered %d, %+v", status, c)
		}
		s.eventually("the campaign's end", func() bool {
			return s.rest("GET", "/campaigns/"+c.ID, nil, &c) == 200 && strings.HasPrefix(c.State, "completed")
		})
	}
	marker, _ := s.newToken(t, operator.TokenRequest{Name: "marker", Role: fleet.RoleViewer})
	s.mqtt5REST(t, "PATCH", "/devices/"+string(s.lab[0]), `{"notes":"the end"}`, 200, nil)
	s.eventually("the last entries", func() bool {
		return all.has("fleet/events/action/", marker.ID.String()) && lab.has("fleet/events/action/", "notes")
	})

	steps := func(c *subscriber) (ids []string) {
		for _, m := range c.messages("fleet/events/campaign_step/") {
			var e struct{ Data struct{ ID string } }
			if err := json.Unmarshal([]byte(m.payload), &e); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, e.Data.ID)
		}
		slices.Sort(ids)
		return ids
	}
	for name, token := range map[string]struct {
		secret string
		c      *subscriber
	}{"viewer": {admin, all}, scoped.Name: {secret, lab}} {
		s.token = token.secret
		var listed list[struct{ ID string }]
		s.rest("GET", "/audit?kind=campaign_step&limit=500", nil, &listed)
		var want []string
		for _, e := range listed.Items {
			want = append(want, e.ID)
		}
		slices.Sort(want)
		if got := steps(token.c); len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s got %d steps, and the audit log has %d", name, len(got), len(want))
		}
	}
	if a, b := len(steps(lab)), len(steps(all)); a >= b {
		t.Errorf("the scoped token got %d steps of %d", a, b)
	}
	if lab.has("", "campaign to 2.6.0") {
		t.Error("the scoped token got the name of a campaign that reaches beyond its scope")
	}
	if !lab.has("fleet/events/call/", "campaign to 2.5.0") {
		t.Error("the scoped token got no call of a campaign in its scope")
	}
}
