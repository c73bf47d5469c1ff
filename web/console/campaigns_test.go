package console_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
	"fleetd/web/forms"
	"fleetd/web/ui"
)

// newRelease stores a release that fits the devices of bootPoll.
func (c *site) newRelease(b *browser) firmware.Release {
	c.t.Helper()
	sum := b.anImage(esptest.App{Version: "2.4.3"}, "")
	r, err := c.firmware.Create(c.t.Context(), anna, firmware.ReleaseRequest{Images: []string{sum}})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// upgradable adds n devices that the release fits.
func (c *site) upgradable(n int) (ids []fleet.DeviceID) {
	for i := range n {
		id := fleet.DeviceID(fmt.Sprintf("a085e311%04x", i))
		c.bootPoll(id, "9f2c")
		ids = append(ids, id)
	}
	return ids
}

// plan returns the fields of the wizard as a browser sends them. more overrides fields; bars
// separate the rows of a table.
func plan(release firmware.Release, more ...string) url.Values {
	form := url.Values{"f": {"1"}, "release": {release.ID.String()}, "name": {"spring"}, "mode": {"auto"},
		"in_flight": {"10"}, "attempts": {"3"}, "heap": {"50"}, "reconnects": {"3"},
		"end_behavior": {"stop_rollout"}, "wave.name": {"Canary", "Everyone"}, "wave.unit": {"count", "percent"},
		"wave.size": {"1", "100"}, "wave.success": {"100", "95"},
		"wave.sample": {"1", "5"}, "wave.soak": {"10m", "2m"}, "wave.gate": {"manual", "auto"}}
	for i := 0; i+1 < len(more); i += 2 {
		form[more[i]] = strings.Split(more[i+1], "|")
	}
	return form
}

func TestCampaignWizard(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	b.get("/campaigns").wantStatus(200).wantText("#main", "No campaigns yet").wantText("#main", "fleetd campaign create")
	b.get("/campaigns/new").wantStatus(200).wantText("#plan-release", "no release that can go to devices yet").wantText("#plan-run",
		"Choose a release")
	release := c.newRelease(b)
	c.upgradable(5)
	held := ui.DevicePath("a085e3110004")
	b.post(held+"/hold", url.Values{"reason": {"on my desk"}, "hours": {"8"}}).wantRedirect(held)

	p := b.get("/campaigns/new?release=" + release.ID.String()).wantStatus(200)
	p.wantText("#plan-run", "4 devices get 2.4.3 in 3 waves").wantText("#plan-audience", "5 devices found").wantText(
		"#plan-audience", "on hold")
	b.get("/campaigns/new?d=a085e3110001&d=a085e3110002&release="+release.ID.String()).wantText("#plan-run",
		"2 devices get 2.4.3 in")
	if at := b.get("/campaigns/new?" + plan(release, "preset", "all").Encode()).wantRedirect(
		"/campaigns/new?"); strings.Contains(at, "preset") {
		t.Errorf("the preset stays in the address: %s", at)
	} else {
		b.get(at).wantText("#plan-run", "4 devices get 2.4.3 in 1 wave")
	}
	for _, tt := range []struct{ name, value, text string }{
		{"q", "colour:red", "colour"}, {"q", "id:ffffffffffff", "No devices to update"}, {"wave.soak", "soon|2m",
			"length of time"}, {"wave.size", "many|100", "must be a number"},
		{"wave.size", "nan|100", "must be a number"}, {"check.tool", "self.x", ""}, {"win.cron", "61 2 * * *", ""},
		{"start", "tomorrow", ""}, {"release", "x", "Choose a release"}, {"release", uuid.NewString(), ""},
	} {
		p := b.get("/campaigns/new?"+plan(release, tt.name, tt.value).Encode()).wantStatus(200).wantText("#main", tt.text)
		if strings.Contains(p.body, "⟦") {
			t.Errorf("%s=%s: a message is missing", tt.name, tt.value)
		}
	}
	for _, bad := range []url.Values{{}, plan(release, "wave.soak", "soon|2m"), plan(release, "q", "id:ffffffffffff"),
		plan(release, "release", "x"), plan(release, "do", "start", "seen", "37")} {
		b.post("/campaigns", bad).wantStatus(422)
	}
	b.post("/campaigns", plan(release, "do", "start", "seen", "37")).wantText("#plan-bar", "would now update 4 devices")
	if got, err := c.campaigns.Campaigns(t.Context(), campaign.Filter{}); err != nil || len(got.Items) != 0 {
		t.Fatalf("what was refused left %d campaigns, %v", len(got.Items), err)
	}
	draft := b.post("/campaigns", plan(release, "do", "draft", "name", "<b>spring</b>")).wantRedirect("/campaigns/")
	p = b.get(draft).wantStatus(200).wantText("#campaign-head", "draft").wantText("h1", "<b>spring</b>").wantText("#flash",
		"draft")
	if len(p.find("b")) != 0 {
		t.Error("a campaign's name is shown as markup")
	}
	running := b.post("/campaigns", plan(release, "do", "start", "seen", "4", "supersede", "1")).wantRedirect(
		"/campaigns/")
	b.get(running).wantText("#campaign-head", "running").wantText("#campaign-acts", "Pause")
	b.get("/campaigns").wantText("#main", "spring").wantText("#main", "running")
	b.get("/campaigns?state=draft").wantText("#list", "draft")
	b.get("/").wantText("#main", "Updates under way")
}

func TestCampaignEdit(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	release := c.newRelease(b)
	c.upgradable(4)
	draft := b.post("/campaigns", plan(release, "do", "draft")).wantRedirect("/campaigns/")
	id := uuid.MustParse(strings.TrimPrefix(draft, "/campaigns/"))
	get := func() campaign.Campaign {
		t.Helper()
		got, err := c.campaigns.Campaign(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	before := get()
	form := forms.FillPlan(before.Plan, time.UTC).Values
	b.get(draft+"/edit").wantStatus(200).wantText("#plan-run", "4 devices get 2.4.3 in 2 waves")
	b.post(draft+"/edit", form).wantRedirect(draft)
	if after := get(); after.Digest != before.Digest {
		t.Errorf("saved without a change, the digest went from %s to %s", before.Digest, after.Digest)
	}
	b.post(draft+"/edit", plan(release, "q", "id:a085e3110001")).wantRedirect(draft)
	if after := get(); after.Targets != 1 || after.Digest == before.Digest {
		t.Errorf("after the edit: %d devices, digest %s", after.Targets, after.Digest)
	}
	b.post(draft+"/edit", plan(release, "wave.soak", "soon|2m")).wantStatus(422)

	b.post(draft+"/start", nil).wantRedirect(draft)
	p := b.get(draft+"/edit").wantStatus(200).wantText("#main", "The campaign is running")
	if len(p.find("input[name=q]")) != 1 { // the search field of every page
		t.Error("the devices of a campaign that runs can be edited")
	}
	form = forms.FillPlan(get().Plan, time.UTC).Values
	form.Set("in_flight", "3")
	form.Set("q", "")
	b.post(draft+"/edit", form).wantRedirect(draft)
	if after := get().Plan; after.MaxInFlight != 3 || after.Query != "id:a085e3110001" {
		t.Errorf("steered: %d in flight, query %q", after.MaxInFlight, after.Query)
	}
}

func TestCampaignApproval(t *testing.T) {
	c := newConsole(t)
	mine, other, viewer := c.as(fleet.RoleOperator), c.as(fleet.RoleAdmin), c.as(fleet.RoleViewer)
	release := c.newRelease(mine)
	c.upgradable(3)
	at := mine.post("/campaigns", plan(release, "do", "start", "approval", "1")).wantRedirect("/campaigns/")
	id := uuid.MustParse(strings.TrimPrefix(at, "/campaigns/"))
	campaignID, err := c.campaigns.Campaign(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	sum := release.Images[0].SHA256
	mine.get(at).wantText("#flash", "a second person to approve").wantText("#approval", "You made this plan").wantText("#approval",
		sum).wantText("#approval", "3 devices").wantText("#approval", campaignID.Digest)
	mine.post(at+"/approve", url.Values{"digest": {campaignID.Digest}}).wantRedirect(at)
	mine.get(at).wantText("#flash", "cannot approve").wantText("#campaign-head", "awaiting approval")
	viewer.post(at+"/approve", url.Values{"digest": {campaignID.Digest}}).wantStatus(403)
	if p := viewer.get(at).wantStatus(200); len(p.find("form[action="+at+"/approve]")) != 0 {
		t.Error("a viewer is offered to approve")
	}
	other.get("/").wantText("#attention", "spring awaits approval")
	other.post(at+"/approve", url.Values{"digest": {strings.Repeat("0", 64)}}).wantRedirect(at)
	other.get(at).wantText("#flash", "changed since")
	other.post(at+"/deny", url.Values{"reason": {""}}).wantRedirect(at)
	other.get(at).wantText("#campaign-head", "awaiting approval")
	other.post(at+"/deny", url.Values{"reason": {"not before the fair"}}).wantRedirect(at)
	mine.get(at).wantText("#campaign-head", "not before the fair")

	mine.post(at+"/edit", plan(release, "approval", "1", "name", "after the fair")).wantRedirect(at)
	mine.post(at+"/start", nil).wantRedirect(at)
	if campaignID, err = c.campaigns.Campaign(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	other.post(at+"/approve", url.Values{"digest": {campaignID.Digest}}).wantRedirect(at)
	other.get(at).wantText("#campaign-head", "running").wantText("#campaign-head", "admin-1")
}

// canary returns the one device of the first wave.
func (c *site) canary(campaignID uuid.UUID) fleet.DeviceID {
	c.t.Helper()
	wave := 0
	found, err := c.campaigns.Deployments(c.t.Context(), campaign.DeploymentFilter{Campaign: campaignID, Wave: &wave})
	if err != nil || len(found.Items) != 1 {
		c.t.Fatalf("the first wave has %d devices, %v; want one", len(found.Items), err)
	}
	return found.Items[0].Device
}

func TestCampaignActs(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	release := c.newRelease(b)
	ids := c.upgradable(4)
	at := b.post("/campaigns", plan(release, "do", "start")).wantRedirect("/campaigns/")
	id := uuid.MustParse(strings.TrimPrefix(at, "/campaigns/"))
	s := b.stream("/events?view=campaign&id=" + id.String())
	s.want("patch", `id="campaign-head"`, "running")
	b.post(at+"/pause", nil).wantRedirect(at)
	s.want("patch", `id="campaign-head"`, "paused", "by an operator")
	b.get(at).wantText("#campaign-acts", "Resume")
	b.post(at+"/pause", nil).wantRedirect(at)
	b.get(at).wantText("#flash", "spring is paused; it cannot be paused.")
	b.post(at+"/resume", nil).wantRedirect(at)
	s.want("patch", `id="campaign-acts"`, "Pause")

	b.get(at+"/devices").wantText("#list", "pending")
	first := c.canary(id) // the device is picked at random
	rest := slices.DeleteFunc(slices.Clone(ids), func(id fleet.DeviceID) bool { return id == first })
	for _, id := range rest {
		b.get(at+"/devices?state=waiting&board=esp-box-3&wave=2").wantText("#list", id.MAC())
	}
	for _, q := range []string{"state=succeeded", "device=ffffffffffff", "device=nonsense", "class=image", "skip=held",
		"wave=1&device=" + string(rest[0])} {
		b.get(at+"/devices?"+q).wantStatus(200).wantText("#list", "No device in the campaign")
	}
	one := at + "/devices/" + string(ids[0])
	b.get(one).wantStatus(200).wantText("#main", "2.4.2 → 2.4.3")
	b.post(one+"/retry", nil).wantRedirect(one)
	b.get(one).wantText("#flash", "spring has no devices to retry")
	b.get(at + "/devices/ffffffffffff").wantStatus(404)

	b.post(at+"/rollback", url.Values{"confirm": {"4"}}).wantRedirect(at)
	b.get(at).wantText("#flash", "pause or abort")
	for _, typed := range []string{"", "3", "yes"} {
		b.post(at+"/abort", url.Values{"confirm": {typed}}).wantStatus(422)
	}
	b.get(at).wantText("#campaign-head", "running")
	b.post(at+"/abort", url.Values{"confirm": {"4"}, "rollback": {"1"}}).wantRedirect(at)
	b.get(at).wantText("#campaign-head", "stopping")
	if got, err := c.campaigns.Campaign(t.Context(), id); err != nil || !got.RollbackWanted {
		t.Errorf("after an abort with rollback: %+v, %v", got.RollbackWanted, err)
	}
	unknown := uuid.NewString()
	for _, path := range []string{"/campaigns/x", "/campaigns/" + unknown, "/campaigns/" + unknown + "/edit", "/campaigns/" +
		unknown + "/devices", "/campaigns/" + unknown + "/devices/" + string(ids[0])} {
		b.get(path).wantStatus(404)
	}
	b.get("/campaigns?state=nope&cursor=").wantStatus(200)
	b.get("/campaigns?cursor=nonsense").wantRedirect("/campaigns")
}

// If a draft is started while its board is open, the rest of the board appears.
func TestBoardGrowsWhenItStarts(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	release := c.newRelease(b)
	c.upgradable(2)
	at := b.post("/campaigns", plan(release, "do", "draft")).wantRedirect("/campaigns/")
	s := b.stream("/events?view=campaign&id=" + strings.TrimPrefix(at, "/campaigns/"))
	s.want("patch", `id="campaign-head"`, "draft")
	b.post(at+"/start", nil).wantRedirect(at)
	s.want("patch", `id="campaign-body"`, `id="campaign-funnel"`)
	list := b.stream("/events?view=campaigns")
	devices := b.stream("/events?view=deployments&id=" + strings.TrimPrefix(at, "/campaigns/"))
	devices.want("patch", `id="deployment-a085e3110000"`)
	b.post(at+"/pause", nil).wantRedirect(at)
	list.want("patch", `id="campaign-`, "paused")
	b.post("/campaigns", plan(release, "do", "draft", "supersede", "1")).wantRedirect("/campaigns/")
	list.want("new", "1")
}

// However often a campaign changes, its board receives each part at most once in two seconds, and
// shows the final state afterwards.
func TestBoardIsRedrawnAtABoundedRate(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	release := c.newRelease(b)
	c.upgradable(2)
	at := b.post("/campaigns", plan(release, "do", "start")).wantRedirect("/campaigns/")
	id := uuid.MustParse(strings.TrimPrefix(at, "/campaigns/"))
	s := b.stream("/events?view=campaign&id=" + id.String())
	s.want("patch", `id="campaign-head"`, "running")
	const span = 4 * time.Second
	acts, began := 0, time.Now()
	for ; time.Since(began) < span; acts++ {
		if _, err := c.campaigns.Pause(t.Context(), anna, id, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := c.campaigns.Resume(t.Context(), anna, id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := c.campaigns.Pause(t.Context(), anna, id, "the last act"); err != nil {
		t.Fatal(err)
	}
	drawn, deadline := 0, time.After(time.Minute)
	for last := ""; !strings.Contains(last, "the last act"); {
		select {
		case e := <-s.events:
			if strings.Contains(e.data, `id="campaign-head"`) {
				drawn, last = drawn+1, e.data
			}
		case <-deadline:
			t.Fatalf("at rest the head shows %s", last)
		}
	}
	took := time.Since(began) // longer than the span on a busy machine
	if limit := int(took/(2*time.Second)) + 3; drawn == 0 || drawn > limit {
		t.Errorf("%d changes in %v redrew the head %d times, want at most %d", acts, took, drawn, limit)
	}
}

// A page misses nothing that happens while it is on its way to the browser: its stream begins with
// the present state. A campaign that ends leaves the overview, and a new one appears there.
func TestLivePagesBeginWithTheState(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	release := c.newRelease(b)
	c.upgradable(2)
	overview := b.stream("/events?view=overview")
	overview.want("patch", `id="under-way"`, "hidden")
	overview.want("patch", `id="presence-now"`)
	at := b.post("/campaigns", plan(release, "do", "start")).wantRedirect("/campaigns/")
	overview.want("patch", `id="under-way"`, at)
	b.stream("/events?view=campaigns").want("patch", `id="campaign-`+strings.TrimPrefix(at, "/campaigns/")+`"`)
	b.stream("/events?view=overview").want("patch", `id="under-way"`, at)
	b.post(at+"/abort", url.Values{"confirm": {"2"}}).wantRedirect(at)
	overview.want("patch", `id="under-way"`, "hidden")
}

// The list of a campaign's devices says for each what it waits for, as its page does.
func TestCampaignDevicesSayWhatTheyWaitFor(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	release := c.newRelease(b)
	devices := c.upgradable(3)
	at := b.post("/campaigns", plan(release, "do", "draft")).wantRedirect("/campaigns/")
	b.post(at+"/start", url.Values{"seen": {"3"}}).wantRedirect(at)
	list := b.get(at + "/devices").wantStatus(200)
	waiting := 0
	for _, device := range devices {
		out, err := c.campaigns.Outlook(t.Context(), device)
		if err != nil {
			t.Fatal(err)
		}
		if out.Deployment == nil || !out.Deployment.State.Waiting() {
			continue
		}
		text := map[campaign.BlockReason]string{campaign.BlockWave: "Its wave has not opened.",
			campaign.BlockAwaitsPoll: "The device is offline or has no upgrade tool."}[out.BlockReason]
		if text == "" {
			t.Fatalf("device %s waits because of %q", device, out.BlockReason)
		}
		list.wantText("#deployment-"+string(device), text)
		waiting++
	}
	if waiting < 2 {
		t.Errorf("%d devices of 3 wait, want at least 2", waiting)
	}
}
