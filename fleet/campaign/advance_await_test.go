package campaign_test

import (
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// reporter returns a deployment in the state, of a device that has reported its progress.
func reporter(t *testing.T, s campaign.DeploymentState) *patient {
	t.Helper()
	p := walk(t, s)
	p.jobSays(campaign.Observation{Job: fleet.JobProgress, Percent: 95})
	return p
}

// TestAdvanceAwaitsReport: if a device that reports comes back with its old build after the last
// byte, its own report says whether the image is to blame.
func TestAdvanceAwaitsReport(t *testing.T) {
	old := map[string]campaign.Observation{"poll": {Kind: "boot_poll", ELF: oldELF}, "probe": {Kind: "probe", ELF: oldELF}}
	tests := []struct {
		then        string // "silence", the code of a report, or a build that polls
		after       string // what showed the old build, from which state; "" is all
		state       campaign.DeploymentState
		class       campaign.FailureClass
		reason      string
		sameVerdict bool // as a device gets that does not report
	}{
		{"canceled", "", "queued", campaign.FailureDownload, "the device reports: so it is", false},
		{"rolled_back", "", "rolled_back", campaign.FailureRolledBack, "the device reports: so it is", false},
		{"corrupt", "", "failed", campaign.FailureImage, "the device reports: so it is", false},
		{"silence", "downloaded poll", "rolled_back", campaign.FailureRolledBack, "did not pass its trial", true},
		{"silence", "rebooting poll", "rolled_back", campaign.FailureRolledBack, "did not pass its trial", true},
		{"silence", "rebooting probe", "rolled_back", campaign.FailureRolledBack, "did not pass its trial", true},
		{"silence", "downloaded probe", "failed", campaign.FailureImage, "refused the image", true},
		{newELF, "", "booted", "", "", false},
		{otherELF, "", "wrong_build", campaign.FailureWrongBuild, "cccc", false},
	}
	for _, from := range []campaign.DeploymentState{"downloaded", "rebooting"} {
		for name, seen := range old {
			for _, tt := range tests {
				if after := string(from) + " " + name; tt.after != "" && tt.after != after {
					continue
				}
				p := reporter(t, from)
				if step := p.sees(seen); step.Act != campaign.ActNone || step.Event == nil || !strings.Contains(said(p.d.Reason),
					"waiting for the device") {
					t.Errorf("%s, %s: %+v, %q", from, name, step, p.d.Reason)
				}
				if p.d.State != "downloaded" && p.d.State != "rebooting" || p.d.Deadline.Sub(p.now) != timers.Connect {
					t.Fatalf("%s, %s: %s, %v left", from, name, p.d.State, p.d.Deadline.Sub(p.now))
				}
				switch tt.then {
				case "silence":
					p.expire()
				case newELF, otherELF:
					p.sees(campaign.Observation{Kind: "boot_poll", ELF: tt.then})
				default:
					p.jobFails(tt.then, "so it is")
				}
				if p.d.State != tt.state || p.d.Class != tt.class || !strings.Contains(said(p.d.Reason), tt.reason) {
					t.Errorf("%s, %s, %s: %s, %s, %q", from, name, tt.then, p.d.State, p.d.Class, p.d.Reason)
				}
				stock := walk(t, from)
				if stock.sees(seen); tt.sameVerdict && (stock.d.State != p.d.State || stock.d.Class != p.d.Class ||
					!stock.d.Reason.Equal(p.d.Reason)) {
					t.Errorf("%s, %s: a device that does not report gets %s, %q", from, name, stock.d.State, stock.d.Reason)
				}
			}
		}
	}
}

// TestAdvanceBootedAndBack: if the image booted and the old build is back, the image was rolled
// back, whatever the device says or does afterwards. Only the reason is awaited.
func TestAdvanceBootedAndBack(t *testing.T) {
	for _, from := range []campaign.DeploymentState{"booted", "verifying"} {
		for _, kind := range []fleet.EvidenceKind{"boot_poll", "probe"} {
			for _, code := range []string{"rolled_back", "canceled", "corrupt", ""} {
				p := reporter(t, from)
				p.sees(campaign.Observation{Kind: kind, ELF: oldELF})
				p.mustBe(campaign.DeploymentRebooting)
				p.kinds("boot_poll", "probe", "connect", "initialize")
				p.mustBe(campaign.DeploymentRebooting)
				want := "the device reports: no broker"
				if code != "" {
					p.jobFails(code, "no broker")
				} else {
					p.expire()
					want = "the device accepted the image but came back with its previous build: the new build did not pass its trial"
				}
				if p.d.State != campaign.DeploymentRolledBack || p.d.Class != campaign.FailureRolledBack ||
					said(p.d.Reason) != want {
					t.Errorf("%s, %s of the old build, %q: %s, %s, %q", from, kind, code, p.d.State, p.d.Class, p.d.Reason)
				}
			}
		}
	}
}

// TestAdvanceAwaitedReportEndsInTime: nothing that such a device does later delays the verdict,
// except a restart of fleetd, which may have missed the report.
func TestAdvanceAwaitedReportEndsInTime(t *testing.T) {
	for _, from := range []campaign.DeploymentState{"downloaded", "rebooting"} {
		p := reporter(t, from)
		p.sees(campaign.Observation{Kind: "boot_poll", ELF: oldELF})
		by := *p.d.Deadline
		for _, o := range []campaign.Observation{{Kind: "connect"}, {Kind: "initialize", ELF: oldELF}, {Kind: "disconnect"},
			{Kind: "boot_poll", ELF: oldELF},
			{Kind: "probe", ELF: oldELF}, {Kind: "probe", ELF: oldELF, SameConnection: true}, {Kind: "late_answer", Attempt: 1},
			{Kind: "timer"},
			{Kind: "job", Attempt: 1, Job: "progress", Percent: 97}, {Kind: "job", Attempt: 7, Job: "failed", Code: "canceled"},
			{Kind: "get", Attempt: 1}} {
			if step := p.sees(o); step.Act != campaign.ActNone {
				t.Errorf("%s, then %s: %q", from, o.Kind, step.Act)
			}
		}
		if p.d.State != campaign.DeploymentRebooting || !p.d.Deadline.Equal(by) {
			t.Errorf("%s: %s until %v, want rebooting until %v", from, p.d.State, p.d.Deadline, by)
		}
		p.kinds("fleetd_start")
		if left := p.d.Deadline.Sub(p.now); left != timers.Connect {
			t.Errorf("%s: %v left after a restart of fleetd", from, left)
		}
		p.expire()
		p.mustBe(campaign.DeploymentRolledBack)
	}
}

// TestAdvancePowerCutIsRetried: after a power cut between the last byte and the switch, the next
// attempt succeeds.
func TestAdvancePowerCutIsRetried(t *testing.T) {
	p := reporter(t, campaign.DeploymentDownloading)
	p.run("downloaded connection_lost poll-old connect")
	p.jobFails("canceled", "the device restarted before the switch")
	p.mustBe(campaign.DeploymentQueued)
	if p.d.Failures != 1 || p.d.NotBefore.Sub(p.now) > 2*timers.Backoff {
		t.Errorf("%d failures, next attempt in %v", p.d.Failures, p.d.NotBefore.Sub(p.now))
	}
	p.now = p.now.Add(2 * time.Minute)
	p.run("push sent get downloaded disconnect boot_poll connect initialize healthy expire")
	p.mustBe(campaign.DeploymentSucceeded)
}

// TestAdvanceUnseenPoll: only stock firmware needs a poll that confirms it.
func TestAdvanceUnseenPoll(t *testing.T) {
	for _, from := range []campaign.DeploymentState{"ambiguous", "downloading", "downloaded", "rebooting"} {
		for reports, p := range map[bool]*patient{false: walk(t, from), true: reporter(t, from)} {
			if reports {
				p.jobSays(campaign.Observation{Job: fleet.JobDone})
			}
			p.sees(campaign.Observation{Kind: "probe", ELF: newELF})
			if !strings.Contains(said(p.d.Reason), "never arrived") || reports == strings.Contains(said(p.d.Reason), "rolled back") {
				t.Errorf("%s, reports %v: %q", from, reports, p.d.Reason)
			}
			if step := p.sees(campaign.Observation{Kind: "connect"}); step.Act != campaign.ActNone {
				t.Errorf("%s, reports %v: asked again", from, reports)
			}
			for p.d.State.Active() {
				p.expire()
			}
			p.mustBe(campaign.DeploymentTimedOut)
			if !strings.HasPrefix(said(p.d.Reason), "boot poll: runs the new build") {
				t.Errorf("%s, reports %v: %q", from, reports, p.d.Reason)
			}
		}
	}
}
