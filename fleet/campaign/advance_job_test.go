package campaign_test

import (
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
)

// jobSays returns a report of the device about the current attempt.
func (p *patient) jobSays(o campaign.Observation) campaign.Step {
	p.t.Helper()
	o.Kind, o.Attempt = fleet.EvidenceJob, p.d.Attempt
	return p.sees(o)
}

func (p *patient) jobFails(code, sentence string) campaign.Step {
	p.t.Helper()
	return p.jobSays(campaign.Observation{Job: fleet.JobFailed, Code: code, Detail: sentence})
}

// everyJob lists everything that a device can report, true or not.
var everyJob = []campaign.Observation{
	{Job: "accepted"}, {Job: "progress", Percent: 0}, {Job: "progress", Percent: 55}, {Job: "progress", Percent: 1000},
	{Job: "progress", Percent: -3},
	{Job: "done"}, {Job: "failed"}, {Job: "failed", Code: "busy", Detail: "an upgrade is under way"},
	{Job: "failed", Code: "unavailable", Detail: "cut"},
	{Job: "failed", Code: "corrupt", Detail: "not sound\x1b[31m"}, {Job: "failed", Code: "refused"},
	{Job: "failed", Code: "rolled_back", Detail: "no broker"},
	{Job: "failed", Code: "new_in_3"}, {Job: "finished"},
}

// TestAdvanceByCode: the code decides what follows; the text is shown.
func TestAdvanceByCode(t *testing.T) {
	tests := []struct {
		code  string
		state campaign.DeploymentState
		class campaign.FailureClass
	}{
		{"unavailable", "queued", campaign.FailureDownload}, {"timeout", "queued", campaign.FailureDownload},
		{"io", "queued", campaign.FailureDownload},
		{"no_memory", "queued", campaign.FailureDownload}, {"canceled", "queued", campaign.FailureDownload},
		{"", "queued", campaign.FailureDownload},
		{"busy", "queued", campaign.FailureBusy},
		{"corrupt", "failed", campaign.FailureImage}, {"wrong_target", "failed", campaign.FailureImage},
		{"no_space", "failed", campaign.FailureImage},
		{"refused", "rejected", campaign.FailureRejected}, {"invalid", "rejected", campaign.FailureRejected},
		{"rolled_back", "rolled_back", campaign.FailureRolledBack},
	}
	for _, from := range []campaign.DeploymentState{"dispatching", "sent", "offered", "ambiguous", "downloading",
		"downloaded", "rebooting"} {
		for _, tt := range tests {
			p := walk(t, from)
			step := p.jobFails(tt.code, "not\x00 today")
			if text, ok := reportOf(p.d.Reason); p.d.State != tt.state || p.d.Class != tt.class || !ok ||
				text != "not today" {
				t.Errorf("%s, then failed with %q: %s, %s, %q", from, tt.code, p.d.State, p.d.Class, p.d.Reason)
			}
			if step.Act != campaign.ActRevoke || step.Event == nil {
				t.Errorf("%s, then failed with %q: %+v: the link must end", from, tt.code, step)
			}
		}
	}
}

// TestAdvanceProgress: progress keeps the attempt alive, up to a bound, and stores few rows.
func TestAdvanceProgress(t *testing.T) {
	p := newPatient(t)
	p.run("push sent")
	var details []string
	for percent := 0; percent <= 100; percent += 5 {
		o := campaign.Observation{Job: fleet.JobProgress, Percent: percent}
		if percent == 0 {
			o.Job = fleet.JobAccepted
		}
		if step := p.jobSays(o); step.Event != nil {
			details = append(details, said(step.Event.Reason))
		}
		if percent == 10 {
			p.kinds("get")
		}
	}
	if want := []string{"accepted", "progress 25%", "progress 50%", "progress 75%", "progress 100%"}; !slices.Equal(details,
		want) {
		t.Errorf("rows %q, want %q", details, want)
	}
	p.mustBe(campaign.DeploymentDownloading)
	if p.d.Percent == nil || *p.d.Percent != 100 || p.d.Deadline.Sub(p.now) < timers.Stall-10*time.Second {
		t.Errorf("percent %v, %v left", p.d.Percent, p.d.Deadline.Sub(p.now))
	}
}

