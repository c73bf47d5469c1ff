package main

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"fleetd/broker/sim"
)

// A campaign that says of a device that it succeeded has it from the register, whenever
// fleetd is killed: the register names the version and the build, and no plan has the
// device upgraded once more.
func TestWhatACampaignConcludedIsInTheRegisterAfterAKill(t *testing.T) {
	t.Parallel()
	const (
		board   = "bread-compact-wifi"
		version = "9.1.0"
		devices = 60
		kills   = 3
	)
	d := newDaemon(t)
	d.simulate(sim.Options{Devices: devices, Boards: []string{board}, Seed: 7, TimeScale: 0.02,
		BootDelay: 50 * time.Second}) // in the second that this takes all have installed the image
	d.listed(devices)
	release := d.made("id", "release", "create",
		d.made("sha256", "image", "push", writeImage(t, board, version), "--board", board))
	plan := map[string]any{"name": "spring", "release_id": release, "q": "board:" + board, "max_in_flight": devices,
		"min_heap_percent": 0, "max_reconnects": 100, "max_attempts": 10, "abort_rules": []any{},
		"waves": []any{map[string]any{"percent": 100, "soak_ms": 0}}}
	var c struct {
		ID     string
		Counts map[string]int
		Detail string
		Errors []any
	}
	if status := d.rest("POST", "/campaigns", plan, &c); status != http.StatusCreated {
		t.Fatalf("POST /campaigns: status %d, %s %v", status, c.Detail, c.Errors)
	}
	if status := d.rest("POST", "/campaigns/"+c.ID+"/start", nil, &c); status != http.StatusOK {
		t.Fatalf("start: status %d, %s %v", status, c.Detail, c.Errors)
	}
	path := "/campaigns/" + c.ID

	var done []string
	for range kills {
		// No pause: the kill is to meet polls that wait to be stored.
		for deadline := time.Now().Add(10 * time.Second); c.Counts["succeeded"] <= len(done) &&
			time.Now().Before(deadline); {
			d.rest("GET", path, nil, &c)
		}
		switch {
		case c.Counts["succeeded"] == 0:
			t.Fatalf("no device is done: %v", c.Counts)
		case c.Counts["succeeded"] == len(done): // the rest wait for something else
			continue
		}
		d.kill()
		d.start()
		if done = d.inTheRegister(path); len(done) < c.Counts["succeeded"] {
			t.Errorf("%d devices were done before the kill, and %d after it", c.Counts["succeeded"], len(done))
		}
	}
	var dry struct{ Matched, Targets int }
	delete(plan, "q")
	plan["devices"] = done
	d.rest("POST", "/campaigns/dry-run", plan, &dry)
	if dry.Matched != len(done) || dry.Targets != 0 {
		t.Errorf("the same plan would have %d of %d devices upgraded once more", dry.Targets, dry.Matched)
	}
}

// inTheRegister holds the campaign's successes against the register, and returns their
// devices.
func (d *daemon) inTheRegister(campaign string) (ids []string) {
	d.t.Helper()
	var done list[struct {
		Device  string `json:"device_id"`
		Version string `json:"to_version"`
		ELF     string `json:"to_elf_sha256"`
	}]
	d.rest("GET", campaign+"/deployments?state=succeeded&limit=500", nil, &done)
	devices := d.register()
	var wrong []string
	for _, s := range done.Items {
		ids = append(ids, s.Device)
		if v := devices[s.Device]; s.ELF == "" || v.Version != s.Version || v.ELF != s.ELF {
			wrong = append(wrong, s.Device+" "+v.Version)
		}
	}
	if slices.Sort(wrong); len(wrong) > 0 {
		d.t.Errorf("%d of %d devices that succeeded are on record with another build: %v", len(wrong), len(done.Items), wrong)
	}
	return ids
}
