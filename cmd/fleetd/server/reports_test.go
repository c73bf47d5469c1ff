package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
)

// An otherDevice is a device of another maker: it polls once, connects with
// paho's MQTT client and publishes the messages of a test.
type otherDevice struct {
	t      *testing.T
	cm     *autopaho.ConnectionManager
	topic  string
	config string        // its answer to self.config.get
	ready  chan struct{} // closed once cm is there
	dead   atomic.Bool   // it no longer answers
}

func (d *testServer) otherDevice(mac, config string) *otherDevice {
	d.t.Helper()
	req, _ := http.NewRequest("POST", "http://"+d.http+"/xiaozhi/ota/",
		strings.NewReader(`{"version":2,"application":{"name":"unit","version":"1.0.0"},"board":{"type":"own","name":"own"}}`))
	req.Header.Set("Device-Id", mac)
	req.Header.Set("Client-Id", "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	var reply struct {
		MQTT struct {
			Username, Password string
			ClientID           string `json:"client_id"`
			PublishTopic       string `json:"publish_topic"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil || reply.MQTT.Password == "" {
		d.t.Fatalf("the boot poll was answered with %s, %+v, %v", resp.Status, reply, err)
	}
	o := &otherDevice{t: d.t, topic: reply.MQTT.PublishTopic, config: config, ready: make(chan struct{})}
	cfg := autopaho.ClientConfig{
		ServerUrls: []*url.URL{{Scheme: "mqtt", Host: d.mqtt}}, KeepAlive: 30,
		ConnectUsername: reply.MQTT.Username, ConnectPassword: []byte(reply.MQTT.Password),
		ClientConfig: paho.ClientConfig{ClientID: reply.MQTT.ClientID, OnPublishReceived: []func(paho.PublishReceived) (bool,
			error){
			func(p paho.PublishReceived) (bool, error) {
				go o.asked(p.Packet.Payload)
				return true, nil
			}}},
	}
	if o.cm, err = autopaho.NewConnection(d.t.Context(), cfg); err != nil {
		d.t.Fatal(err)
	}
	close(o.ready)
	d.t.Cleanup(func() { <-o.cm.Done() })
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	if err := o.cm.AwaitConnection(ctx); err != nil {
		d.t.Fatal(err)
	}
	return o
}

// asked answers a request of fleetd.
func (o *otherDevice) asked(message []byte) {
	var m struct {
		Payload struct {
			ID     json.RawMessage
			Method string
		}
	}
	_ = json.Unmarshal(message, &m)
	result := map[string]string{
		"initialize": `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"own","version":"1.0.0"}}`,
		"ping":       `{}`,
		"tools/list": `{"tools":[{"name":"self.config.get","description":"","inputSchema":{"type":"object","properties":{}},"annotations":{"audience":["user"]}}]}`,
		"tools/call": fmt.Sprintf(`{"content":[{"type":"text","text":%q}],"isError":false}`, o.config),
	}[m.Payload.Method]
	if result != "" && !o.dead.Load() {
		<-o.ready
		_ = o.say(1, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.Payload.ID, result))
	}
}

func (o *otherDevice) say(qos byte, payload string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := o.cm.AwaitConnection(ctx); err != nil {
		return err
	}
	_, err := o.cm.Publish(ctx, &paho.Publish{Topic: o.topic, QoS: qos,
		Payload: []byte(`{"session_id":"","type":"mcp","payload":` + payload + `}`)})
	return err
}

func (o *otherDevice) report(kind, params string) {
	o.t.Helper()
	if err := o.say(1, `{"jsonrpc":"2.0","method":"notifications/`+kind+`","params":`+params+`}`); err != nil {
		o.t.Errorf("report of %.60s: %v", params, err)
	}
}

type vitalsJSON struct {
	UptimeMS int64 `json:"uptime_ms"`
	Version  string
	SafeMode bool `json:"safe_mode"`
	Heap     struct{ Free int64 }
}

// Programs can read a device's reports over MQTT, even after a restart of
// fleetd; invalid reports do no harm.
func TestReportsEndToEnd(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	o := d.otherDevice("02:00:00:00:00:01", `{"version":7,"on_trial":false,"reverted":0,"values":{"heartbeat_s":30}}`)
	const device = "/devices/020000000001"
	for _, params := range []string{`{"uptime_s":-1}`, `{"uptime_s":1e999}`, `[]`, `"x"`, `{"uptime_s":` +
		strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`} {
		o.report("telemetry", params)
	}
	o.report("no-such-thing", `{}`)
	// This report is too long.
	o.report("telemetry", `{"uptime_s":61,"version":"1.0.0","safe_mode":true,"heap":{"free":123456},"network":{"ssid":"`+
		strings.Repeat("x", 20_000)+`"}}`)
	o.report("telemetry", `{"uptime_s":60,"version":"1.0.0","safe_mode":true,"heap":{"free":123456}}`)
	o.report("job", `{"job":"j1","kind":"upgrade","state":"progress","percent":35}`)
	o.report("config", `{"config":{"version":6,"on_trial":true,"reverted":0,"values":{"heartbeat_s":20}}}`)
	for range 2000 { // more than a device may send
		if err := o.say(0, `{"jsonrpc":"2.0","method":"notifications/job","params":{"job":"flood","kind":"upgrade","state":"progress","percent":1}}`); err != nil {
			t.Fatal(err)
		}
	}

	var v vitalsJSON
	d.eventually("vitals on record", func() bool { return d.rest("GET", device+"/vitals", nil, &v) == http.StatusOK })
	if v.UptimeMS != 60_000 || v.Heap.Free != 123_456 || !v.SafeMode {
		t.Errorf("vitals: %+v", v)
	}
	var jobs list[struct {
		ID, State string
		Percent   int
	}]
	d.eventually("two jobs on record", func() bool {
		d.rest("GET", device+"/jobs", nil, &jobs)
		return len(jobs.Items) == 2
	})
	var config struct{ Version int }
	d.eventually("a configuration on record", func() bool { return d.rest("GET", device+"/config", nil, &config) == http.StatusOK })
	if config.Version != 6 {
		t.Errorf("configuration: %+v", config)
	}
	d.listed(1)
	var call callJSON
	d.rest("POST", device+"/calls", map[string]any{"tool": "self.config.get"}, &call)
	d.eventually("the answer to count as a report", func() bool {
		d.rest("GET", device+"/config", nil, &config)
		return config.Version == 7
	})
	counted := d.metricsText()
	for _, want := range []string{`fleetd_reports_total{kind="telemetry"} 1`,
		`fleetd_reports_dropped_total{kind="telemetry",reason="malformed"} `,
		`fleetd_reports_dropped_total{kind="other",reason="malformed"} 1`,
		`fleetd_reports_dropped_total{kind="job",reason="too_many"} 1`} {
		if !strings.Contains(counted, want) {
			t.Errorf("the metrics lack %s:\n%s", want, counted)
		}
	}

	if none := `fleetd_reports_dropped_total{kind="job",reason="too_many"} 0`; strings.Contains(counted, none) {
		t.Errorf("a flood was taken whole:\n%s", counted)
	}

	d.restart()
	var points list[struct{ Beats int }]
	if status := d.rest("GET", device+"/vitals/history", nil, &points); status != http.StatusOK ||
		len(points.Items) != 1 || points.Items[0].Beats != 1 {
		t.Errorf("history after a restart: %d %+v", status, points)
	}
}