func TestAdvanceReportsDoNotHoldAPlaceForEver(t *testing.T) {
	for _, from := range []campaign.DeploymentState{"sent", "offered", "ambiguous", "downloading"} {
		p := walk(t, from)
		began := p.now
		for percent := 1; p.d.State.Active() && p.now.Sub(began) < 2*time.Hour; percent++ {
			p.now = p.now.Add(30 * time.Second)
			p.jobSays(campaign.Observation{Job: fleet.JobProgress, Percent: percent % 100})
			p.sees(campaign.Observation{Kind: "timer"})
		}
		if p.d.State.Active() {
			t.Errorf("%s is %s after two hours of reports", from, p.d.State)
		}
	}
}

// TestAdvanceResume: a device that reports resumes after an interrupted download; the attempt of
// another device ends.
func TestAdvanceResume(t *testing.T) {
	p := walk(t, campaign.DeploymentDownloading)
	p.jobSays(campaign.Observation{Job: fleet.JobProgress, Percent: 40})
	p.sees(campaign.Observation{Kind: "cut", Attempt: 1, Bytes: 1 << 20})
	p.mustBe(campaign.DeploymentDownloading)
	if p.last.Act != campaign.ActNone || p.d.Failures != 0 {
		t.Errorf("a device that will resume had its link taken: %+v", p.last)
	}
	p.sees(campaign.Observation{Kind: "fleetd_start"})
	p.mustBe(campaign.DeploymentDownloading)
	if p.last.Act != campaign.ActNone || p.last.Event == nil || p.d.Deadline.Before(p.now) {
		t.Errorf("after a restart of fleetd the device can not resume: %+v", p.last)
	}
	p.kinds("get", "downloaded")
	p.mustBe(campaign.DeploymentDownloaded)
	p = walk(t, campaign.DeploymentDownloading)
	p.jobSays(campaign.Observation{Job: fleet.JobAccepted})
	p.sees(campaign.Observation{Kind: "cut", Attempt: 1})
	p.expire()
	p.mustBe(campaign.DeploymentQueued)
}

// TestAdvanceStillChecking: after the last byte, a device that reports says whether it refuses
// the image. A sign of life alone does not decide.
func TestAdvanceStillChecking(t *testing.T) {
	p := newPatient(t)
	p.run("push sent get")
	p.jobSays(campaign.Observation{Job: fleet.JobProgress, Percent: 95})
	p.run("downloaded expire")
	p.sees(campaign.Observation{Kind: "probe", SameConnection: true, Attempt: 1})
	p.mustBe(campaign.DeploymentDownloaded)
	p.jobFails("corrupt", "the image's SHA-256 is not the stated one")
	p.mustBe(campaign.DeploymentFailed)
	if p.d.Class != campaign.FailureImage {
		t.Errorf("class %s", p.d.Class)
	}
}

// TestAdvanceRecordsWhyItRolledBack: the poll of the old build gives the verdict; the device's
// reason comes over MQTT a little later.
func TestAdvanceRecordsWhyItRolledBack(t *testing.T) {
	const why = "the new image did not get through to the broker"
	p := walk(t, campaign.DeploymentRolledBack)
	step := p.jobFails("rolled_back", why)
	if text, _ := reportOf(p.d.Reason); text != why || step.Event == nil ||
		said(step.Event.Reason) != "failed rolled_back: "+why {
		t.Errorf("reason %q, row %+v", p.d.Reason, step.Event)
	}
	if step := p.jobFails("rolled_back", "another story"); step.Event != nil || step.Changed {
		t.Errorf("the same report twice made a row: %+v", step.Event)
	}
	p.mustBe(campaign.DeploymentRolledBack)
}

// TestAdvanceDoubts: a report of failure after the poll of the image counts against the device,
// and its text is kept for the verdict.
func TestAdvanceDoubts(t *testing.T) {
	for _, from := range []campaign.DeploymentState{"booted", "verifying"} {
		p := walk(t, from)
		if step := p.jobFails("rolled_back", "no broker"); step.Act != campaign.ActProbe || step.Event == nil {
			t.Errorf("%s: %+v, want a probe", from, step)
		}
		p.mustBe(from)
		if step := p.jobFails("corrupt", "no, another"); step.Act != campaign.ActNone || step.Event != nil {
			t.Errorf("%s: a second report made %+v", from, step)
		}
		probed := p.d
		p.sees(campaign.Observation{Kind: "probe", ELF: oldELF})
		p.mustBe(campaign.DeploymentRolledBack)
		if text, _ := reportOf(p.d.Reason); text != "no broker" {
			t.Errorf("%s: reason %q", from, p.d.Reason)
		}
		p.d = probed
		p.kinds("probe")
		if p.d.State == campaign.DeploymentBooted || p.d.State == campaign.DeploymentVerifying {
			continue
		}
		t.Errorf("%s: a probe of the image made it %s", from, p.d.State)
	}
}

