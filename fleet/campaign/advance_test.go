package campaign_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

const (
	newELF   = "aaaa"
	oldELF   = "bbbb"
	otherELF = "cccc"

	soakTime  = 2 * time.Minute
	imageSize = 2600 << 10
)

var (
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	timers = campaign.DefaultTimers
	plan   = campaign.Plan{MaxAttempts: 3, MaxReconnects: 3}
)

// A patient is a deployment under test, with a clock.
type patient struct {
	t    *testing.T
	d    campaign.Deployment
	now  time.Time
	last campaign.Step
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{t: t, now: noon, d: campaign.Deployment{
		ID: uuid.MustParse("0199a000-0000-7000-8000-000000000001"), Device: "a085e3112233", State: campaign.DeploymentQueued,
		ImageSize: imageSize, TargetELF: newELF, FromELF: oldELF, ToVersion: "2.4.3", FromVersion: "2.4.2",
		CreatedAt: noon, UpdatedAt: noon}}
	return p
}

// sees makes an observation one second later.
func (p *patient) sees(o campaign.Observation) campaign.Step {
	p.t.Helper()
	p.now = p.now.Add(time.Second)
	o.At = p.now
	p.last = campaign.Advance(&p.d, o, &plan, soakTime, timers)
	p.mustBeSound()
	return p.last
}

func (p *patient) kinds(kinds ...fleet.EvidenceKind) {
	p.t.Helper()
	for _, k := range kinds {
		p.sees(p.observation(k))
	}
}

// observation fills in what the kind needs; polls and probes report the image.
func (p *patient) observation(k fleet.EvidenceKind) campaign.Observation {
	o := campaign.Observation{Kind: k}
	switch k {
	case fleet.EvidenceBootPoll, fleet.EvidenceInitialize, fleet.EvidenceProbe:
		o.ELF = newELF
	case fleet.EvidenceSent, fleet.EvidenceNotSent, fleet.EvidenceRefused, fleet.EvidenceAnswer, fleet.EvidenceLateAnswer,
		fleet.EvidenceGet, fleet.EvidenceBytes, fleet.EvidenceCut, fleet.EvidenceDownloaded, fleet.EvidenceJob:
		o.Attempt = p.d.Attempt
	}
	if k == fleet.EvidenceDownloaded {
		o.Bytes = imageSize
	}
	return o
}

func (p *patient) begin(mode firmware.DispatchMode) {
	p.now = p.now.Add(time.Second)
	campaign.BeginAttempt(&p.d, mode, p.now, timers)
}

// expire lets the deadline of the current step pass.
func (p *patient) expire() campaign.Step {
	p.t.Helper()
	if p.d.Deadline == nil {
		p.t.Fatalf("%s has no deadline", p.d.State)
	}
	p.now = p.d.Deadline.Add(-time.Second)
	return p.sees(campaign.Observation{Kind: fleet.EvidenceTimer})
}

func (p *patient) mustBe(s campaign.DeploymentState) {
	p.t.Helper()
	if p.d.State != s {
		p.t.Fatalf("state is %s (%s), want %s", p.d.State, p.d.Reason, s)
	}
}

// mustBeSound checks what must hold for every deployment after every step.
func (p *patient) mustBeSound() {
	p.t.Helper()
	if err := unsound(p.d, p.last); err != "" {
		p.t.Fatalf("after %+v: %s: %+v", p.last, err, p.d)
	}
}

func unsound(d campaign.Deployment, s campaign.Step) string {
	switch {
	case d.State.Active() != (d.Deadline != nil):
		return "a deadline belongs to active states and to no other"
	case d.State.Final() != (d.FinishedAt != nil):
		return "final states, and only they, have an end"
	case d.State.Failed() && (d.Class == "" || d.Reason.Is("")):
		return "a failure without class or reason"
	case d.State == campaign.DeploymentSucceeded && (d.Class != "" || !d.Reason.Is("") || d.Away || !d.Checked || !d.Booted):
		return "a success with a blemish"
	case s.Event != nil && s.Event.To != d.State:
		return "the event ends elsewhere"
	case s.Event != nil && s.Event.From != s.Event.To && !s.Changed:
		return "a transition that is not stored"
	}
	return ""
}

