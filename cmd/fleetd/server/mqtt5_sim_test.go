package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"fleetd/broker/sim/mqtt5"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// simulateMQTT5 runs simulated devices until the test ends.
func (d *testServer) simulateMQTT5(t *testing.T, devices, sdk int) *mqtt5.Fleet {
	t.Helper()
	made := make(map[string]mqtt5.Credentials)
	for i := range devices {
		var c struct {
			ClientID                   string `json:"client_id"`
			Broker, Username, Password string
		}
		d.mqtt5REST(t, http.MethodPost, "/devices", fmt.Sprintf(`{"id":"sim-%d"}`, i+1), http.StatusCreated, &c)
		made[c.ClientID] = mqtt5.Credentials{Broker: d.mqtt, ClientID: c.ClientID, Username: c.Username, Password: c.Password}
	}
	f, err := mqtt5.New(mqtt5.Options{Devices: devices, SDK: sdk, RetryDelay: 50 * time.Millisecond,
		Credentials: func(_ context.Context, id string) (mqtt5.Credentials, error) { return made[id], nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return f
}

// Simulated devices of both kinds list their tools and execute calls, also after crashes and after
// a restart of the server; those with the SDK are never sent a call that they would refuse.
func TestSimulatedMQTT5Fleet(t *testing.T) {
	d := startTestServer(t, nil)
	const devices, sdk = 30, 10
	f := d.simulateMQTT5(t, devices, sdk)
	introduced := func(what string) {
		t.Helper()
		fleettest.Eventually(t, what, func() bool {
			for i := range devices {
				if !d.broker.Introduced(fleet.DeviceID(f.Device(i).ID())) {
					return false
				}
			}
			return true
		})
	}
	introduced("all are introduced")
	inventories := make(map[string]int)
	for i := range devices {
		inv, err := d.Devices.Tools(t.Context(), fleet.DeviceID(f.Device(i).ID()))
		if err != nil {
			t.Fatal(err)
		}
		inventories[inv.ID]++
	}
	if len(inventories) != 2 {
		t.Errorf("inventories %v, want one of each kind", inventories)
	}

	level := 0
	setAll := func() {
		t.Helper()
		level++
		var all sync.WaitGroup
		for i := range devices {
			all.Go(func() {
				c := d.callREST(t, f.Device(i).ID(), "set_light", fmt.Sprintf(`{"brightness":%d,"on":true}`, level))
				if s := f.Device(i).State(); c.State != "succeeded" || s.Brightness != level {
					t.Errorf("%s: call %+v, state %+v", f.Device(i).ID(), c, s)
				}
			})
		}
		all.Wait()
	}
	setAll()
	if c := d.callREST(t, f.Device(0).ID(), "get_status", `{}`); c.State != "invalid" {
		t.Errorf("a tool without arguments of a device with the SDK: %+v", c)
	}
	if s := f.Stats(); s.Refused != 0 {
		t.Errorf("the devices refused %d calls", s.Refused)
	}

	last := f.Device(devices - 1)
	if c := d.callREST(t, last.ID(), "attach_sensor", `{"attached":true}`); c.State != "succeeded" {
		t.Errorf("attach_sensor: %+v", c)
	}
	fleettest.Eventually(t, "the new tool is listed", func() bool {
		inv, err := d.Devices.Tools(t.Context(), fleet.DeviceID(last.ID()))
		_, ok := inv.Tool("read_temperature")
		return err == nil && ok
	})
	if c := d.callREST(t, last.ID(), "read_temperature", `{}`); c.State != "succeeded" {
		t.Errorf("read_temperature: %+v", c)
	}

	connects := f.Stats().Connects
	for i := range devices {
		f.Device(i).Crash()
	}
	fleettest.Eventually(t, "all connect again", func() bool {
		return f.Stats().Connects >= connects+devices && f.Stats().Connected == devices
	})
	introduced("all are introduced after a crash")
	setAll()

	d.restart()
	introduced("all are introduced after a restart")
	setAll()

	revoked := f.Device(sdk)
	d.mqtt5REST(t, http.MethodDelete, "/devices/"+revoked.ID()+"/credentials", "", http.StatusNoContent, nil)
	failures := f.Stats().ConnectFailures
	fleettest.Eventually(t, "the device with revoked credentials is refused twice", func() bool {
		return f.Stats().ConnectFailures >= failures+2
	})
	if revoked.Connected() || f.Stats().Connected != devices-1 {
		t.Errorf("%+v after one device lost its credentials", f.Stats())
	}
}
