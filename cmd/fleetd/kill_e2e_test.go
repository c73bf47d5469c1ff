package main

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"fleetd/broker/sim"
)

// Whenever fleetd is killed, the register agrees with the campaign. If the campaign
// reports a success, the register names the version and the build, and no plan upgrades
// the device again. If it reports a failure by the device's own report, that report is on
// record.
func TestWhatACampaignConcludedIsInTheRegisterAfterAKill(t *testing.T) {
	t.Parallel()
	const (
		board   = "bread-compact-wifi"
		version = "9.1.0"
		devices = 20 // of each campaign
	)
	refuse, err := sim.ParseFaults("late-true:30%")
	if err != nil {
		t.Fatal(err)
	}
	conclusions := []string{"succeeded", "failed", "succeeded"}
	all := len(conclusions) * devices
	d := newDaemon(t)
	d.simulate(sim.Options{Devices: all, Boards: []string{board}, Seed: 7, TimeScale: 0.02, Reports: true, Faults: refuse,
		BootDelay: 50 * time.Second}) // within that second all devices have installed the image
	var ids []string
	for _, v := range d.listed(all) {
		ids = append(ids, v.ID)
	}
	plan := map[string]any{"release_id": d.made("id", "release", "create",
		d.made("sha256", "image", "push", writeImage(t, board, version), "--board", board)),
		"max_in_flight": devices, "min_heap_percent": 0, "max_reconnects": 100, "max_attempts": 1, "abort_rules": []any{},
		"waves": []any{map[string]any{"percent": 100, "soak_ms": 0}}}
	d.slowWrites("device_jobs")
	var before []campaignCounts
	var done []string
	for i, conclusion := range conclusions {
		plan["name"], plan["devices"] = "spring "+strconv.Itoa(i), ids[i*devices:(i+1)*devices]
		c := d.startCampaign(plan)
		for deadline := time.Now().Add(time.Minute); c.Counts[conclusion] == 0; {
			if time.Now().After(deadline) {
				t.Fatalf("no device %s: %v", conclusion, c.Counts)
			}
			d.rest("GET", "/campaigns/"+c.ID, nil, &c) // no pause: the kill must hit reports that are not stored yet
		}
		d.kill()
		d.start()
		before, done = append(before, c), nil
		for _, c := range before {
			done = append(done, d.onRecord(c)...)
		}
	}
	var dry struct{ Matched, Targets int }
	plan["devices"] = done
	d.rest("POST", "/campaigns/dry-run", plan, &dry)
	if dry.Matched != len(done) || dry.Targets != 0 {
		t.Errorf("the same plan would have %d of %d devices upgraded once more", dry.Targets, dry.Matched)
	}
}

// campaignCounts is the number of devices in each state of a campaign.
type campaignCounts struct {
	ID     string
	Counts map[string]int
	Detail string
	Errors []any
}

func (d *daemon) startCampaign(plan map[string]any) (c campaignCounts) {
	d.t.Helper()
	if status := d.rest("POST", "/campaigns", plan, &c); status != http.StatusCreated {
		d.t.Fatalf("POST /campaigns: status %d, %s %v", status, c.Detail, c.Errors)
	}
	if status := d.rest("POST", "/campaigns/"+c.ID+"/start", nil, &c); status != http.StatusOK {
		d.t.Fatalf("start: status %d, %s %v", status, c.Detail, c.Errors)
	}
	return c
}

// onRecord compares the campaign's conclusions with the register and with the jobs of its
// devices, and its counts before a kill with those after it. It returns the devices that
// succeeded.
func (d *daemon) onRecord(before campaignCounts) (succeeded []string) {
	d.t.Helper()
	var all list[struct {
		State      string
		Device     string `json:"device_id"`
		Version    string `json:"to_version"`
		ELF        string `json:"to_elf_sha256"`
		ReasonCode string `json:"reason_code"`
	}]
	d.rest("GET", "/campaigns/"+before.ID+"/deployments?limit=500", nil, &all)
	devices := d.register()
	now := map[string]int{}
	for _, s := range all.Items {
		now[s.State]++
		switch {
		case s.State == "succeeded":
			succeeded = append(succeeded, s.Device)
			if v := devices[s.Device]; s.ELF == "" || v.Version != s.Version || v.ELF != s.ELF {
				d.t.Errorf("%s succeeded, and is on record with %s", s.Device, v.Version)
			}
		case s.ReasonCode == "device_reported":
			var jobs list[struct{ State, Code string }]
			d.rest("GET", "/devices/"+s.Device+"/jobs", nil, &jobs)
			if len(jobs.Items) != 1 || jobs.Items[0].State != "failed" {
				d.t.Errorf("%s failed as it reported, and its jobs are %+v", s.Device, jobs.Items)
			}
		}
	}
	for _, state := range []string{"succeeded", "failed"} {
		if now[state] < before.Counts[state] {
			d.t.Errorf("%d devices had %s before a kill, and %d after it", before.Counts[state], state, now[state])
		}
	}
	return succeeded
}