// ways lists, for each state, the evidence that leads to it: kinds of observations about the
// image, and steps that run knows.
var ways = map[campaign.DeploymentState]string{
	"pending":     "is-pending",
	"queued":      "",
	"dispatching": "push",
	"offered":     "pull",
	"sent":        "push sent",
	"ambiguous":   "push sent expire",
	"downloading": "push sent get",
	"downloaded":  "push sent get downloaded",
	"rebooting":   "push sent get downloaded disconnect",
	"booted":      "push sent get downloaded disconnect boot_poll",
	"verifying":   "push sent get downloaded disconnect boot_poll connect initialize",
	"succeeded":   "push sent get downloaded disconnect boot_poll connect initialize healthy expire",
	"failed":      "push sent get downloaded late_answer",
	"timed_out":   "push sent get downloaded disconnect expire",
	"rolled_back": "push sent get downloaded disconnect poll-old",
	"wrong_build": "push sent get downloaded disconnect poll-other",
	"unhealthy":   "push sent get downloaded disconnect boot_poll connect initialize unhealthy",
	"rejected":    "push sent refused",
	"skipped":     "unfit",
	"canceled":    "canceled",
	"expired":     "is-expired",
	"aborted":     "push sent get revoked",
	"removed":     "retired",
}

// walk brings a new deployment to a state.
func walk(t *testing.T, s campaign.DeploymentState) *patient {
	t.Helper()
	p := newPatient(t)
	way, known := ways[s]
	if !known {
		t.Fatalf("no way to %s", s)
	}
	p.run(way)
	p.mustBe(s)
	return p
}

func (p *patient) run(script string) {
	p.t.Helper()
	for _, step := range strings.Fields(script) {
		switch step {
		case "push":
			p.begin(firmware.ModePush)
		case "pull":
			p.begin(firmware.ModePull)
		case "expire":
			p.expire()
		case "poll-old":
			p.sees(campaign.Observation{Kind: "boot_poll", ELF: oldELF})
		case "poll-other":
			p.sees(campaign.Observation{Kind: "boot_poll", ELF: otherELF})
		case "is-pending":
			p.d.State = campaign.DeploymentPending
		case "is-expired":
			p.d.State, p.d.FinishedAt = campaign.DeploymentExpired, &p.now
		default:
			p.kinds(fleet.EvidenceKind(step))
		}
	}
}

