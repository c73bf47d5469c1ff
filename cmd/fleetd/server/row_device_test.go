package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A rowDevice is a device whose answers a test gives.
type rowDevice struct {
	w      *leaseWorld
	mac    string
	id     fleet.DeviceID
	login  rowLogin
	silent atomic.Bool // it does not answer calls
	board  string
	tools  string // that it lists: JSON

	mu       sync.Mutex
	client   *paho.Client // its newest connection
	requests []rowRequest
}

type rowLogin struct {
	ClientID           string `json:"client_id"`
	Username, Password string
	PublishTopic       string `json:"publish_topic"`
}

type rowRequest struct {
	ID     int64
	Method string
	Params struct {
		Name      string
		Arguments json.RawMessage
	}
}

// newRowDevice returns the n-th own device of the test, which is off.
func (w *leaseWorld) newRowDevice(n int) *rowDevice {
	mac := fmt.Sprintf("02:00:00:00:00:%02x", n)
	return &rowDevice{w: w, mac: mac, id: fleet.DeviceID(strings.ReplaceAll(mac, ":", "")), board: "own",
		tools: rowTool("self.act", "")}
}

// rowTool is a tool in a list. Its properties are texts.
func rowTool(name, description string, properties ...string) string {
	schema := map[string]any{}
	for _, p := range properties {
		schema[p] = map[string]string{"type": "string"}
	}
	tool, _ := json.Marshal(map[string]any{"name": name, "description": description,
		"inputSchema": map[string]any{"type": "object", "properties": schema}})
	return string(tool)
}

// rowDevice polls and connects at an edge as the n-th own device of the test.
func (w *leaseWorld) rowDevice(edge *leaseProcess, n int) *rowDevice {
	w.t.Helper()
	return w.newRowDevice(n).begin(edge)
}

// begin polls and connects at an edge.
func (d *rowDevice) begin(edge *leaseProcess) *rowDevice {
	d.w.t.Helper()
	reply, err := d.poll(edge)
	if err != nil || reply.MQTT.Password == "" {
		d.w.t.Fatalf("boot poll: %+v, %v", reply, err)
	}
	d.login = reply.MQTT
	if err := d.connect(edge); err != nil {
		d.w.t.Fatal(err)
	}
	d.isListed()
	return d
}

// isListed waits until the device is online with its tools.
func (d *rowDevice) isListed() {
	d.w.t.Helper()
	fleettest.EventuallyWithin(d.w.t, time.Minute, "the tools of "+d.mac, func() bool {
		return d.w.count(`SELECT count(*) FROM devices WHERE id = $1 AND presence = 'online' AND tools_count > 0`, d.id) == 1
	})
}

type rowReply struct {
	MQTT       rowLogin
	Activation struct{ Code, Challenge string }
}

func (d *rowDevice) poll(edge *leaseProcess) (reply rowReply, err error) {
	req, err := http.NewRequest("POST", "http://"+edge.http+"/xiaozhi/ota/", strings.NewReader(
		`{"version":2,"application":{"name":"unit","version":"1.0.0","elf_sha256":"`+strings.Repeat("5f", 32)+
			`"},"board":{"type":"`+d.board+`","name":"`+d.board+`"},"chip_model_name":"esp32s3","flash_size":16777216,`+
			`"minimum_free_heap_size":"200000","partition_table":[{"label":"ota_0","type":0,"subtype":16,"size":4194304},`+
			`{"label":"ota_1","type":0,"subtype":17,"size":4194304},{"label":"assets","type":1,"subtype":130,"size":1048576}]}`))
	if err != nil {
		return reply, err
	}
	req.Header.Set("Device-Id", d.mac)
	req.Header.Set("Client-Id", "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b"+d.mac[len(d.mac)-2:])
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply, err
	}
	defer resp.Body.Close()
	return reply, json.NewDecoder(resp.Body).Decode(&reply)
}

