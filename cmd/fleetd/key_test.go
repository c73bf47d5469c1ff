package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"fleetd/broker/sim"
)

type rotationJSON struct {
	State   string
	Code    string
	Left    int64
	Devices struct {
		New     int64
		Old     int64
		NotSeen int64 `json:"not_seen"`
	}
}

func (d *daemon) rotation() (r rotationJSON) {
	d.rest("GET", "/key-rotation", nil, &r)
	return r
}

// onlineWithTools counts the devices that can be called.
func (d *daemon) onlineWithTools() (n int) {
	var all list[struct {
		Presence   string
		ToolsCount int `json:"tools_count"`
	}]
	d.rest("GET", "/devices", nil, &all)
	for _, dev := range all.Items {
		if dev.Presence == "online" && dev.ToolsCount > 0 {
			n++
		}
	}
	return n
}

// A credential is the mqtt section of an answer to a boot poll.
type credential struct {
	ClientID string `json:"client_id"`
	Username string
	Password string
	Topic    string `json:"publish_topic"`
}

// boardClientID is the Client-Id of boards that a test simulates.
const boardClientID = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10"

// An otaAnswer has the fields of the answer to a boot poll that tests read.
type otaAnswer struct {
	MQTT credential
	Key  struct{ Challenge string } `json:"device_key"`
}

// poll sends the boot poll of a device. It fails if fleetd is killed.
func (d *daemon) poll(device, client string, headers ...string) (a otaAnswer, err error) {
	req, err := http.NewRequest("POST", "http://"+d.http+"/xiaozhi/ota/",
		strings.NewReader(`{"application":{"version":"2.4.0"}}`))
	if err != nil {
		return a, err
	}
	req.Header.Set("Device-Id", device)
	req.Header.Set("Client-Id", client)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	return a, json.NewDecoder(resp.Body).Decode(&a)
}

// pollAs sends the boot poll of an enrolled device.
func (d *daemon) pollAs(device string) credential {
	d.t.Helper()
	a, err := d.poll(device, boardClientID)
	if err != nil || a.MQTT.Password == "" {
		d.t.Fatalf("%v: no credentials", err)
	}
	return a.MQTT
}

// connectWith sends a CONNECT and returns the CONNACK's return code. The
// connection stays open until the test ends.
func (d *daemon) connectWith(c credential) byte {
	d.t.Helper()
	_, code, err := d.dial(c)
	if err != nil {
		d.t.Fatal(err)
	}
	return code
}

// dial is connectWith for tests in which fleetd may be killed.
func (d *daemon) dial(c credential) (_ net.Conn, code byte, _ error) {
	conn, err := net.Dial("tcp", d.mqtt)
	if err != nil {
		return nil, 0, err
	}
	d.t.Cleanup(func() { conn.Close() })
	var body bytes.Buffer
	text := func(s string) {
		_ = binary.Write(&body, binary.BigEndian, uint16(len(s)))
		body.WriteString(s)
	}
	text("MQTT")
	body.Write([]byte{4, 0xc2, 0, 60}) // level 4; user, password, clean session; keepalive
	for _, s := range []string{c.ClientID, c.Username, c.Password} {
		text(s)
	}
	if _, err := conn.Write(packet(0x10, body.Bytes())); err != nil {
		return nil, 0, err
	}
	var ack [4]byte
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(conn, ack[:]); err != nil || ack[0] != 0x20 {
		return nil, 0, fmt.Errorf("%x: %w", ack, err)
	}
	return conn, ack[3], nil
}

// packet returns an MQTT packet.
func packet(kind byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{kind}, uint64(len(body))), body...)
}

