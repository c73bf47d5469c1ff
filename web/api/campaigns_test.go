package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// planned creates a campaign for the two devices of the world that joined.
func (w *world) planned(t testing.TB, more string) CampaignView {
	t.Helper()
	return decode[CampaignView](t, w.post(t, "/campaigns", w.planOf(t, more)), 201)
}

func (w *world) planOf(t testing.TB, more string) string {
	t.Helper()
	return `{"name":"spring","release_id":"` + w.release(t).ID + `","q":"chip:esp32s3"` + more + `}`
}

func (w *world) act(t testing.TB, c CampaignView, verb, body string) CampaignView {
	t.Helper()
	return decode[CampaignView](t, w.post(t, "/campaigns/"+c.ID.String()+"/"+verb, body), 200)
}

func TestCampaign(t *testing.T) {
	w := newWorld(t)
	made := w.post(t, "/campaigns", w.planOf(t, ""), "Idempotency-Key", "k")
	c := decode[CampaignView](t, made, 201)
	if c.State != campaign.Draft || c.Targets != 2 || c.Skipped != 1 || c.Mode != firmware.ModeAuto ||
		c.MaxInFlight != 10 || c.MaxAttempts != 3 ||
		len(c.Waves) != 3 || len(c.AbortRules) == 0 || c.Digest == "" || c.Counts[campaign.DeploymentPending] != 2 ||
		c.Counts[campaign.DeploymentSkipped] != 1 ||
		made.header.Get("Location") != prefix+"/campaigns/"+c.ID.String() || c.CreatedBy.Name != "admin-script" ||
		c.EndsAt != nil {
		t.Errorf("answered %v %s", made.header, made.body)
	}
	if p := c.Progress; len(p.Funnel) != len(campaign.FunnelSteps) || len(p.Skipped) != 1 ||
		p.Skipped[0].Reason != firmware.SkipNotEnrolled || p.Skipped[0].Count != 1 {
		t.Errorf("the progress is %+v", p)
	}
	if c = w.act(t, c, "start", ""); c.State != campaign.Running || c.StartedAt == nil || c.StartedBy == nil ||
		c.EndsAt == nil {
		t.Errorf("started it is %+v", c.CampaignHead)
	}
	if c = w.act(t, c, "pause", `{"reason":"lunch"}`); c.State != campaign.Paused ||
		*c.PauseReason != campaign.PausedByOperator || c.Reason != "lunch" {
		t.Errorf("paused it is %+v", c.CampaignHead)
	}
	if c = w.act(t, c, "resume", ""); c.State != campaign.Running || c.PauseReason != nil {
		t.Errorf("resumed it is %+v", c.CampaignHead)
	}
	if p := w.post(t, "/campaigns/"+c.ID.String()+"/start", "").problem(t); p.Status != 409 || p.Code != "wrong_state" {
		t.Errorf("a second start is answered %+v", p)
	}
	if c = w.act(t, c, "abort", `{"rollback":true}`); c.State != campaign.Stopping {
		t.Errorf("aborted it is %s", c.State)
	}
	if got := decode[list[CampaignItem]](t, w.get(t, "/campaigns?state=stopping,running&release="+c.ReleaseID.String()),
		200); len(got.Items) != 1 || got.Items[0].ID != c.ID {
		t.Errorf("listed %+v", got.Items)
	}
	walk(t, w, "/campaigns?limit=1", 1)
}

