package rollout_test

import (
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/rollout"
	"fleetd/fleet/telemetry"
)

// Texts of devices.
const (
	notSound = "the image's SHA-256 is not the stated one"
	noBroker = "the new image did not get through to the broker"
)

// reporting reports whether the device reports on its jobs, as the included
// firmware does.
func (d *device) reporting() bool {
	return strings.HasPrefix(d.fault, "reports") || d.fault == "doomsayer"
}

func (d *device) reports(l firmware.Link, j telemetry.Job) {
	for range d.w.copies {
		d.w.current().Observe(rollout.OfJob(d.id, l.Deployment, l.Attempt, j))
	}
}

func (d *device) goesOn(l firmware.Link, s fleet.JobState, percent int) {
	if d.reporting() {
		d.reports(l, telemetry.Job{State: s, Percent: percent})
	}
}

// reportsOutcome sends the device's report after it has reconnected to the broker.
func (d *device) reportsOutcome(l firmware.Link, life int) {
	if !d.reporting() || !d.pause(3*time.Second, life) {
		return
	}
	switch d.fault {
	case "reports rolled back", "doomsayer":
		d.reports(l, telemetry.Job{State: fleet.JobFailed, Code: "rolled_back", Reason: noBroker})
	default:
		d.reports(l, telemetry.Job{State: fleet.JobDone})
	}
}

// TestReportsAreShown follows devices that report: their progress during the upgrade, and their
// own text if they fail. A device that rolled back sends that text after the verdict and after
// the end of the campaign.
func TestReportsAreShown(t *testing.T) {
	for fault, text := range map[string]string{
		"reports bad image": notSound, "reports rolled back": noBroker,
		"reports refusal": "only signed images are taken here", "reports a cut": "the download was cut short",
	} {
		inWorld(t, func(t *testing.T, w *world) {
			w.add("device1", fault)
			c := w.plan(nil, 1)
			defer w.start()()
			w.await(c.ID, 12*time.Hour, campaign.CompletedWithErrors)
			sleep(time.Minute)
			d := w.deployment(c.ID, "device1")
			if got := d.Reason.Params["detail"]; !campaign.ReportedByDevice(d.Reason) || got != text || d.State != verdicts[fault] {
				t.Errorf("%s: %s with the reason %q, want the device's: %q; %v", fault, d.State, d.Reason, text, w.story(d))
			}
		})
	}
}

func TestProgressIsShown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.add("device1", "reports, resumes")
		c := w.plan(nil, 1)
		defer w.start()()
		sleep(20 * time.Second) // notified, four seconds, four pieces of eight, then cut
		d := w.deployment(c.ID, "device1")
		if d.State != campaign.DeploymentDownloading || d.Percent == nil || *d.Percent != 48 {
			t.Errorf("%s at %v, want downloading at 48 %%", d.State, d.Percent)
		}
		w.await(c.ID, time.Hour, campaign.Completed)
		if d := w.deployment(c.ID, "device1"); d.Attempt != 1 {
			t.Errorf("%d attempts: a device that resumes needs one", d.Attempt)
		}
		rows := 0
		for _, e := range w.store.events[d.ID] {
			if e.Kind == fleet.EvidenceJob {
				rows++
			}
		}
		if rows < 3 || rows > 6 {
			t.Errorf("%d rows of reports: %v", rows, w.story(d))
		}
	})
}

// TestReportsOfOthers checks that no device ends the deployment of another, and that the number
// of accepted reports per device is bounded.
func TestReportsOfOthers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.add("device1", "")
		w.add("device2", "reports")
		c := w.plan(nil, 2)
		defer w.start()()
		sleep(8 * time.Second) // both download
		victim := w.deployment(c.ID, "device1")
		failed := telemetry.Job{State: fleet.JobFailed, Code: "corrupt", Reason: "so says another"}
		for range 1000 {
			w.current().Observe(rollout.OfJob("device2", victim.ID, victim.Attempt, failed))
			w.current().Observe(rollout.OfJob("device1", victim.ID, victim.Attempt+1, failed))
			w.current().Observe(rollout.OfJob("device1", victim.ID, 0, failed))
		}
		sleep(time.Second)
		if now := w.deployment(c.ID, "device1"); now.State != victim.State || now.Attempt != victim.Attempt {
			t.Fatalf("a forged report made %s %s", victim.State, now.State)
		}
		w.await(c.ID, time.Hour, campaign.Completed)
		own := w.deployment(c.ID, "device2")
		for i := range 5000 {
			w.current().Observe(rollout.OfJob("device2", own.ID, own.Attempt, telemetry.Job{State: []fleet.JobState{fleet.JobDone,
				fleet.JobFailed}[i%2], Code: "corrupt"}))
			sleep(time.Second)
		}
		if n := len(w.store.events[own.ID]); n > 400 {
			t.Errorf("%d rows of one deployment", n)
		}
		if now := w.deployment(c.ID, "device2"); now.State != campaign.DeploymentSucceeded {
			t.Errorf("its own reports made a success %s", now.State)
		}
	})
}

// TestOrdersCarryTheImage checks that the order contains the data that the included firmware
// verifies, by call and by poll.
func TestOrdersCarryTheImage(t *testing.T) {
	for _, mode := range []firmware.DispatchMode{firmware.ModePush, firmware.ModePull} {
		inWorld(t, func(t *testing.T, w *world) {
			img := w.store.images[imageSHA]
			img.Manifest, img.ManifestSignature = `{"chip":9}`, "c2ln"
			w.store.images[imageSHA] = img
			w.add("device1", "")
			c := w.plan(func(p *campaign.Plan) { p.Mode, p.PullNow = mode, mode == firmware.ModePull }, 1)
			defer w.start()()
			w.await(c.ID, time.Hour, campaign.Completed)
			d := w.deployment(c.ID, "device1")
			want := fleet.FirmwareOffer{SHA256: imageSHA, Size: imageSize, Job: fleet.UpgradeJobName(d.ID, 1),
				Manifest: `{"chip":9}`, Signature: "c2ln"}
			if w.ordered != want {
				t.Errorf("%s: ordered %+v, want %+v", mode, w.ordered, want)
			}
		})
	}
}