// connect opens a connection at the edge. An earlier one stays as it is.
func (d *rowDevice) connect(edge *leaseProcess) error {
	conn, err := net.Dial("tcp", edge.mqtt)
	if err != nil {
		return err
	}
	c := paho.NewClient(paho.ClientConfig{ClientID: d.login.ClientID, Conn: conn, PacketTimeout: time.Minute,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			go d.receive(p.Client, p.Packet.Payload)
			return true, nil
		}}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.Connect(ctx, &paho.Connect{ClientID: d.login.ClientID, KeepAlive: 60, CleanStart: true,
		UsernameFlag: true, Username: d.login.Username, PasswordFlag: true, Password: []byte(d.login.Password)}); err != nil {
		conn.Close()
		return err
	}
	d.w.t.Cleanup(func() { conn.Close() })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.client = c
	return nil
}

func (d *rowDevice) newest() *paho.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.client
}

func (d *rowDevice) receive(c *paho.Client, message []byte) {
	var m struct{ Payload rowRequest }
	_ = json.Unmarshal(message, &m)
	d.mu.Lock()
	d.requests = append(d.requests, m.Payload)
	d.mu.Unlock()
	result := map[string]string{
		"initialize": `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"own","version":"1.0.0"}}`,
		"ping":       `{}`,
		"tools/list": `{"tools":[` + d.tools + `]}`,
	}[m.Payload.Method]
	if m.Payload.Method == "tools/call" && !d.silent.Load() {
		result = rowResult(fmt.Sprintf("answer to %d", m.Payload.ID))
	}
	if result != "" {
		d.say(c, m.Payload.ID, result)
	}
}

func rowResult(text string) string {
	return fmt.Sprintf(`{"content":[{"type":"text","text":%q}],"isError":false}`, text)
}

// say answers a request over a connection.
func (d *rowDevice) say(c *paho.Client, id int64, result string) {
	d.send(c, fmt.Sprintf(`"id":%d,"result":%s`, id, result))
}

// send sends the members of a message of MCP.
func (d *rowDevice) send(c *paho.Client, members string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, _ = c.Publish(ctx, &paho.Publish{Topic: d.login.PublishTopic,
		Payload: []byte(`{"session_id":"","type":"mcp","payload":{"jsonrpc":"2.0",` + members + `}}`)})
}

// received returns the requests with a method, in order.
func (d *rowDevice) received(method string) (all []rowRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.requests {
		if r.Method == method {
			all = append(all, r)
		}
	}
	return all
}

// calls returns how many calls reached the device.
func (d *rowDevice) calls() int { return len(d.received("tools/call")) }

func (d *rowDevice) awaitCalls(n int) {
	d.w.t.Helper()
	fleettest.EventuallyWithin(d.w.t, time.Minute, fmt.Sprintf("%s to get %d calls", d.mac, n), func() bool {
		return d.calls() >= n
	})
}

// arguments decodes the arguments of the only call that the device got.
func (d *rowDevice) arguments(v any) {
	d.w.t.Helper()
	d.awaitCalls(1)
	if err := json.Unmarshal(d.received("tools/call")[0].Params.Arguments, v); err != nil {
		d.w.t.Fatal(err)
	}
}

// joinByCode lets the n-th own device join by the code that it shows, and connects it.
func (w *clusterWorld) joinByCode(edge *leaseProcess, n int) *rowDevice {
	w.t.Helper()
	d := w.newRowDevice(n)
	d.join(edge, d.code(edge))
	return d
}

// code polls and returns the code that the device shows.
func (d *rowDevice) code(edge *leaseProcess) string {
	d.w.t.Helper()
	reply, err := d.poll(edge)
	if err != nil || reply.Activation.Code == "" {
		d.w.t.Fatalf("boot poll: %+v, %v", reply, err)
	}
	return reply.Activation.Code
}

// join claims the device and connects it.
func (d *rowDevice) join(edge *leaseProcess, code string) {
	d.w.t.Helper()
	d.w.rest(edge, d.w.token, "POST", "/devices/claim", map[string]any{"code": code}, nil)
	reply, err := d.poll(edge)
	if err != nil || reply.MQTT.Password == "" {
		d.w.t.Fatalf("boot poll after the claim: %+v, %v", reply, err)
	}
	d.login = reply.MQTT
	if err := d.connect(edge); err != nil {
		d.w.t.Fatal(err)
	}
	d.isListed()
}