func TestEditAndDiscard(t *testing.T) {
	w := newWorld(t)
	c := w.planned(t, "")
	path := "/campaigns/" + c.ID.String()
	edited := decode[CampaignView](t, w.as(t, fleet.RoleOperator, http.MethodPatch, path,
		`{"max_in_flight":3,"devices":["A0:85:E3:11:22:33"],"waves":[{"percent":100}],"abort_rules":[]}`), 200)
	if edited.MaxInFlight != 3 || edited.Targets != 1 || edited.Query != "" || !slices.Equal(edited.Devices,
		[]fleet.DeviceID{unit}) || edited.Name != "spring" ||
		edited.Digest == c.Digest || len(edited.Waves) != 1 || len(edited.AbortRules) != 0 ||
		edited.EditedBy.Name != "operator-script" || edited.Revision <= c.Revision {
		t.Errorf("changed to %+v", edited)
	}
	if gone := decode[CampaignView](t, w.as(t, fleet.RoleOperator, http.MethodDelete, path, ""),
		200); gone.State != campaign.Discarded {
		t.Errorf("discarded it is %s", gone.State)
	}
	if p := w.as(t, fleet.RoleOperator, http.MethodPatch, path, `{"max_in_flight":4}`).problem(t); p.Status != 409 {
		t.Errorf("a change afterwards is answered %+v", p)
	}
}

// An approval requires a second operator, and applies to one plan.
func TestApproval(t *testing.T) {
	w := newWorld(t)
	c := w.planned(t, `,"approval_required":true`)
	path := "/campaigns/" + c.ID.String()
	if c = w.act(t, c, "start", ""); c.State != campaign.AwaitingApproval {
		t.Fatalf("it is %s", c.State)
	}
	approve := func(role fleet.Role, digest string) reply {
		return w.as(t, role, http.MethodPost, path+"/approve", `{"digest":"`+digest+`"}`)
	}
	if p := approve(fleet.RoleAdmin, c.Digest).problem(t); p.Status != 403 || p.Code != "second_person_needed" {
		t.Errorf("its maker is answered %+v", p)
	}
	if p := approve(fleet.RoleOperator, strings.Repeat("0", 64)).problem(t); p.Status != 409 ||
		p.Code != "approval_is_stale" {
		t.Errorf("another digest is answered %+v", p)
	}
	if denied := w.as(t, fleet.RoleOperator, http.MethodPost, path+"/deny",
		`{"reason":"not on friday"}`); decode[CampaignView](t, denied, 200).Reason != "not on friday" {
		t.Errorf("denied it is %s", denied.body)
	}
	c = decode[CampaignView](t, w.as(t, fleet.RoleAdmin, http.MethodPatch, path, `{"max_in_flight":2}`), 200)
	w.act(t, c, "start", "")
	if c = decode[CampaignView](t, approve(fleet.RoleOperator, c.Digest), 200); c.State != campaign.Running ||
		c.Approval == nil || c.Approval.By.Name != "operator-script" {
		t.Errorf("approved it is %+v", c.CampaignHead)
	}
}

func TestDryRun(t *testing.T) {
	w := newWorld(t)
	body := w.planOf(t, `,"waves":[{"name":"canary","count":1},{"percent":100}]`)
	d := decode[dryRunView](t, w.as(t, fleet.RoleViewer, http.MethodPost, "/campaigns/dry-run", body), 200)
	if d.Matched != 3 || d.Targets != 2 || d.Offline != 1 || len(d.Waves) != 2 || d.Waves[0].Size != 1 ||
		*d.Waves[0].SoakMs != 600_000 ||
		len(d.Images) != 1 || d.Images[0].Count != 2 || len(d.Skipped) != 1 || d.Digest == "" || d.FirstDispatch == nil {
		t.Errorf("answered %+v", d)
	}
	if all := decode[list[CampaignItem]](t, w.get(t, "/campaigns"), 200); len(all.Items) != 0 {
		t.Errorf("a dry run left %+v", all.Items)
	}
}

