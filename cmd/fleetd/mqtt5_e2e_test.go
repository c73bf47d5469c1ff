package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// fleetd sim creates its devices of MCP over MQTT 5 on a server, and connects them. Started again,
// it gets new credentials for them.
func TestSimMQTT5(t *testing.T) {
	d := newDaemon(t)
	if out, err := d.command("sim", "--devices", "0", "--mqtt5", "0").CombinedOutput(); err == nil {
		t.Errorf("no devices: %s", out)
	}
	viewer := strings.TrimSpace(string(d.run("token", "create", "viewer", "--role", "viewer")))
	out, err := d.command("sim", "--devices", "0", "--mqtt5", "2", "--token", viewer).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "sim-1") {
		t.Errorf("with the token of a viewer: %v %s", err, out)
	}
	if shown := d.register(); len(shown) > 0 {
		t.Errorf("a viewer created %v", shown)
	}

	const devices, sdk = 12, 4
	for round := range 2 {
		printed := &output{}
		sim := d.command("sim", "--devices", "0", "--mqtt5", fmt.Sprint(devices), "--mqtt5-sdk", fmt.Sprint(sdk),
			"--progress", "100ms")
		sim.Stdout, sim.Stderr = printed, printed
		if err := sim.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sim.Process.Kill() }) // if the test fails before it ends
		d.eventually("all devices are online, with their tools", func() bool {
			online := 0
			for _, v := range d.register() {
				if v.Presence == "online" && v.ToolsCount > 0 {
					online++
				}
			}
			return online == devices
		})
		for i := range devices {
			var call struct{ State string }
			body := json.RawMessage(`{"tool":"set_light","arguments":{"brightness":9,"on":true}}`)
			path := fmt.Sprintf("/devices/sim-%d/calls", i+1)
			if status := d.rest("POST", path, body, &call); status != 200 || call.State != "succeeded" {
				t.Errorf("round %d, device %d: status %d, call %+v", round, i+1, status, call)
			}
		}
		_ = sim.Process.Signal(os.Interrupt)
		if err := sim.Wait(); err != nil {
			t.Errorf("fleetd sim ended with %v", err)
		}
		if text := printed.String(); !strings.Contains(text, "12 connected") || strings.Contains(text, "failed") ||
			strings.Contains(text, "password") {
			t.Errorf("fleetd sim printed:\n%s", text)
		}
		d.eventually("all devices are offline", func() bool {
			for _, v := range d.register() {
				if v.Presence != "offline" {
					return false
				}
			}
			return true
		})
	}
}
