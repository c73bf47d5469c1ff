package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"

	"fleetd/broker/sim"
)

// A call that waits for its device still waits after a kill, and runs once; a canceled
// call never runs.
func TestCallsThatWaitOutliveAKill(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	o := sim.Options{Devices: 1, Seed: 7, TimeScale: 0.02, RecordCalls: 20}
	_, off := d.switchedOn(o)
	d.listed(1)
	off()
	device := d.onlyDevice("offline").ID
	wait := func(volume int) (c callJSON) {
		status := d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.audio_speaker.set_volume",
			"arguments": map[string]any{"volume": volume}, "offline": "wait"}, &c)
		if status != http.StatusOK || c.State != "pending_device" {
			t.Fatalf("a call that is to wait: status %d, %s", status, c.State)
		}
		return c
	}
	state := func(c callJSON) string {
		var now callJSON
		d.rest("GET", "/calls/"+c.ID, nil, &now)
		return now.State
	}
	early, runs, late := wait(11), wait(12), wait(13)
	cancel := func(c callJSON) {
		if status := d.rest("POST", "/calls/"+c.ID+"/cancel", nil, &c); status != http.StatusOK || c.State != "canceled" {
			t.Errorf("cancel: status %d, %s", status, c.State)
		}
	}
	cancel(early)
	var many []callJSON
	for volume := range 12 {
		many = append(many, wait(20+volume))
	}
	answered := d.cancelUntilKilled(many)
	d.start()
	if got := []string{state(early), state(runs), state(late)}; !slices.Equal(got,
		[]string{"canceled", "pending_device", "pending_device"}) {
		t.Errorf("after the kill the calls are %s", got)
	}
	if got := d.made("state", "call", "cancel", late.ID); got != "canceled" {
		t.Errorf("by command: %s", got)
	}
	f := d.simulate(o)
	want := []string{`{"volume":12}`}
	for i, c := range many {
		d.eventually("over", func() bool { s := state(c); return s == "succeeded" || s == "canceled" })
		switch ran := state(c) == "succeeded"; {
		case ran && answered[c.ID]:
			t.Errorf("call %s was answered as canceled, and ran", c.ID)
		case ran:
			want = append(want, fmt.Sprintf(`{"volume":%d}`, 20+i))
		}
	}
	t.Logf("%d of %d cancellations were answered before the kill; %d calls ran", len(answered), len(many), len(want))
	d.eventually("run", func() bool { return state(runs) == "succeeded" })
	var after callJSON
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.audio_speaker.set_volume",
		"arguments": map[string]any{"volume": 14}, "offline": "wait"}, &after)
	d.eventually("run", func() bool { return state(after) == "succeeded" })
	var volumes []string
	for _, c := range f.Device(0).Calls() {
		if c.Tool == "self.audio_speaker.set_volume" {
			volumes = append(volumes, c.Arguments)
		}
	}
	if want = append(want, `{"volume":14}`); !slices.Equal(volumes, want) {
		t.Errorf("the device ran %s, want %s", volumes, want)
	}
	if got := []string{state(early), state(late)}; !slices.Equal(got, []string{"canceled", "canceled"}) {
		t.Errorf("at the end the canceled calls are %s", got)
	}
}

// cancelUntilKilled cancels calls concurrently, kills fleetd after some answers, and
// returns the calls whose cancellation was confirmed.
func (d *daemon) cancelUntilKilled(calls []callJSON) map[string]bool {
	ids := make(chan string, len(calls))
	var running sync.WaitGroup
	for _, c := range calls {
		running.Go(func() {
			req, _ := http.NewRequest("POST", "http://"+d.http+"/api/v1/calls/"+c.ID+"/cancel", nil)
			req.Header.Set("Authorization", "Bearer "+d.token)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return // the kill came first
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode == http.StatusOK {
				ids <- c.ID
			}
		})
	}
	go func() { running.Wait(); close(ids) }()
	answered := map[string]bool{}
	for id := range ids {
		if answered[id] = true; len(answered) == 2 {
			d.kill()
		}
	}
	if len(answered) < 2 {
		d.t.Fatal("the calls cannot be canceled")
	}
	return answered
}

// onlyDevice waits until the one device on record has the presence.
func (d *daemon) onlyDevice(presence string) (v deviceView) {
	d.t.Helper()
	d.eventually("a device "+presence, func() bool {
		for _, v = range d.register() {
		}
		return v.Presence == presence
	})
	return v
}