// Every field of a plan is returned as sent, from the database too.
func TestWholePlanIsKept(t *testing.T) {
	w := newWorld(t)
	body := strings.ReplaceAll(wholePlan, "01a1fc6b-6015-711c-9d5d-5b739ab112aa", w.release(t).ID)
	body = strings.ReplaceAll(body, "tag:lab -hold", "chip:esp32s3")
	start := time.Now().AddDate(0, 1, 0) // both are in the future
	body = strings.ReplaceAll(body, "2026-12-01", start.Format(time.DateOnly))
	body = strings.ReplaceAll(body, "2026-12-08", start.AddDate(0, 0, 7).Format(time.DateOnly))
	c := decode[CampaignView](t, w.post(t, "/campaigns", body), 201)
	var asked, shown map[string]any
	_ = json.Unmarshal([]byte(body), &asked)
	_ = json.Unmarshal(w.get(t, "/campaigns/"+c.ID.String()).body, &shown)
	delete(asked, "waves") // the waves now contain their progress
	asked["start_at"] = start.Format(time.DateOnly) + "T09:00:00Z"
	for name, want := range asked {
		if fmt.Sprint(shown[name]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", name, shown[name], want)
		}
	}
	if len(c.Waves) != 3 || c.Waves[0].Count != 2 || *c.Waves[1].SoakMs != 0 || c.Waves[0].Gate != campaign.GateManual {
		t.Errorf("the waves are %+v", c.Waves)
	}
}

func TestDeployments(t *testing.T) {
	w := newWorld(t)
	c := w.planned(t, `,"waves":[{"name":"canary","devices":["a085e3112233"]},{"percent":100}]`)
	base := "/campaigns/" + c.ID.String() + "/deployments"
	tests := []struct {
		query string
		want  int
	}{
		{"", 3}, {"?state=pending", 2}, {"?state=pending,skipped", 3}, {"?skip=not_enrolled", 1}, {"?wave=0", 1},
		{"?wave=1", 1},
		{"?device=A0:85:E3:11:22:33", 1}, {"?board=bread-compact-wifi", 3}, {"?board=other", 0}, {"?class=download", 0},
	}
	for _, tt := range tests {
		if got := decode[list[DeploymentView]](t, w.get(t, base+tt.query), 200); len(got.Items) != tt.want {
			t.Errorf("%q: %d deployments, want %d: %+v", tt.query, len(got.Items), tt.want, got.Items)
		}
	}
	d := decode[DeploymentView](t, w.get(t, base+"/A0-85-E3-11-22-33"), 200)
	if d.DeviceID != unit || d.State != campaign.DeploymentPending || d.Wave == nil || *d.Wave != 0 ||
		d.ToVersion != "2.4.3" || d.FromVersion != "2.0.3" ||
		d.Image == "" || d.FailureClass != nil || d.Evidence == nil {
		t.Errorf("answered %+v", d)
	}
	if left := decode[DeploymentView](t, w.get(t, base+"/"+string(waiting)), 200); left.Wave != nil || left.Skip == nil ||
		*left.Skip != firmware.SkipNotEnrolled {
		t.Errorf("who was left out is %+v", left)
	}
	if all := decode[list[DeploymentView]](t, w.get(t, "/devices/a085e3112233/deployments"), 200); len(all.Items) != 1 ||
		all.Items[0].CampaignID != c.ID {
		t.Errorf("the device has %+v", all.Items)
	}
}

// A device shows its campaign once the campaign runs, and why it waits.
func TestDeviceOfACampaign(t *testing.T) {
	w := newWorld(t)
	campaignOf := func(path string) *uuid.UUID { return decode[deviceView](t, w.get(t, path), 200).Campaign }
	c := w.planned(t, "")
	if got := campaignOf("/devices/a085e3112233"); got != nil {
		t.Errorf("of a draft: %v", got)
	}
	if o := decode[outlookView](t, w.get(t, "/devices/a085e3112233/outlook"), 200); o.Deployment == nil ||
		o.Campaign == nil || o.BlockReason == nil ||
		*o.BlockReason != campaign.BlockNotStarted || len(o.Newer) != 1 || o.Quarantine != nil {
		t.Errorf("the outlook is %+v", o)
	}
	c = w.act(t, c, "start", "")
	if got := campaignOf("/devices/a085e3112233"); got == nil || *got != c.ID {
		t.Errorf("of a campaign that runs: %v", got)
	}
	for _, d := range decode[list[deviceView]](t, w.get(t, "/devices"), 200).Items {
		if (d.Campaign != nil) != (d.ID != waiting) {
			t.Errorf("in the list, %s is part of %v", d.ID, d.Campaign)
		}
	}
	if d := decode[deviceView](t, w.as(t, fleet.RoleOperator, http.MethodPatch, "/devices/a085e3112233",
		`{"time_zone":"Asia/Shanghai"}`), 200); d.TimeZone != "Asia/Shanghai" || d.Campaign == nil {
		t.Errorf("answered %+v", d)
	}
}