// TestAdvanceDoneIsNoProof: the report "done" makes fleetd ask for missing proof, and changes no
// verdict.
func TestAdvanceDoneIsNoProof(t *testing.T) {
	for _, s := range campaign.DeploymentStates {
		p := walk(t, s)
		step := p.jobSays(campaign.Observation{Job: fleet.JobDone})
		if p.d.State != s {
			t.Errorf("done made %s into %s", s, p.d.State)
		}
		asks := s.Active() && s != campaign.DeploymentBooted && s != campaign.DeploymentVerifying
		if asks != (step.Act == campaign.ActProbe) {
			t.Errorf("%s: done led to %q", s, step.Act)
		}
	}
	p := walk(t, campaign.DeploymentRebooting)
	p.jobSays(campaign.Observation{Job: fleet.JobDone})
	p.sees(campaign.Observation{Kind: "probe", ELF: oldELF}) // it lied, or spoke too soon
	p.expire()
	p.mustBe(campaign.DeploymentRolledBack)
}

// TestAdvanceForgedReports: reports about other attempts, or about none, change nothing.
func TestAdvanceForgedReports(t *testing.T) {
	for _, s := range campaign.DeploymentStates {
		for _, attempt := range []int{0, 7} {
			for _, o := range everyJob {
				p := walk(t, s)
				was := p.d
				o.Kind, o.Attempt = fleet.EvidenceJob, attempt
				if step := p.sees(o); step.Act != campaign.ActNone || step.Changed || step.Event != nil {
					t.Errorf("%s: %+v made %+v", s, o, step)
				}
				if p.d.State != was.State {
					t.Errorf("%s became %s by %+v", s, p.d.State, o)
				}
			}
		}
	}
}

// TestAdvanceLateSuccessAfterReport: the poll of the image is proof, whatever the device said
// before.
func TestAdvanceLateSuccessAfterReport(t *testing.T) {
	for code, want := range map[string]campaign.DeploymentState{"unavailable": "booted", "corrupt": "booted",
		"rolled_back": "rolled_back"} {
		p := walk(t, campaign.DeploymentDownloaded)
		p.jobFails(code, "it seems")
		p.kinds("boot_poll")
		p.mustBe(want)
	}
}

// TestAdvanceRefusals: if a device answers the order with an error, its text is shown; a busy
// device is asked again.
func TestAdvanceRefusals(t *testing.T) {
	tests := []struct {
		call   string // code of its error
		detail string
		state  campaign.DeploymentState
		class  campaign.FailureClass
		text   string // the device's
	}{
		{"tool_error", "refused: only signed images are taken here", "rejected", campaign.FailureRejected,
			"only signed images are taken here"},
		{"tool_error", "busy: an upgrade is under way", "queued", campaign.FailureBusy, "an upgrade is under way"},
		{"tool_error", "wrong_target: the image is for another chip", "rejected", campaign.FailureRejected,
			"the image is for another chip"},
		{"tool_error", "Missing valid argument: url", "rejected", campaign.FailureRejected, "Missing valid argument: url"},
		{"answered_false", "the device answered false", "rejected", campaign.FailureRejected, ""},
		{"", "", "rejected", campaign.FailureRejected, ""},
	}
	for _, tt := range tests {
		p := walk(t, campaign.DeploymentSent)
		o := campaign.Observation{Kind: "refused", Attempt: 1, CallError: tt.call, Detail: tt.detail}
		if tt.call == fleet.CodeToolError {
			o.Code, o.Detail = campaign.ParseRefusal(tt.detail)
		}
		p.sees(o)
		text, reported := reportOf(p.d.Reason)
		if p.d.State != tt.state || p.d.Class != tt.class || reported != (tt.text != "") || reported && text != tt.text ||
			p.d.Reason.Is("") {
			t.Errorf("%q: %s, %s, %q", tt.detail, p.d.State, p.d.Class, p.d.Reason)
		}
	}
}
