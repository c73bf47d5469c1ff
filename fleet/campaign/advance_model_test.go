package campaign_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// everyKind lists every kind of evidence, known to Advance or not.
var everyKind = []fleet.EvidenceKind{"sent", "answer", "disconnect", "connection_lost", "boot_poll", "connect",
	"upload",
	"planned", "wave_opened", "dispatched", "offered", "not_sent", "refused", "late_answer", "get", "bytes", "cut",
	"downloaded",
	"initialize", "probe", "healthy", "unhealthy", "timer", "retry", "revoked", "canceled", "retired", "fleetd_start",
	"unfit",
	"quarantined", "job", "no_such_kind"}

// TestAdvanceTotal combines every state with every kind of evidence, build, time and attempt:
// nothing panics, and nothing waits without a deadline.
func TestAdvanceTotal(t *testing.T) {
	for _, s := range campaign.DeploymentStates {
		start := walk(t, s)
		for _, k := range everyKind {
			for _, elf := range []string{"", newELF, oldELF, otherELF} {
				for _, after := range []time.Duration{-time.Hour, 0, time.Second, time.Hour} {
					for _, attempt := range []int{0, 1, 7} {
						for _, job := range reports(k) {
							o := campaign.Observation{Kind: k, ELF: elf, Attempt: attempt, At: start.now.Add(after),
								SameConnection: after == 0, Bytes: 10,
								Job: job.Job, Percent: job.Percent, Code: job.Code, Detail: job.Detail}
							d := start.d
							step := campaign.Advance(&d, o, &plan, soakTime, timers)
							if err := unsound(d, step); err != "" {
								t.Fatalf("%s, %+v: %s: %+v", s, o, err, d)
							}
							mustReportChanges(t, start.d, d, step)
						}
					}
				}
			}
		}
	}
}

// reports returns the possible reports of evidence of the kind: one, except for jobs.
func reports(k fleet.EvidenceKind) []campaign.Observation {
	if k == fleet.EvidenceJob {
		return everyJob
	}
	return make([]campaign.Observation, 1)
}

// mustReportChanges: a row that differs is reported, and the identity never differs.
func mustReportChanges(t interface{ Fatalf(string, ...any) }, was, is campaign.Deployment, step campaign.Step) {
	if !step.Changed && !reflect.DeepEqual(was, is) {
		t.Fatalf("changed, and does not say so: %s", cmp.Diff(was, is))
	}
	if is.UpdatedAt.Before(was.UpdatedAt) || is.Attempt != was.Attempt || is.Revision != was.Revision || is.ID != was.ID {
		t.Fatalf("from %+v to %+v", was, is)
	}
	if is.State != was.State && step.Event == nil {
		t.Fatalf("%s became %s without a row", was.State, is.State)
	}
}

// A world is what a model test knows about one deployment.
type world struct {
	d    campaign.Deployment
	now  time.Time
	plan campaign.Plan
	past []campaign.Observation

	polled    bool // a poll of the image since the attempt began
	inventory bool // initialize or a probe of it after that
	healthy   bool
}

// TestAdvanceModel feeds deployments random orders of evidence, with duplicates, late arrivals,
// restarts and new attempts.
func TestAdvanceModel(t *testing.T) {
	outcomes := make(map[campaign.DeploymentState]int)
	rapid.Check(t, func(t *rapid.T) {
		w := &world{now: noon, plan: campaign.Plan{MaxAttempts: rapid.IntRange(1, 4).Draw(t, "attempts"),
			MaxReconnects: rapid.IntRange(1, 3).Draw(t, "reconnects")},
			d: campaign.Deployment{ID: uuid.Max, State: campaign.DeploymentQueued, ImageSize: 1 << 20, TargetELF: newELF,
				FromELF: rapid.SampledFrom([]string{oldELF, ""}).Draw(t, "from"), UpdatedAt: noon}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.step(t)
		}
		outcomes[w.d.State]++
	})
	t.Log(outcomes)
	if outcomes[campaign.DeploymentSucceeded] == 0 {
		t.Errorf("the model never came to an end worth the name: %v", outcomes)
	}
}

func (w *world) step(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
	if w.d.State == campaign.DeploymentQueued {
		w.begin(t)
	}
	o := w.draw(t)
	w.past = append(w.past, o)
	was := w.d
	step := campaign.Advance(&w.d, o, &w.plan, time.Minute, timers)
	if err := unsound(w.d, step); err != "" {
		t.Fatalf("%s, %+v: %s: %+v", was.State, o, err, w.d)
	}
	mustReportChanges(t, was, w.d, step)
	w.remember(o)
	w.mustKeepVerdict(t, was, o)
	w.mustHear(t, was, o)
	w.mustHaveProof(t)
	mustBeKnown(t, w.d.Reason)
	if step.Event != nil {
		mustBeKnown(t, step.Event.Reason)
	}
}

// begin plays the engine: it starts an attempt once the back-off is over.
func (w *world) begin(t *rapid.T) {
	if w.d.NotBefore != nil && w.now.Before(*w.d.NotBefore) {
		if !rapid.Bool().Draw(t, "wait") {
			return
		}
		w.now = *w.d.NotBefore
	}
	campaign.BeginAttempt(&w.d, rapid.SampledFrom([]firmware.DispatchMode{firmware.ModePush, firmware.ModePull}).Draw(t,
		"mode"), w.now, timers)
	w.polled, w.inventory, w.healthy = false, false, false
}