// TestAdvance lists, for each state, the result of each piece of evidence.
func TestAdvance(t *testing.T) {
	poll := func(elf string) campaign.Observation { return campaign.Observation{Kind: "boot_poll", ELF: elf} }
	initialize := func(elf string) campaign.Observation { return campaign.Observation{Kind: "initialize", ELF: elf} }
	probe := func(elf string, same bool) campaign.Observation {
		return campaign.Observation{Kind: "probe", ELF: elf, SameConnection: same}
	}
	kind := func(k fleet.EvidenceKind) campaign.Observation { return campaign.Observation{Kind: k, Attempt: 1} }
	timer := campaign.Observation{Kind: "timer"}
	tests := []struct {
		from   campaign.DeploymentState
		sees   campaign.Observation
		want   campaign.DeploymentState
		act    campaign.Act
		class  campaign.FailureClass
		reason string // part of it
	}{
		{"pending", kind("canceled"), "canceled", "", "", ""},
		{"pending", poll(newELF), "pending", "", "", ""},
		{"pending", campaign.Observation{Kind: "fleetd_start"}, "pending", "", "", ""},

		{"queued", poll(newELF), "queued", "", "", ""}, // never notified: not our doing
		{"queued", campaign.Observation{Kind: "unfit", Skip: "held"}, "skipped", "", "", "no longer fits"},
		{"queued", kind("canceled"), "canceled", "", "", ""},
		{"queued", kind("retired"), "removed", "", "", "retired"},

		{"dispatching", kind("sent"), "sent", "", "", ""},
		{"dispatching", campaign.Observation{Kind: "not_sent", CallError: "device_offline"}, "queued", "revoke", "", "not sent"},
		{"dispatching", campaign.Observation{Kind: "not_sent", CallError: "device_busy", Detail: "8 calls wait"}, "queued", "revoke",
			"busy", "no buffer left"},
		{"dispatching", campaign.Observation{Kind: "refused", CallError: "tool_error", Detail: "no such tool"}, "rejected", "revoke", "rejected",
			"no such tool"},
		{"dispatching", kind("get"), "downloading", "", "", ""},
		{"dispatching", timer, "ambiguous", "", "", "it still may"},
		{"dispatching", kind("fleetd_start"), "ambiguous", "", "", "may have received it"},
		{"dispatching", kind("revoked"), "aborted", "revoke", "", "revoked"},
		{"dispatching", campaign.Observation{Kind: "unfit", Skip: "held"}, "skipped", "revoke", "", ""},
		{"dispatching", kind("canceled"), "dispatching", "", "", ""},

		{"sent", kind("answer"), "sent", "", "", ""}, // true, from old firmware: no verdict
		{"sent", kind("get"), "downloading", "", "", ""},
		{"sent", kind("downloaded"), "downloaded", "", "", ""},
		{"sent", timer, "ambiguous", "", "", "has not fetched"},
		{"sent", poll(newELF), "booted", "", "", ""},
		{"sent", poll(oldELF), "queued", "revoke", "timeout", "did not fetch"},
		{"sent", initialize(oldELF), "sent", "", "", ""},
		{"sent", kind("refused"), "rejected", "revoke", "rejected", "answered the call with an error"},
		{"sent", kind("disconnect"), "sent", "", "", ""},
		{"sent", kind("retired"), "removed", "revoke", "", ""},
		{"sent", campaign.Observation{Kind: "boot_poll", Version: "2.4.3"}, "sent", "", "", ""}, // a version proves nothing

		{"offered", kind("get"), "downloading", "", "", ""},
		{"offered", timer, "queued", "revoke", "timeout", "was offered the image but did not fetch it"},
		{"offered", poll(oldELF), "queued", "revoke", "timeout", "was offered"},
		{"offered", initialize(oldELF), "queued", "revoke", "timeout", "was offered"},
		{"offered", poll(newELF), "booted", "", "", ""},
		{"offered", kind("revoked"), "aborted", "revoke", "", ""},

		{"ambiguous", kind("get"), "downloading", "", "", ""},
		{"ambiguous", timer, "queued", "revoke", "timeout", "did not fetch"},
		{"ambiguous", poll(oldELF), "queued", "revoke", "timeout", "did not fetch"},
		{"ambiguous", initialize(oldELF), "queued", "revoke", "timeout", "did not fetch"},
		{"ambiguous", probe(oldELF, false), "queued", "revoke", "timeout", "did not fetch"},
		{"ambiguous", poll(newELF), "booted", "", "", ""},
		{"ambiguous", initialize(newELF), "ambiguous", "probe", "", ""},
		{"ambiguous", probe(newELF, false), "rebooting", "", "", "unconfirmed"},
		{"ambiguous", kind("connection_lost"), "ambiguous", "", "", ""},

		{"downloading", kind("cut"), "queued", "revoke", "download", "broke off"},
		{"downloading", timer, "queued", "revoke", "download", "stalled"},
		{"downloading", kind("downloaded"), "downloaded", "", "", ""},
		{"downloading", kind("disconnect"), "downloading", "", "", ""},
		{"downloading", kind("connection_lost"), "downloading", "", "", ""},
		{"downloading", kind("answer"), "downloading", "", "", ""},
		{"downloading", poll(oldELF), "queued", "revoke", "download", "restarted during the download"},
		{"downloading", poll(newELF), "booted", "", "", ""},
		{"downloading", kind("fleetd_start"), "queued", "revoke", "", "fleetd restarted"},
		{"downloading", kind("revoked"), "aborted", "revoke", "", ""},
		{"downloading", probe(newELF, false), "rebooting", "", "", "unconfirmed"},

		{"downloaded", kind("disconnect"), "rebooting", "", "", ""},
		{"downloaded", kind("connection_lost"), "downloaded", "", "", ""},
		{"downloaded", timer, "downloaded", "probe", "", ""},
		{"downloaded", kind("connect"), "downloaded", "probe", "", ""},
		{"downloaded", kind("late_answer"), "failed", "", "image", "refused the image"},
		{"downloaded", kind("answer"), "failed", "", "image", "refused the image"},
		{"downloaded", probe("", true), "failed", "", "image", "refused the image"},
		{"downloaded", probe(oldELF, false), "failed", "", "image", "refused the image"},
		{"downloaded", probe("", false), "downloaded", "", "", ""},
		{"downloaded", probe(newELF, false), "downloaded", "", "", "unconfirmed"},
		{"downloaded", poll(newELF), "booted", "", "", ""},
		{"downloaded", poll(oldELF), "rolled_back", "", "rolled_back", "did not pass its trial"},
		{"downloaded", poll(otherELF), "wrong_build", "", "wrong_build", "cccc"},
		{"downloaded", kind("revoked"), "downloaded", "", "", ""},
		{"downloaded", kind("retired"), "removed", "revoke", "", ""},

		{"rebooting", poll(newELF), "booted", "", "", ""},
		{"rebooting", poll(oldELF), "rolled_back", "", "rolled_back", "did not pass its trial"},
		{"rebooting", poll(otherELF), "wrong_build", "", "wrong_build", "neither"},
		{"rebooting", poll(""), "rebooting", "", "", ""},
		{"rebooting", timer, "timed_out", "", "timeout", "boot poll"},
		{"rebooting", kind("connect"), "rebooting", "probe", "", ""},
		{"rebooting", probe(newELF, false), "rebooting", "", "", "unconfirmed"},
		{"rebooting", probe(oldELF, false), "rolled_back", "", "rolled_back", ""},
		{"rebooting", kind("late_answer"), "failed", "", "image", "refused"},

		{"booted", initialize(newELF), "verifying", "verify", "", ""},
		{"booted", initialize(""), "verifying", "verify", "", ""},
		{"booted", initialize(oldELF), "booted", "probe", "", ""},
		{"booted", probe(newELF, false), "verifying", "verify", "", ""},
		{"booted", probe(oldELF, false), "rolled_back", "", "rolled_back", ""},
		{"booted", kind("connect"), "booted", "", "", ""},
		{"booted", poll(oldELF), "rolled_back", "", "rolled_back", ""},
		{"booted", poll(otherELF), "wrong_build", "", "wrong_build", ""},
		{"booted", poll(newELF), "booted", "", "", ""},
		{"booted", timer, "booted", "probe", "", ""},
		{"booted", kind("late_answer"), "booted", "", "", ""},
		{"booted", kind("revoked"), "booted", "", "", ""},

		{"verifying", kind("healthy"), "verifying", "", "", ""},
		{"verifying", campaign.Observation{Kind: "unhealthy", Reason: fleet.Because("legacy", "detail", "$.battery is gone")}, "unhealthy", "", "unhealthy",
			"$.battery is gone"},
		{"verifying", timer, "verifying", "", "", "waiting for the answer to the health checks"},
		{"verifying", kind("disconnect"), "verifying", "", "", ""},
		{"verifying", kind("connect"), "verifying", "verify", "", ""},
		{"verifying", poll(newELF), "booted", "", "", ""}, // restarted: connects, is checked and soaks again
		{"verifying", poll(oldELF), "rolled_back", "", "rolled_back", ""},
		{"verifying", poll(otherELF), "wrong_build", "", "wrong_build", ""},
		{"verifying", kind("fleetd_start"), "verifying", "verify", "", ""},
		{"verifying", kind("canceled"), "verifying", "", "", ""},

		{"timed_out", poll(newELF), "booted", "", "", ""},
		{"timed_out", poll(oldELF), "timed_out", "", "timeout", ""},
		{"timed_out", initialize(newELF), "timed_out", "", "timeout", ""}, // its boot poll never came
		{"failed", poll(newELF), "booted", "", "", ""},
		{"succeeded", poll(oldELF), "succeeded", "", "", ""},
		{"rolled_back", poll(newELF), "rolled_back", "", "rolled_back", ""},
		{"aborted", poll(newELF), "aborted", "", "", ""},
		{"removed", poll(newELF), "removed", "", "", ""},
		{"skipped", kind("get"), "skipped", "", "", ""},
	}
	for _, tt := range tests {
		name := string(tt.from) + " " + string(tt.sees.Kind) + " " + tt.sees.ELF + tt.sees.Detail
		t.Run(name, func(t *testing.T) {
			p := walk(t, tt.from)
			if tt.sees.Attempt != 0 {
				tt.sees.Attempt = p.d.Attempt
			}
			var step campaign.Step
			if tt.sees.Kind == fleet.EvidenceTimer {
				step = p.expire()
			} else {
				step = p.sees(tt.sees)
			}
			p.mustBe(tt.want)
			if step.Act != tt.act || p.d.Class != tt.class || !strings.Contains(said(p.d.Reason), tt.reason) {
				t.Errorf("act %q, class %q, reason %q; want %q, %q, …%q…", step.Act, p.d.Class, p.d.Reason, tt.act, tt.class,
					tt.reason)
			}
			if tt.reason == "" && !tt.want.Final() && !p.d.Reason.Is("") && tt.from != "ambiguous" {
				t.Errorf("unexpected reason %q", p.d.Reason)
			}
		})
	}
}
