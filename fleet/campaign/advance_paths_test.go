package campaign_test

import (
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// TestAdvanceStory follows one push from dispatch to success, with the rows that it stores.
func TestAdvanceStory(t *testing.T) {
	p := newPatient(t)
	p.begin(firmware.ModePush)
	var kinds []fleet.EvidenceKind
	for _, k := range []fleet.EvidenceKind{"sent", "get", "bytes", "downloaded", "disconnect", "boot_poll", "connect",
		"initialize", "healthy"} {
		if step := p.sees(p.observation(k)); step.Event != nil {
			kinds = append(kinds, step.Event.Kind)
		}
	}
	p.mustBe(campaign.DeploymentVerifying)
	p.expire()
	p.mustBe(campaign.DeploymentSucceeded)
	want := []fleet.EvidenceKind{"sent", "get", "downloaded", "disconnect", "boot_poll", "connect", "initialize",
		"healthy"}
	if !slices.Equal(kinds, want) {
		t.Errorf("rows %v, want %v: bytes make none", kinds, want)
	}
	if p.d.Late || p.d.Failures != 0 || p.d.BytesSent != imageSize || !p.d.Booted {
		t.Errorf("succeeded as %+v", p.d)
	}
}

func TestAdvanceDeadlines(t *testing.T) {
	size := int64(imageSize) // at 8 KiB/s: 325 s
	slow := time.Duration(size) * time.Second / (8 << 10)
	tests := []struct {
		state campaign.DeploymentState
		want  time.Duration // after the evidence that led there
	}{
		{"dispatching", timers.Get}, {"sent", timers.Get}, {"offered", timers.Get}, {"ambiguous", slow},
		{"downloading", timers.Stall}, {"downloaded", timers.Goodbye}, {"rebooting", timers.BootPoll - time.Second},
		{"booted", timers.Connect}, {"verifying", soakTime},
	}
	for _, tt := range tests {
		if p := walk(t, tt.state); p.d.Deadline.Sub(p.now) != tt.want {
			t.Errorf("%s: deadline after %v, want %v", tt.state, p.d.Deadline.Sub(p.now), tt.want)
		}
	}
}

// TestAdvanceWholeDownload: bytes renew the stall deadline, up to a bound.
func TestAdvanceWholeDownload(t *testing.T) {
	p := walk(t, campaign.DeploymentDownloading)
	began := p.now
	bound := 3 * time.Duration(imageSize) * time.Second / (8 << 10) // 975 s, more than the 10 min
	for i := int64(1); p.d.State == campaign.DeploymentDownloading; i++ {
		p.now = p.now.Add(time.Minute)
		if p.now.Sub(began) > bound {
			p.now = began.Add(bound)
			p.sees(campaign.Observation{Kind: "timer"})
			break
		}
		p.sees(campaign.Observation{Kind: "bytes", Attempt: 1, Bytes: i << 10})
	}
	p.mustBe(campaign.DeploymentQueued)
	if want := "the download took longer than 16 min 15 s; 16.0 KiB of 2.5 MiB were sent"; said(p.d.Reason) != want {
		t.Errorf("reason %q, want %q", p.d.Reason, want)
	}
}

func TestAdvanceOldByteDoesNotShortenDeadline(t *testing.T) {
	p := walk(t, campaign.DeploymentDownloading)
	p.sees(campaign.Observation{Kind: "bytes", Attempt: 1, Bytes: 4096})
	before := *p.d.Deadline
	campaign.Advance(&p.d, campaign.Observation{Kind: "bytes", Attempt: 1, Bytes: 2048, At: p.now.Add(-30 * time.Second)},
		&plan, soakTime, timers)
	if !p.d.Deadline.Equal(before) || p.d.BytesSent != 4096 {
		t.Errorf("an overtaken observation moved the deadline to %v or the bytes to %d", p.d.Deadline, p.d.BytesSent)
	}
}

// TestAdvanceRetries: three attempts fail, with longer pauses between them; then comes the
// verdict. An attempt that never started does not count.
func TestAdvanceRetries(t *testing.T) {
	p := newPatient(t)
	p.begin(firmware.ModePush)
	p.sees(campaign.Observation{Kind: "not_sent", Attempt: 1, CallError: fleet.CodeOffline})
	p.mustBe(campaign.DeploymentQueued)
	if p.d.Failures != 0 || p.last.Event.Kind != fleet.EvidenceNotSent {
		t.Fatalf("a call that did not leave is a failure: %+v", p.d)
	}
	for i, base := range []time.Duration{timers.Backoff, 4 * timers.Backoff, 0} {
		p.begin(firmware.ModePush)
		p.kinds("sent", "get", "cut")
		if p.d.Failures != i+1 || p.d.Attempt != i+2 {
			t.Fatalf("attempt %d, failures %d", p.d.Attempt, p.d.Failures)
		}
		if base == 0 {
			break
		}
		p.mustBe(campaign.DeploymentQueued)
		if wait := p.d.NotBefore.Sub(p.now); wait < base*8/10 || wait > base*12/10 {
			t.Errorf("waits %v after failure %d, want %v ± 20 %%", wait, i+1, base)
		}
		if p.last.Event.Kind != fleet.EvidenceRetry || p.last.Act != campaign.ActRevoke {
			t.Errorf("event %s, act %q", p.last.Event.Kind, p.last.Act)
		}
	}
	p.mustBe(campaign.DeploymentFailed)
	if p.d.Class != campaign.FailureDownload {
		t.Errorf("class %s", p.d.Class)
	}
}

// TestAdvanceSilentDevice: a device that is notified three times and never sends a GET times out.
func TestAdvanceSilentDevice(t *testing.T) {
	p := newPatient(t)
	for range 3 {
		p.begin(firmware.ModePush)
		p.kinds("sent", "answer")
		p.expire() // ambiguous
		p.expire()
	}
	p.mustBe(campaign.DeploymentTimedOut)
}

// TestAdvanceBootsAfterCut: rule 1 also holds for an attempt that was given up.
func TestAdvanceBootsAfterCut(t *testing.T) {
	p := walk(t, campaign.DeploymentDownloading)
	p.kinds("cut")
	p.mustBe(campaign.DeploymentQueued)
	p.kinds("boot_poll")
	p.mustBe(campaign.DeploymentBooted)
	if p.d.Failures != 0 {
		t.Error("the attempt still counts as failed")
	}
}

func TestAdvanceFoundInstalled(t *testing.T) {
	p := walk(t, campaign.DeploymentDownloading)
	p.kinds("cut")
	p.sees(campaign.Observation{Kind: "unfit", Skip: firmware.SkipInstalled})
	p.mustBe(campaign.DeploymentBooted)
}

// TestAdvanceLateSuccess: the image boots after fleetd gave the attempt up.
func TestAdvanceLateSuccess(t *testing.T) {
	p := walk(t, campaign.DeploymentTimedOut)
	p.now = p.now.Add(time.Hour)
	p.kinds("boot_poll", "connect", "initialize", "healthy")
	p.expire()
	p.mustBe(campaign.DeploymentSucceeded)
	if !p.d.Late {
		t.Error("not recorded as late")
	}

	if p.d.Failures != 0 {
		t.Errorf("%d failures after the only attempt succeeded", p.d.Failures)
	}

	p = walk(t, campaign.DeploymentTimedOut)
	p.kinds("boot_poll", "initialize", "unhealthy")
	p.mustBe(campaign.DeploymentUnhealthy)
	if p.d.Late {
		t.Error("Late is for successes")
	}
	if p.d.Failures != 1 {
		t.Errorf("%d failures of one attempt", p.d.Failures)
	}
}

// TestAdvancePollsAndNeverConnects: the device polls, and connects only an hour later.
func TestAdvancePollsAndNeverConnects(t *testing.T) {
	p := walk(t, campaign.DeploymentBooted)
	if step := p.expire(); step.Act != campaign.ActProbe {
		t.Fatalf("act %q before giving up", step.Act)
	}
	p.expire()
	p.mustBe(campaign.DeploymentTimedOut)
	if said(p.d.Reason) != "connect: polled with the new build but never connected" {
		t.Errorf("reason %q", p.d.Reason)
	}
	p.now = p.now.Add(time.Hour)
	p.kinds("connect", "initialize", "healthy")
	p.expire()
	p.mustBe(campaign.DeploymentSucceeded)
	if !p.d.Late {
		t.Error("not recorded as late")
	}
}

// TestAdvanceConnectsWithoutInitialize: the tools are known, so fleetd asks the device for its
// build instead.
func TestAdvanceConnectsWithoutInitialize(t *testing.T) {
	p := walk(t, campaign.DeploymentBooted)
	p.kinds("connect")
	if wait := p.d.Deadline.Sub(p.now); wait != timers.Probe {
		t.Errorf("asks after %v, want %v", wait, timers.Probe)
	}
	if step := p.expire(); step.Act != campaign.ActProbe {
		t.Fatalf("act %q", step.Act)
	}
	p.kinds("probe")
	p.mustBe(campaign.DeploymentVerifying)
}

// TestAdvanceConnectsWithoutPoll: the device connects without a boot poll. The image runs, but
// falls back at the next restart, so this is no success.
func TestAdvanceConnectsWithoutPoll(t *testing.T) {
	p := walk(t, campaign.DeploymentRebooting)
	p.kinds("connect", "initialize", "probe", "healthy")
	p.mustBe(campaign.DeploymentRebooting)
	p.expire()
	p.mustBe(campaign.DeploymentTimedOut)
}

// TestAdvanceGoodbyeAfterProbe: silence after the last byte, a probe without an answer, then the
// goodbye. All deadlines count from the last byte.
func TestAdvanceGoodbyeAfterProbe(t *testing.T) {
	p := walk(t, campaign.DeploymentDownloaded)
	lastByte := p.now
	p.expire()
	p.mustBe(campaign.DeploymentDownloaded)
	p.kinds("disconnect")
	p.mustBe(campaign.DeploymentRebooting)
	if got := p.d.Deadline.Sub(lastByte); got != timers.BootPoll {
		t.Errorf("waits %v from the last byte, want %v", got, timers.BootPoll)
	}
}

// TestAdvanceEarlyAnswer: firmware before 2.1 answers true at once, and its answer may be read
// after the last byte.
func TestAdvanceEarlyAnswer(t *testing.T) {
	p := walk(t, campaign.DeploymentDownloaded)
	before := p.now.Add(-time.Minute)
	campaign.Advance(&p.d, campaign.Observation{Kind: "answer", Attempt: 1, At: before}, &plan, soakTime, timers)
	p.mustBe(campaign.DeploymentDownloaded)
	campaign.Advance(&p.d, campaign.Observation{Kind: "probe", ELF: oldELF, At: before}, &plan, soakTime, timers)
	p.mustBe(campaign.DeploymentDownloaded)
}

// TestAdvanceStaleEvidence: evidence from before the deployment's last change does not count
// against it; an example is the poll that carried the offer.
func TestAdvanceStaleEvidence(t *testing.T) {
	for _, s := range []campaign.DeploymentState{"offered", "sent", "downloading", "downloaded", "rebooting", "booted",
		"verifying"} {
		p := walk(t, s)
		before := p.d
		for _, elf := range []string{oldELF, otherELF} {
			campaign.Advance(&p.d, campaign.Observation{Kind: "boot_poll", ELF: elf, At: noon}, &plan, soakTime, timers)
			p.mustBe(s)
		}
		if p.d.Failures != before.Failures {
			t.Errorf("%s: a poll from before counts as failure", s)
		}
	}
}

// TestAdvanceOtherAttempt: evidence of an earlier attempt changes nothing.
func TestAdvanceOtherAttempt(t *testing.T) {
	p := walk(t, campaign.DeploymentDownloading)
	p.kinds("cut")
	p.begin(firmware.ModePush)
	p.kinds("sent")
	for _, k := range []fleet.EvidenceKind{"get", "bytes", "cut", "downloaded", "refused", "late_answer", "not_sent",
		"timer"} {
		p.sees(campaign.Observation{Kind: k, Attempt: 1})
		p.mustBe(campaign.DeploymentSent)
		if p.last.Changed || p.last.Act != "" {
			t.Errorf("%s of an earlier attempt changes the deployment", k)
		}
	}
}

func TestAdvanceTimerBeforeDeadline(t *testing.T) {
	for _, s := range campaign.DeploymentStates {
		if !s.Active() {
			continue
		}
		p := walk(t, s)
		if step := p.sees(campaign.Observation{Kind: "timer"}); step.Changed || step.Event != nil || step.Act != "" {
			t.Errorf("%s: a timer before its time led to %+v", s, step)
		}
	}
}

// TestAdvanceSoak: at its end, both the checks and the connection are required.
func TestAdvanceSoak(t *testing.T) {
	t.Run("away at the end", func(t *testing.T) {
		p := walk(t, campaign.DeploymentVerifying)
		p.kinds("healthy", "connection_lost")
		p.expire()
		p.mustBe(campaign.DeploymentVerifying)
		p.kinds("connect")
		p.expire()
		p.mustBe(campaign.DeploymentSucceeded)
	})
	t.Run("away for good", func(t *testing.T) {
		p := walk(t, campaign.DeploymentVerifying)
		p.kinds("healthy", "connection_lost")
		p.expire()
		p.expire()
		p.mustBe(campaign.DeploymentTimedOut)
		if said(p.d.Reason) != "verifying: no connection; the device went offline during the soak" {
			t.Errorf("reason %q", p.d.Reason)
		}
	})
	t.Run("back after all", func(t *testing.T) {
		p := walk(t, campaign.DeploymentVerifying)
		p.kinds("healthy", "connection_lost")
		p.expire()
		p.expire()
		p.mustBe(campaign.DeploymentTimedOut)
		p.kinds("connect", "initialize")
		p.mustBe(campaign.DeploymentVerifying)
		if p.d.Checked || p.last.Act != campaign.ActVerify {
			t.Error("checks from before an hour away still count")
		}
	})
	t.Run("checks stand over a reconnection", func(t *testing.T) {
		p := walk(t, campaign.DeploymentVerifying)
		p.kinds("healthy", "connection_lost")
		if step := p.sees(p.observation("connect")); step.Act != "" {
			t.Errorf("act %q", step.Act)
		}
	})
	t.Run("checks late", func(t *testing.T) {
		p := walk(t, campaign.DeploymentVerifying)
		p.expire()
		p.kinds("healthy")
		p.mustBe(campaign.DeploymentSucceeded)
	})
	t.Run("checks never", func(t *testing.T) {
		p := walk(t, campaign.DeploymentVerifying)
		p.expire()
		p.expire()
		p.mustBe(campaign.DeploymentTimedOut)
	})
	t.Run("checks while away are run again", func(t *testing.T) {
		p := walk(t, campaign.DeploymentVerifying)
		p.kinds("connection_lost", "unhealthy")
		p.mustBe(campaign.DeploymentVerifying)
		if step := p.sees(p.observation("connect")); step.Act != campaign.ActVerify {
			t.Errorf("act %q", step.Act)
		}
	})
	t.Run("no soak", func(t *testing.T) {
		p := walk(t, campaign.DeploymentBooted)
		p.now = p.now.Add(time.Second)
		campaign.Advance(&p.d, campaign.Observation{Kind: "initialize", At: p.now}, &plan, 0, timers)
		p.kinds("healthy")
		p.mustBe(campaign.DeploymentSucceeded)
	})
}

// TestAdvanceFlapping: a restart is one loss, whether or not the disconnect
// was seen.
func TestAdvanceFlapping(t *testing.T) {
	p := walk(t, campaign.DeploymentVerifying)
	p.kinds("connection_lost", "boot_poll", "connect", "initialize")
	p.mustBe(campaign.DeploymentVerifying)
	if p.d.Reconnects != 1 || p.d.Checked {
		t.Fatalf("%d reconnects after one restart", p.d.Reconnects)
	}
	p.kinds("connect", "connection_lost", "connect")
	if p.d.Reconnects != 3 {
		t.Fatalf("%d reconnects, want 3", p.d.Reconnects)
	}
	p.kinds("connection_lost", "connect")
	p.mustBe(campaign.DeploymentUnhealthy)
	if said(p.d.Reason) != "reconnected 4 times during the soak; at most 3 are allowed" {
		t.Errorf("reason %q", p.d.Reason)
	}
}

func TestAdvanceBootLoop(t *testing.T) {
	p := walk(t, campaign.DeploymentBooted)
	p.kinds("boot_poll", "boot_poll", "boot_poll")
	p.mustBe(campaign.DeploymentBooted)
	p.kinds("boot_poll")
	p.mustBe(campaign.DeploymentUnhealthy)
}

// TestAdvanceDuplicatePoll: a poll that is observed twice is not a restart.
func TestAdvanceDuplicatePoll(t *testing.T) {
	p := walk(t, campaign.DeploymentBooted)
	o := campaign.Observation{Kind: "boot_poll", ELF: newELF, At: p.now}
	if step := campaign.Advance(&p.d, o, &plan, soakTime, timers); step.Changed || step.Event != nil {
		t.Errorf("a duplicate led to %+v", step)
	}
}

// TestAdvanceRestart: time that passed while fleetd was down does not count, except for a soak.
func TestAdvanceRestart(t *testing.T) {
	for _, s := range campaign.DeploymentStates {
		if !s.Active() {
			continue
		}
		p := walk(t, s)
		p.now = p.now.Add(24 * time.Hour)
		p.sees(campaign.Observation{Kind: "fleetd_start"})
		if p.d.State.Final() || p.d.Failures != 0 {
			t.Errorf("%s became %s by a restart", s, p.d.State)
		}
		if s != campaign.DeploymentVerifying && p.d.Deadline != nil && p.d.Deadline.Sub(p.now) < timers.Goodbye {
			t.Errorf("%s has only %v left", s, p.d.Deadline.Sub(p.now))
		}
		if p.d.State.Waiting() && !p.d.NotBefore.After(p.now) {
			t.Errorf("%s is dispatched again at once", s)
		}
	}
}

// TestSoakGoesOnAfterRestarts: however often fleetd restarts, a soak ends at its time, once the
// device has passed its checks again.
func TestSoakGoesOnAfterRestarts(t *testing.T) {
	p := walk(t, campaign.DeploymentVerifying)
	until := *p.d.Deadline
	for range 3 {
		p.now = p.now.Add(soakTime / 10)
		p.sees(campaign.Observation{Kind: "fleetd_start"})
		if !p.d.Deadline.Equal(until) || p.d.Checked {
			t.Fatalf("after a start the soak ends at %s, want %s", p.d.Deadline, until)
		}
	}
	p.now = until.Add(time.Second)
	p.sees(campaign.Observation{Kind: "fleetd_start"})
	p.kinds("timer")
	p.mustBe(campaign.DeploymentVerifying) // it has not passed its checks again
	p.kinds("healthy")
	p.mustBe(campaign.DeploymentSucceeded)

	p = walk(t, campaign.DeploymentVerifying)
	p.now = p.d.Deadline.Add(time.Hour)
	p.sees(campaign.Observation{Kind: "fleetd_start"})
	p.kinds("healthy")
	p.mustBe(campaign.DeploymentSucceeded)

	p = walk(t, campaign.DeploymentVerifying)
	p.now = *p.d.Deadline
	p.kinds("timer") // it is over, and the device has not answered yet
	p.now = p.d.Deadline.Add(time.Hour)
	p.sees(campaign.Observation{Kind: "fleetd_start"})
	p.kinds("timer")
	p.mustBe(campaign.DeploymentVerifying) // it has its time to answer once more
	p.kinds("healthy")
	p.mustBe(campaign.DeploymentSucceeded) // at once

	p = walk(t, campaign.DeploymentVerifying)
	p.now = p.d.Deadline.Add(time.Hour)
	p.sees(campaign.Observation{Kind: "fleetd_start"})
	p.sees(campaign.Observation{Kind: "probe", ELF: oldELF})
	p.mustBe(campaign.DeploymentRolledBack)
}

// TestAdvanceVersionOnly: if a device never names its build, its version counts; otherwise it
// does not.
func TestAdvanceVersionOnly(t *testing.T) {
	p := walk(t, campaign.DeploymentRebooting)
	p.d.FromELF = ""
	p.sees(campaign.Observation{Kind: "boot_poll", Version: "2.4.3"})
	p.mustBe(campaign.DeploymentBooted)

	p = walk(t, campaign.DeploymentRebooting)
	p.d.FromELF = ""
	p.sees(campaign.Observation{Kind: "boot_poll", Version: "2.4.2"})
	p.mustBe(campaign.DeploymentRolledBack)

	p = walk(t, campaign.DeploymentRebooting)
	p.d.FromELF, p.d.FromVersion = "", "2.4.3"
	p.sees(campaign.Observation{Kind: "boot_poll", Version: "2.4.3"})
	p.mustBe(campaign.DeploymentRebooting)
}

// TestAdvanceForeignText: text from devices is bounded and cleaned.
func TestAdvanceForeignText(t *testing.T) {
	p := walk(t, campaign.DeploymentSent)
	p.sees(campaign.Observation{Kind: "refused", Attempt: 1, CallError: "tool_error", Detail: "no\x00\x1b[31m" + string(make([]byte, 100_000)) +
		string(slices.Repeat([]byte("ä"), 2000))})
	text, _ := reportOf(p.d.Reason)
	if len(text) > 500 || len(said(p.last.Event.Reason)) > 500 || text[:2] != "no" || text[2] < ' ' {
		t.Errorf("reason of %d bytes: %.20q", len(text), text)
	}
}

// A client that has the link and repeats its request does not fill the database: a GET is stored
// only if something else happened or a second passed since the last one.
func TestGETsInALoop(t *testing.T) {
	p := newPatient(t)
	p.begin(firmware.ModePush)
	p.kinds(fleet.EvidenceSent, fleet.EvidenceGet)
	rows := 0
	for range 1000 {
		p.now = p.now.Add(time.Millisecond)
		o := p.observation(fleet.EvidenceGet)
		o.At = p.now
		if campaign.Advance(&p.d, o, &plan, soakTime, timers).Event != nil {
			rows++
		}
		p.mustBeSound()
	}
	if rows > 0 {
		t.Errorf("%d rows for a thousand GETs in a second", rows)
	}
	if p.sees(p.observation(fleet.EvidenceGet)); p.last.Event == nil {
		t.Error("a GET a second later is no evidence")
	}
	if p.expire(); p.d.State == campaign.DeploymentDownloading {
		t.Errorf("still downloading at its deadline")
	}
}