// draw returns an observation: the likely next one, any other, or an old one again.
func (w *world) draw(t *rapid.T) campaign.Observation {
	how := rapid.IntRange(0, 9).Draw(t, "how")
	if how == 0 && len(w.past) > 0 {
		return rapid.SampledFrom(w.past).Draw(t, "again")
	}
	o := campaign.Observation{At: w.now, ELF: newELF, Attempt: w.d.Attempt}
	if next, ok := likely[w.d.State]; ok && how > 2 {
		o.Kind = next
	} else {
		o.Kind = rapid.SampledFrom(everyKind).Draw(t, "kind")
		o.ELF = rapid.SampledFrom([]string{newELF, newELF, oldELF, otherELF, ""}).Draw(t, "elf")
		o.Attempt = rapid.IntRange(0, w.d.Attempt).Draw(t, "attempt")
		o.SameConnection = rapid.Bool().Draw(t, "same")
	}
	job := rapid.SampledFrom(reports(o.Kind)).Draw(t, "job")
	o.Job, o.Percent, o.Code, o.Detail = job.Job, job.Percent, job.Code, job.Detail
	o.Skip = rapid.SampledFrom([]firmware.SkipReason{firmware.SkipHeld, firmware.SkipInstalled}).Draw(t, "skip")
	o.CallError = rapid.SampledFrom([]string{"", fleet.CodeToolError, fleet.CodeBusy, fleet.CodeOffline}).Draw(t, "error")
	o.Bytes = int64(rapid.IntRange(0, 1<<20).Draw(t, "bytes"))
	if rapid.IntRange(0, 9).Draw(t, "late") == 0 {
		o.At = o.At.Add(-time.Minute)
	}
	if o.Kind == fleet.EvidenceTimer && w.d.Deadline != nil {
		o.At, w.now = *w.d.Deadline, *w.d.Deadline
	}
	return o
}

var likely = map[campaign.DeploymentState]fleet.EvidenceKind{"dispatching": "sent", "sent": "get", "offered": "get",
	"ambiguous":   "get",
	"downloading": "downloaded", "downloaded": "disconnect", "rebooting": "boot_poll", "booted": "initialize",
	"verifying": "healthy",
	"timed_out": "boot_poll", "failed": "boot_poll"}

func (w *world) remember(o campaign.Observation) {
	installed := o.Kind == "unfit" && o.Skip == firmware.SkipInstalled
	w.polled = w.polled || installed || o.Kind == "boot_poll" && o.ELF == newELF
	w.inventory = w.inventory || w.polled && (o.Kind == "initialize" && (o.ELF == newELF || o.ELF == "") ||
		o.Kind == "probe" && o.ELF == newELF)
	w.healthy = w.healthy || w.inventory && o.Kind == "healthy"
}

// mustKeepVerdict: final states absorb everything but late success.
func (w *world) mustKeepVerdict(t *rapid.T, was campaign.Deployment, o campaign.Observation) {
	if !was.State.Final() {
		return
	}
	if w.d.State == was.State {
		if o.Kind == fleet.EvidenceJob && o.Job == fleet.JobFailed && was.State.Failed() { // it may explain itself, once
			if !campaign.ReportedByDevice(was.Reason) {
				was.Reason, was.UpdatedAt = w.d.Reason, w.d.UpdatedAt
			}
		}
		if diff := cmp.Diff(was, w.d); diff != "" {
			t.Fatalf("%s changed by %+v: %s", was.State, o, diff)
		}
		return
	}
	givenUp := was.State == campaign.DeploymentTimedOut || was.State == campaign.DeploymentFailed
	if !givenUp || o.ELF != newELF || !w.d.Late || !w.d.Booted || w.d.State != campaign.DeploymentBooted &&
		w.d.State != campaign.DeploymentVerifying {
		t.Fatalf("%s was re-opened as %s by %+v", was.State, w.d.State, o)
	}
}

// mustHear: if a device that reports has its old build after the last byte, only its report or
// its silence counts against it.
func (w *world) mustHear(t *rapid.T, was campaign.Deployment, o campaign.Observation) {
	if was.Percent == nil || campaign.ReportedByDevice(was.Reason) || was.State.Final() ||
		w.d.State != campaign.DeploymentRolledBack {
		return
	}
	if o.Kind != fleet.EvidenceJob && (o.Kind != fleet.EvidenceTimer ||
		!was.Reason.Is(campaign.ReasonAwaitsReport)) {
		t.Fatalf("%s (%s) was judged by %+v", was.State, was.Reason, o)
	}
}

// mustHaveProof: success requires a poll of the image, a connection after it, and passed checks.
func (w *world) mustHaveProof(t *rapid.T) {
	if w.d.State == campaign.DeploymentSucceeded && !(w.polled && w.inventory && w.healthy) {
		t.Fatalf("succeeded with poll %v, inventory %v, checks %v", w.polled, w.inventory, w.healthy)
	}
	if w.d.Failures > w.plan.MaxAttempts || w.d.Failures > w.d.Attempt {
		t.Fatalf("%d failures in %d attempts, at most %d", w.d.Failures, w.d.Attempt, w.plan.MaxAttempts)
	}
}

// TestAdvanceDeterminism: the rows alone decide the outcome.
func TestAdvanceDeterminism(t *testing.T) {
	run := func() (out string) {
		p := walk(t, campaign.DeploymentDownloading)
		p.kinds("cut")
		return fmt.Sprintf("%v %v", p.d.NotBefore, p.d)
	}
	if a, b := run(), run(); a != b {
		t.Errorf("%s\n%s", a, b)
	}
}
