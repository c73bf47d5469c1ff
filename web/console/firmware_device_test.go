package console_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
	"fleetd/web/ui"
)

// bootPoll records a start of a device, with its flash layout.
func (c *site) bootPoll(id fleet.DeviceID, elf string) {
	c.t.Helper()
	if err := c.store.SavePolls(c.t.Context(), []enrolment.PollRecord{{
		Poll: enrolment.BootPoll{Device: id, ClientID: "c1", Board: "esp-box-3", Chip: "esp32s3", Version: "2.4.2",
			ELFSHA256: elf, Slot: "ota_0",
			At: time.Now().UTC(), Layout: &fleet.FlashLayout{SlotSize: 4 << 20, Labels: []string{"ota_0", "ota_1", "assets"}}},
		Admission: enrolment.Admission{Device: id, Enrolment: fleet.EnrolmentEnrolled, ClientID: "c1"},
	}}); err != nil {
		c.t.Fatal(err)
	}
}

// A device's firmware tab shows what prevents an update, and shows changes while it is open.
func TestWhyNotUpdating(t *testing.T) {
	const id = "a085e3112233"
	c := newConsole(t)
	c.bootPoll(id, "9f2c")
	b := c.as(fleet.RoleOperator)
	tab := ui.DevicePath(id, "firmware")
	b.get(tab).wantStatus(200).wantText("#updates", "There is no newer release")
	sum := b.anImage(esptest.App{Version: "2.4.3"}, "")
	release, err := c.firmware.Create(t.Context(), anna, firmware.ReleaseRequest{Images: []string{sum}})
	if err != nil {
		t.Fatal(err)
	}
	b.get(tab).wantText("#updates", "A newer release fits").wantText("#updates", "2.4.3")
	s := b.stream("/events?view=device&id=" + id + "&tab=firmware")
	s.want("patch", "device-head") // it is connected: later events are sent

	until := time.Now().Add(time.Hour)
	if _, err := c.devices.Hold(t.Context(), anna, id, "on loan", &until); err != nil {
		t.Fatal(err)
	}
	p := b.get(tab).wantText("#updates", "A newer release fits").wantText("#updates", "anna has put the device on hold")
	if strings.Contains(p.text("#updates"), "There is no newer release") {
		t.Error("a device on a hold is said to have no newer release")
	}
	if _, err := c.devices.Release(t.Context(), anna, id); err != nil {
		t.Fatal(err)
	}
	created, err := c.campaigns.Create(t.Context(), anna, campaign.Plan{Name: "to the <b>lab</b>", Release: release.ID,
		Query: "id:" + id})
	if err != nil {
		t.Fatal(err)
	}
	p = b.get(tab).wantText("#updates", "to the <b>lab</b>").wantText("#updates", "2.4.2")
	if len(p.find("b")) != 0 {
		t.Error("a campaign's name is shown as markup")
	}
	c.events.Publish(fleet.Event{Kind: fleet.EventDeployed, At: time.Now(), Device: id, Subject: created.ID.String()})
	s.want("patch", `id="updates"`, "to the &lt;b&gt;lab")

	now := time.Now().UTC()
	if err := c.store.Quarantine(t.Context(), campaign.Quarantine{Device: id, Reason: fleet.Because("legacy", "detail",
		"three downloads stalled"),
		Since: now, Until: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	b.get(tab).wantText("#updates", "three downloads stalled").wantText("#updates", "End the quarantine")
	b.post(ui.DevicePath(id, "quarantine"), url.Values{}).wantRedirect(tab)
	b.get(tab).wantText("#flash", "can take part")
	if q, err := c.store.QuarantineOf(t.Context(), id, now); err != nil || q != nil {
		t.Errorf("quarantine %+v, %v", q, err)
	}
}

// A device that failed to install a release is marked until it runs the release, also after other
// campaigns and with newer releases.
func TestFailedReleaseIsNamed(t *testing.T) {
	const id = "a085e3112233"
	c := newConsole(t)
	c.bootPoll(id, "9f2c")
	b := c.as(fleet.RoleOperator)
	tab := ui.DevicePath(id, "firmware")
	try := func(version string, state campaign.DeploymentState) {
		t.Helper()
		c.took(c.aRelease(b, version), id, state)
	}
	try("2.5.0", campaign.DeploymentRolledBack)
	b.get(tab).wantText("#updates", "rolled back")
	try("2.6.0", campaign.DeploymentAborted)
	b.get(tab).wantText("#updates", "Releases that failed to install").wantText("#updates", "2.5.0").wantText("#updates",
		"rolled back")
}

// aRelease adds a release of one image, for every board with its chip.
func (c *site) aRelease(b *browser, version string) firmware.Release {
	c.t.Helper()
	sum := b.anImage(esptest.App{Version: version}, "")
	r, err := c.firmware.Create(c.t.Context(), anna, firmware.ReleaseRequest{Images: []string{sum}})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// took ends a campaign with the release in the given state for a device.
func (c *site) took(r firmware.Release, id fleet.DeviceID, state campaign.DeploymentState) {
	c.t.Helper()
	made, err := c.campaigns.Create(c.t.Context(), anna, campaign.Plan{Name: "to " + r.Version, Release: r.ID,
		Query: "id:" + string(id)})
	if err != nil {
		c.t.Fatal(err)
	}
	d, err := c.store.Deployment(c.t.Context(), made.ID, id)
	if err != nil {
		c.t.Fatal(err)
	}
	now := time.Now().UTC()
	d.FinishedAt = &now
	d.State, d.Reason = state, fleet.Because(campaign.ReasonCampaignAborted)
	if state.Failed() {
		d.Class, d.Reason = campaign.FailureRolledBack, fleet.Because(campaign.ReasonImageRefused)
	}
	if stale, err := c.store.SaveDeployments(c.t.Context(), []campaign.DeploymentChange{{Deployment: d}}); err != nil ||
		len(stale) > 0 {
		c.t.Fatal(stale, err)
	}
}

// A device that rolled back a release does not count as a device that the release fits, until its
// latest verdict on the build changes; verdicts on other builds do not matter.
func TestReleasePageSaysWhoRolledItBack(t *testing.T) {
	const one, other = "a085e3112233", "a085e3112244"
	c := newConsole(t)
	c.bootPoll(one, "9f2c")
	c.bootPoll(other, "9f2c")
	b := c.as(fleet.RoleOperator)
	release, next := c.aRelease(b, "2.5.0"), c.aRelease(b, "2.6.0")
	want := func(r firmware.Release, fit string, back bool) {
		t.Helper()
		p := b.get(ui.ReleasePath(r.ID.String())).wantText("#fit", fit)
		if strings.Contains(p.text("#fit"), "rolled it back") != back {
			t.Errorf("of %s the page says %q", r.Version, p.text("#fit"))
		}
	}
	want(release, "2 devices fit", false)
	for _, step := range []struct {
		release firmware.Release
		state   campaign.DeploymentState
		fit     string
		back    bool
	}{{release, campaign.DeploymentRolledBack, "1 device fits", true},
		{release, campaign.DeploymentAborted, "1 device rolled it back The image fits; a campaign would try it again.", true},
		{next, campaign.DeploymentSucceeded, "1 device fits", true},
		{release, campaign.DeploymentSucceeded, "2 devices fit", false}} {
		c.took(step.release, one, step.state)
		want(release, step.fit, step.back)
		want(next, "2 devices fit", false)
	}
}

var anna = fleet.Principal{Kind: fleet.KindOperator, Name: "anna", Role: fleet.RoleAdmin}
