package console_test

import (
	"net/url"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/schedule"
)

func TestSchedulePages(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244")
	c.connect("a085e3112233", says("true"))
	b := c.as(fleet.RoleOperator)
	b.get("/schedules").wantStatus(200).wantText("#main", "No schedules yet")

	const tool = "self.audio_speaker.set_volume"
	b.get("/schedules/new?q=id:a085e3112233&tool="+tool).wantStatus(200).wantText("#main", "One device matches now")
	b.get("/schedules/new?q=planet:mars").wantStatus(422).wantText("#main", "planet")
	form := url.Values{"q": {"id:a085e3112233"}, "tool": {tool}, "name": {"nightly"}, "cron": {"0 2 * * *"},
		"zone": {"Europe/Berlin"}, "jitter": {"10"}, "max_in_flight": {"8"}, "offline_wait": {"0"}, "arg.volume": {"35"},
		"end": {"2099-01-01T00:00"}}
	change := func(name, value string) url.Values {
		v := url.Values{}
		for k, values := range form {
			v[k] = values
		}
		v.Set(name, value)
		return v
	}
	for name, refused := range map[string][2]string{
		"cron": {"* * * * * *", "not a cron schedule"}, "zone": {"Mars/Olympus", "not a known time zone"},
		"jitter": {"9999999999", "not a number"}, "end": {"2001-01-01T00:00", "in the past"},
		"name": {" ", "the name of a schedule"}, "arg.volume": {"900", "check"}} {
		p := b.post("/schedules", change(name, refused[0])).wantStatus(422)
		if !strings.Contains(strings.ToLower(p.body), strings.ToLower(refused[1])) {
			t.Errorf("%s %q: the page does not say %q", name, refused[0], refused[1])
		}
	}
	b.post("/schedules", change("step", "preview")).wantStatus(200).wantText("#preview", "A run would call one device now")
	b.get("/schedules").wantText("#main", "No schedules yet")

	at := b.post("/schedules", form).wantRedirect("/schedules/")
	b.get(at).wantStatus(200).wantText("h1", "nightly").wantText("#main", "Europe/Berlin").wantText("#main", "No runs match")
	b.get("/schedules").wantStatus(200).wantText("#main", "nightly").wantText("#main", "active")
	b.post(at+"/run", nil).wantRedirect(at)
	b.get(at).wantStatus(200).wantText("#main", "by hand: operator-1")

	b.get(at+"/edit").wantStatus(200).wantText("#main", "Change schedule")
	b.post(at+"/edit", change("cron", "0 3 * * *")).wantRedirect(at)
	b.get(at).wantText("#main", "0 3 * * *")
	b.post(at+"/pause", url.Values{"note": {"works in the hall"}}).wantRedirect(at)
	b.get(at).wantText("#main", "works in the hall").wantText("#main", "paused")
	b.post(at+"/pause", nil).wantRedirect(at) // the page says that it is paused already
	b.post(at+"/resume", nil).wantRedirect(at)

	v := c.as(fleet.RoleViewer)
	v.get(at).wantStatus(200)
	v.post(at+"/pause", nil).wantStatus(403)
	v.post(at+"/delete", nil).wantStatus(403)
	list, err := c.schedules.List(t.Context(), 10, "")
	if err != nil || len(list.Items) != 1 || list.Items[0].State() != schedule.Active ||
		list.Items[0].Cron != "0 3 * * *" || list.Items[0].EndAt == nil || string(list.Items[0].Arguments) != `{"volume":35}` {
		t.Errorf("stored %+v, %v", list.Items, err)
	}
	b.post(at+"/delete", nil).wantRedirect("/schedules")
	b.get(at).wantStatus(404)
}
