package api

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

func TestFanOut(t *testing.T) {
	w := newWorld(t)
	const ask = `"tool":"self.audio_speaker.set_volume","arguments":{"volume":9},"max_in_flight":2,"timeout_ms":5000`
	p := decode[previewView](t, w.post(t, "/fanouts", `{"q":"","dry_run":true,`+ask+`}`), 200)
	if p.Matched != 3 || p.Targets != 2 || p.Offline != 1 || p.UserOnly || len(p.Skipped) != 1 ||
		p.Skipped[0].Reason != "device_not_enrolled" {
		t.Errorf("the preview is %+v", p)
	}
	if all := decode[list[FanOutView]](t, w.get(t, "/fanouts"), 200); len(all.Items) != 0 || all.Items == nil {
		t.Errorf("a dry run left %v", all.Items)
	}
	r := w.post(t, "/fanouts", `{"devices":["A0:85:E3:11:22:33","a085e3112244","a085e3112255"],`+ask+`}`)
	f := decode[FanOutView](t, r, 201)
	if f.Targets != 2 || f.Skipped != 1 || f.MaxInFlight != 2 || f.TimeoutMs != 5000 || r.header.Get("Location") != prefix+
		"/fanouts/"+f.ID.String() {
		t.Errorf("answered %s %v", r.body, r.header)
	}
	path := strings.TrimPrefix(r.header.Get("Location"), prefix)
	done := w.await(t, path)
	if done.State != call.FanOutCompleted || done.Counts.Succeeded != 1 || done.Counts.Offline != 1 ||
		done.Counts.Done != 2 || len(done.Answers) != 2 ||
		len(done.SkippedFor) != 1 || done.SkippedFor[0].Reason != "device_not_enrolled" {
		t.Errorf("ended %+v", done)
	}
	for _, a := range done.Answers {
		if a.Count != 1 || len(a.Sample) != 1 || (a.State == fleet.CallSucceeded) != (a.Sample[0].DeviceID == unit) {
			t.Errorf("answer %+v", a)
		}
	}
	if calls := decode[list[callView]](t, w.get(t, "/calls?fanout="+f.ID.String()), 200); len(calls.Items) != 2 ||
		*calls.Items[0].FanOutID != f.ID {
		t.Errorf("its calls are %+v", calls.Items)
	}
	if p := w.post(t, path+"/cancel", "").problem(t); p.Status != 409 || p.Code != "not_running" {
		t.Errorf("canceling it then is answered %+v", p)
	}
}

// An offline device is called when it comes online, but not after the fan-out is canceled.
func TestFanOutWaitsForOfflineDevices(t *testing.T) {
	w := newWorld(t)
	start := func(more string) (FanOutView, string) {
		t.Helper()
		f := decode[FanOutView](t, w.post(t, "/fanouts",
			`{"q":"-id:a085e3112255","tool":"self.get_device_status","offline":"wait"`+more+`}`), 201)
		return f, "/fanouts/" + f.ID.String()
	}
	ask := func(more string) (FanOutView, string) {
		t.Helper()
		f, path := start(more)
		fleettest.Eventually(t, "one device was called and one is awaited", func() bool {
			p := decode[fanOutProgressView](t, w.get(t, path), 200)
			return p.Counts.Awaited == 1 && p.Counts.Waiting == 1 && p.Counts.Succeeded == 1 && p.State == call.FanOutRunning &&
				p.Waiting == nil
		})
		return f, path
	}
	f, path := ask(``)
	if f.Offline != "wait" || f.OfflineWait != call.DefaultOfflineWait.Milliseconds() {
		t.Errorf("answered %+v", f)
	}
	if p := decode[fanOutProgressView](t, w.post(t, path+"/cancel", ""), 200); p.State != call.FanOutCanceled {
		t.Errorf("after canceling it: %+v", p)
	}
	if f, path = ask(`,"offline_wait_ms":3600000`); f.OfflineWait != 3_600_000 {
		t.Errorf("answered %+v", f)
	}
	_, soon := start(`,"offline_wait_ms":1000`)
	if p := w.await(t, soon); p.State != call.FanOutCompleted || p.Counts.Offline != 1 || p.Counts.Succeeded != 1 {
		t.Errorf("after the wait: %+v", p)
	}
	w.connect(other)
	if p := w.await(t, path); p.State != call.FanOutCompleted || p.Counts.Succeeded != 2 || p.Counts.Awaited != 0 {
		t.Errorf("after the device came: %+v", p)
	}
}

func (w *world) await(t *testing.T, path string) (f fanOutProgressView) {
	t.Helper()
	fleettest.Eventually(t, "the bulk call ended", func() bool {
		f = decode[fanOutProgressView](t, w.get(t, path), 200)
		return f.State != call.FanOutRunning
	})
	return f
}

// A tool that disconnects many devices requires their number as confirmation.
func TestFanOutThatTakesDevicesAwayIsConfirmedByTheCount(t *testing.T) {
	w := newWorld(t)
	for _, id := range []fleet.DeviceID{unit, other} {
		w.listing(t, id, append(slices.Clone(tools), fleet.Tool{Name: fleet.ToolReconfigureWiFi,
			Audience:    fleet.AudienceModel,
			InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)}))
	}
	ask := func(more string) string { return `{"q":"","tool":"self.system.reconfigure_wifi"` + more + `}` }
	p := decode[previewView](t, w.post(t, "/fanouts", ask(`,"dry_run":true`)), 200)
	if p.Targets != 2 || !p.UserOnly || p.Effect != "leaves_network" || !p.Confirm {
		t.Errorf("the preview is %+v", p)
	}
	for _, more := range []string{``, `,"confirm":0`, `,"confirm":1`, `,"confirm":3`} {
		got := w.post(t, "/fanouts", ask(more)).problem(t)
		if got.Status != 422 || got.Code != "confirmation_required" || got.Field != "confirm" ||
			got.Params["targets"] != 2.0 {
			t.Errorf("%s is answered %+v", ask(more), got)
		}
	}
	w.post(t, "/fanouts", ask(`,"confirm":-2`)).problem(t)
	w.post(t, "/fanouts", ask(`,"confirm":"2"`)).problem(t)
	if all := decode[list[FanOutView]](t, w.get(t, "/fanouts"), 200); len(all.Items) != 0 {
		t.Errorf("refused fan-outs left %v", all.Items)
	}
	decode[FanOutView](t, w.post(t, "/fanouts", ask(`,"confirm":2`)), 201)
	if p := decode[previewView](t, w.post(t, "/fanouts", `{"q":"","tool":"self.reboot","dry_run":true}`),
		200); p.Effect != "restarts" || p.Confirm {
		t.Errorf("the preview of a restart is %+v", p)
	}
}

func TestCancelFanOut(t *testing.T) {
	w := newWorld(t)
	turn, err := w.link.Queue(unit, fleet.KindOperator) // the device is busy: the fan-out waits
	if err != nil {
		t.Fatal(err)
	}
	f := decode[FanOutView](t, w.post(t, "/fanouts", `{"q":"id:a085e3112233","tool":"self.get_device_status"}`), 201)
	got := decode[fanOutProgressView](t, w.post(t, "/fanouts/"+f.ID.String()+"/cancel", ""), 200)
	if got.State != call.FanOutCanceled || got.CanceledBy == nil || *got.CanceledBy != "admin-script" {
		t.Errorf("answered %+v", got)
	}
	turn.Done()
}
