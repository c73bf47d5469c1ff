package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"fleetd/fleet"
)

func TestSignInFindCallRecord(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244")
	c.connect("a085e3112233", says("true"))
	b := c.as(fleet.RoleOperator)

	b.get("/devices?q=112233").wantStatus(200).wantText("#device-a085e3112233", "a0:85:e3:11:22:33")
	if got := b.get("/devices?q=112233").find("#device-a085e3112244"); len(got) != 0 {
		t.Error("the filter lets another device through")
	}
	b.get("/devices/a085e3112233").wantStatus(200).wantText("h1", "a0:85:e3:11:22:33")

	const tool = "/devices/a085e3112233/tools/self.audio_speaker.set_volume"
	b.get(tool).wantStatus(200)
	result := b.post(tool, url.Values{"arg.volume": {"35"}}).wantRedirect(tool + "?call=")
	b.get(result).wantStatus(200).wantText("#result", "true")

	id := strings.TrimPrefix(result, tool+"?call=")
	b.get("/calls/"+id).wantStatus(200).wantText("#main", "operator-1")
	b.get("/calls?device=a085e3112233").wantStatus(200).wantText("#call-"+id, "self.audio_speaker.set_volume")
	line := b.get("/devices/a085e3112233/activity").wantRedirect("/devices/a085e3112233?show=calls")
	b.get(line).wantText("#entry-"+id, `{"volume":35}`)
	b.get(tool).wantStatus(200) // the last arguments are offered
	if got := attribute(b.get(tool).find("input[name=arg.volume]")[0], "value"); got != "35" {
		t.Errorf("the form offers volume %q, want the last one, 35", got)
	}
}

func TestEveryPageRenders(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleAdmin)
	b.get("/").wantStatus(200).wantText("#main", "/xiaozhi/ota/")
	b.get("/devices").wantStatus(200).wantText("#main", "fleetd sim")
	c.enrol("a085e3112233")
	for _, path := range []string{"/", "/devices", "/devices/a085e3112233", "/devices/A0:85:E3:11:22:33/tools",
		"/devices/a085e3112233/configuration",
		"/devices/a085e3112233/firmware", "/devices/a085e3112233/screen", "/devices/a085e3112233/facts", "/claim", "/calls",
		"/conversations", "/conversations?device=a085e3112233&end=failed", "/conversations?end=x",
		"/fanouts", "/pictures/compare", "/pictures/compare?p=x", dev + "/screen?kind=camera&since=2026-01-01T00:00", dev + "/screen?since=x", "/dashboards", "/dashboards?range=1y&of=board:x", "/dashboards?range=2y", "/dashboards?from=x", "/places", "/changes", "/changes?since=1d", "/changes?since=x", "/history", "/history?q=tag:lab&with=2099-01-01T00:00", "/history?at=x", "/history?q=seen<1h", "/schedules", "/schedules/new", "/schedules/new?q=&tool=self.audio_speaker.set_volume",
		"/fanouts/new?q=", "/fanouts/new?d=a085e3112233&tool=self.reboot", "/settings", "/help", "/sign-out-not"} {
		want := http.StatusOK
		if path == "/sign-out-not" {
			want = http.StatusNotFound
		}
		p := b.get(path).wantStatus(want)
		if strings.Contains(p.body, "⟦") {
			t.Errorf("%s shows a message that is not in the catalogue: %s", path, p.body[strings.Index(p.body, "⟦"):][:60])
		}
	}
}

// A list with an invalid filter says what is wrong, and nothing about entries: none were looked for.
func TestInvalidListFilter(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	b := c.as(fleet.RoleViewer)
	for address, want := range map[string]string{
		"/audit?since=yesterday":         `"yesterday" is not a time; write 2006-01-02 15:04.`,
		"/audit?address=everywhere":      `"everywhere" is no IP address; use one such as 203.0.113.7 or 2001:db8::7.`,
		"/calls?until=soon":              `"soon" is not a time; write 2006-01-02 15:04.`,
		"/conversations?since=yesterday": `"yesterday" is not a time; write 2006-01-02 15:04.`,
	} {
		p := b.get(address).wantStatus(200)
		if got := strings.Join(strings.Fields(p.text("#list")), " "); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
		if events := attribute(p.find("#live")[0], "data-events"); events != "" {
			t.Errorf("%s: events from %s", address, events)
		}
	}
}
