package server

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"fleetd/broker/sim"
	"fleetd/fleet"
)

// bootPoll polls from a loopback address with the ids of a device, and returns the
// password in the answer.
func (d *testServer) bootPoll(from, device, client string) (password string) {
	d.t.Helper()
	req, _ := http.NewRequest("POST", "http://"+d.http+"/xiaozhi/ota/",
		strings.NewReader(`{"version":2,"application":{"name":"unit","version":"1.0.0"},"board":{"type":"own","name":"own"}}`))
	req.Header.Set("Device-Id", device)
	req.Header.Set("Client-Id", client)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	var reply struct {
		MQTT       struct{ Password string }
		Firmware   json.RawMessage
		ServerTime json.RawMessage `json:"server_time"`
	}
	err = json.NewDecoder(resp.Body).Decode(&reply)
	if err != nil || resp.StatusCode != http.StatusOK || reply.ServerTime == nil {
		d.t.Fatalf("the boot poll was answered with %s, %+v, %v", resp.Status, reply, err)
	}
	if reply.MQTT.Password == "" && reply.Firmware != nil {
		d.t.Error("a poll without credentials was offered firmware")
	}
	return reply.MQTT.Password
}

type conflictView struct {
	Conflict *struct {
		Code     string
		Evidence []string
		Sides    []struct {
			RemoteAddr string `json:"remote_addr"`
		}
	}
}

// A client that learned a device's Client-Id gets nothing while the device answers, and
// the operator sees both addresses. The device keeps its connection.
func TestASecondUnitGetsNoCredentials(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	board := d.simulate(sim.Options{Boards: []string{"bread-compact-wifi"}, LocalAddrs: []string{"127.0.0.2"}}).Device(0)
	d.listed(1)
	id, err := fleet.ParseDeviceID(board.ID())
	if err != nil {
		t.Fatal(err)
	}
	path := "/devices/" + string(id)
	epoch, _ := d.broker.Epoch(id)
	for range 2 {
		if d.bootPoll("127.0.0.3", board.ID(), board.ClientID()) != "" {
			t.Fatal("a second unit was given credentials")
		}
	}
	var v conflictView
	d.eventually("a conflict", func() bool {
		d.rest("GET", path, nil, &v)
		return v.Conflict != nil
	})
	var from []string
	for _, s := range v.Conflict.Sides {
		from = append(from, s.RemoteAddr)
	}
	slices.Sort(from)
	if v.Conflict.Code != "duplicate_device_id" || !slices.Equal(v.Conflict.Evidence, []string{"connection_answers"}) ||
		!slices.Equal(from, []string{"127.0.0.2", "127.0.0.3"}) {
		t.Errorf("the conflict is %+v", *v.Conflict)
	}
	if now, ok := d.broker.Epoch(id); !ok || now != epoch {
		t.Error("the device lost its connection")
	}
	var c callJSON
	d.rest("POST", path+"/calls", map[string]any{"tool": "self.get_device_status"}, &c)
	if c.State != "succeeded" {
		t.Errorf("a call of the device is %+v", c)
	}
	if facts := d.get(path + "/facts"); strings.Contains(facts, `"own"`) {
		t.Errorf("the second unit changed what is known of the device: %s", facts)
	}
	// During the conflict the other address gets nothing, even while the device is away.
	d.kick(id, fleet.Cause{})
	if d.bootPoll("127.0.0.3", board.ID(), board.ClientID()) != "" {
		t.Error("the second unit was given credentials while the device was away")
	}
}

// A second device behind the same address also counts as a second unit.
func TestASecondUnitBehindOneAddress(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	const client = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10"
	d.otherDevice("02:00:00:00:00:01", `{}`)
	d.listed(1)
	if d.bootPoll("127.0.0.1", "02:00:00:00:00:01", client) != "" {
		t.Error("a second unit was given credentials")
	}
}

// A device that lost power gets credentials at another address, although the socket of
// its connection is still open.
func TestARestartedDeviceWithAnotherAddressIsLetIn(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	const client = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10"
	o := d.otherDevice("02:00:00:00:00:01", `{}`)
	d.listed(1)
	o.dead.Store(true)
	if _, ok := d.broker.Epoch("020000000001"); !ok {
		t.Fatal("the socket is closed")
	}
	if d.bootPoll("127.0.0.4", "02:00:00:00:00:01", client) == "" {
		t.Error("a device that came back with another address was not let in")
	}
	var v conflictView
	if d.rest("GET", "/devices/020000000001", nil, &v); v.Conflict != nil {
		t.Errorf("it is a conflict: %+v", *v.Conflict)
	}
}