// TestSigningKeyRotation runs a rotation with a connected fleet, a board that
// keeps trying its old credentials, and one that is switched off all the time.
// fleetd is killed after each step.
func TestSigningKeyRotation(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	killed := func() {
		d.kill()
		d.start()
	}
	f := d.simulate(sim.Options{Devices: 3, TimeScale: 0.05, BootDelay: 10 * time.Millisecond,
		FirstMAC: "02:f1:ee:00:00:01"})
	connected := func(n int64) {
		t.Helper()
		d.eventually("connected", func() bool { return f.Stats().Connected == n })
	}
	connected(3)
	const off = "02:f1:ee:00:0f:01" // loses its network, and is not restarted
	old := d.pollAs(off)
	if code := d.connectWith(old); code != 0 {
		t.Fatalf("refused with %d", code)
	}

	if status := d.rest("POST", "/key-rotation/start", map[string]string{"confirm": "no"},
		&rotationJSON{}); status != 422 {
		t.Errorf("started without being confirmed: %d", status)
	}
	d.run("key", "rotate", "--confirm", "rotate")
	d.eventually("aware of the rotation", func() bool { return d.rotation().State == "running" })
	if r := d.rotation(); r.Devices.New != 0 || r.Devices.Old != 4 || r.Left != 4 {
		t.Errorf("at the start: %+v", r)
	}
	killed()
	connected(3) // with the old key, which is accepted
	if r := d.rotation(); r.State != "running" || r.Devices.New != 0 {
		t.Errorf("after kill -9: %+v", r)
	}
	if code := d.connectWith(old); code != 0 {
		t.Errorf("the old key is refused during the overlap: %d", code)
	}

	// A gentle restart moves the connected devices to the new key.
	var fanOut struct {
		ID, Code, Detail string
		Targets          int
	}
	d.eventually("all to be seen again", func() bool { return d.onlineWithTools() == 3 })
	if status := d.rest("POST", "/key-rotation/restart", nil, &fanOut); status != 200 || fanOut.Targets != 3 {
		t.Fatalf("restart: %d %+v", status, fanOut)
	}
	d.eventually("over to the new key", func() bool { return d.rotation().Devices.New == 3 })
	connected(3)
	var refused rotationJSON
	if status := d.rest("POST", "/key-rotation/finish", map[string]string{"confirm": "0"}, &refused); status != 409 ||
		refused.Code != "devices_left" {
		t.Errorf("finished over the heads of those left: %d %+v", status, refused)
	}
	killed()
	d.run("key", "finish", "--confirm", "1")
	killed()
	if r := d.rotation(); r.State != "finished" || r.Devices.New != 3 || r.Left != 1 {
		t.Errorf("after the end: %+v", r)
	}
	connected(3) // they have the new key
	for range 2 {
		if code := d.connectWith(old); code == 0 {
			t.Fatal("the old key is accepted after the end")
		}
	}
	resp, err := http.Get("http://" + d.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, _ := io.ReadAll(resp.Body)
	for _, want := range []string{`fleetd_mqtt_refused_total{reason="old_key"} `,
		`fleetd_signing_key_devices{group="new"} 3`, "fleetd_signing_key_generation 1"} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	// After a restart the board polls and gets new credentials. A board that
	// was switched off also polls before it connects.
	if fresh := d.pollAs(off); fresh == old || d.connectWith(fresh) != 0 {
		t.Error("not let in after its restart")
	}
	if left := d.rotation().Left; left != 0 {
		d.eventually("complete", func() bool { return d.rotation().Left == 0 })
	}

	// An abort refuses no device: both keys stay valid until it ends.
	d.run("key", "rotate", "--confirm", "rotate")
	d.eventually("aware of the rotation", func() bool { return d.rotation().State == "running" })
	newest := d.pollAs(off)
	if code := d.connectWith(newest); code != 0 {
		t.Fatalf("refused with %d", code)
	}
	d.run("key", "abort", "--confirm", "abort")
	d.eventually("aborting", func() bool { return d.rotation().State == "aborting" })
	killed()
	if code := d.connectWith(newest); code != 0 {
		t.Errorf("the abort refuses the new key at once: %d", code)
	}
	d.eventually("one to come back", func() bool { return d.rotation().Left == 1 })
	back := d.pollAs(off)
	if code := d.connectWith(back); code != 0 {
		t.Errorf("refused with %d", code)
	}
	d.eventually("all back", func() bool { return d.rotation().Left == 0 })
	d.run("key", "finish", "--confirm", "0")
	d.eventually("aborted", func() bool { return d.rotation().State == "aborted" })
	if code := d.connectWith(newest); code == 0 {
		t.Error("the aborted key is accepted")
	}
	if code := d.connectWith(back); code != 0 {
		t.Errorf("the kept key is refused: %d", code)
	}
	connected(3)

	// The secret is lost: the server reports that, and a reset is the way out.
	d.stop()
	secret := d.dir + "/data/secret.key"
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v: %v", info, err)
	}
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	out, err := d.command("key", "status").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "fleetd key reset") {
		t.Errorf("with another secret: %v: %s", err, out)
	}
	d.run("key", "reset", "--confirm", "reset")
	d.start()
	if code := d.connectWith(back); code == 0 {
		t.Error("an old key is accepted after the reset")
	}
	if code := d.connectWith(d.pollAs(off)); code != 0 {
		t.Errorf("refused after the reset and a restart: %d", code)
	}
}