func TestQuarantines(t *testing.T) {
	w := newWorld(t)
	now := time.Now().UTC()
	if err := w.store.Quarantine(t.Context(), campaign.Quarantine{Device: unit,
		Reason: fleet.Because(campaign.ReasonFailedAttempts, "times", 3,
			"within_ms", time.Hour),
		Since: now, Until: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	all := decode[list[quarantineView]](t, w.get(t, "/quarantines"), 200).Items
	if len(all) != 1 || all[0].DeviceID != unit || all[0].Reason != "3 failed attempts within 1 h" ||
		all[0].ReasonCode != "failed_attempts" || all[0].ReasonParams["within_ms"] != 3.6e6 {
		t.Errorf("answered %+v", all)
	}
	if o := decode[outlookView](t, w.get(t, "/devices/a085e3112233/outlook"), 200); o.Quarantine == nil ||
		o.Deployment != nil || o.Newer == nil {
		t.Errorf("the outlook is %+v", o)
	}
	if r := w.as(t, fleet.RoleOperator, http.MethodDelete, "/devices/a085e3112233/quarantine", ""); r.status != 204 {
		t.Errorf("clearing is answered %d %s", r.status, r.body)
	}
	if all := decode[list[quarantineView]](t, w.get(t, "/quarantines"), 200).Items; len(all) != 0 {
		t.Errorf("afterwards there is %+v", all)
	}
}

// Conflicts between a plan and its start are described in text, not as status 500.
func TestCampaignConflicts(t *testing.T) {
	w := newWorld(t)
	first := w.act(t, w.planned(t, ""), "start", "")
	if p := w.post(t, "/campaigns", w.planOf(t, "")).problem(t); p.Status != 422 || p.Code != "empty_audience" {
		t.Errorf("a second campaign over the same devices is answered %+v", p)
	}
	d := decode[dryRunView](t, w.post(t, "/campaigns/dry-run", w.planOf(t, `,"supersede":true`)), 200)
	if d.Targets != 2 || len(d.Conflicts) != 1 || d.Conflicts[0].CampaignID != first.ID || d.Conflicts[0].Waiting != 2 {
		t.Errorf("with supersede the dry run is %+v", d)
	}
	path := "/campaigns/" + first.ID.String()
	for verb, code := range map[string]string{"rollback": "still_running", "approve": "wrong_state",
		"deny": "wrong_state"} {
		if p := w.post(t, path+"/"+verb, map[string]string{"approve": `{"digest":"x"}`,
			"deny": `{"reason":"x"}`}[verb]).problem(t); p.Status != 409 || p.Code != code {
			t.Errorf("%s is answered %+v", verb, p)
		}
	}
	if p := w.post(t, path+"/retry", `{"states":["failed"]}`).problem(t); p.Status != 409 || p.Code != "nothing_to_retry" {
		t.Errorf("retry is answered %+v", p)
	}
	if p := w.post(t, path+"/retry", "").problem(t); p.Status != 409 || p.Code != "nothing_to_retry" {
		t.Errorf("retry without a body is answered %+v", p)
	}
	if c := w.act(t, first, "advance", ""); c.State != campaign.Running {
		t.Errorf("advanced it is %s", c.State)
	}
	if c := w.act(t, first, "pull-now", ""); !c.PullNow {
		t.Errorf("hurried it is %+v", c.CampaignHead)
	}
}
