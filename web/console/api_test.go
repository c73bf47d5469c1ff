package console_test

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"fleetd/fleet"
)

// Every operation of the OpenAPI document is on the page, by its tag; the filter finds it by words,
// and its own page has parameters, body, errors and a command that a shell can run.
func TestAPIPage(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleViewer)
	list := b.get("/api").wantStatus(200)
	lines := list.find("a[class=api-line]")
	if len(lines) < 150 || len(list.find("article")) > 0 {
		t.Fatalf("the page lists %d operations, %d of them whole", len(lines), len(list.find("article")))
	}
	list.wantText("#operations", "Call a tool of a device")
	for query, want := range map[string]bool{"hold-device": true, "post+%2Fhold": true, "hold+owner": true, "hold+banana": false} {
		if got := strings.Contains(b.get("/api?q="+query).wantStatus(200).text("#operations"), "/devices/{id}/hold"); got !=
			want {
			t.Errorf("%q finds the hold of a device: %v, want %v", query, got, want)
		}
	}
	one := b.get("/api?op=make-call").wantStatus(200)
	for _, text := range []string{"interrupt", "boolean", "required", `"refuse", "wait"`, "429", "respond-async",
		`"$FLEETD_URL/api/v1/devices/ID/calls"`, `"tool":"self.audio_speaker.set_volume"`} {
		one.wantText("#operations", text)
	}
	b.get("/api?op=nope").wantStatus(http.StatusNotFound)
	b.get("/api?q=%3Cscript%3E").wantStatus(200).wantText("#operations", "No operation")
	for _, line := range lines {
		p := b.get(attribute(line, "href")).wantStatus(200)
		command := p.find("pre")[0].FirstChild.Data
		if out, err := exec.Command("sh", "-n", "-c", command).CombinedOutput(); err != nil {
			t.Errorf("%s: %s: %s", attribute(line, "href"), command, out)
		}
		if strings.Contains(command, "{") && !strings.Contains(command, "-d '") && !strings.Contains(command, "-d {}") {
			t.Errorf("curl reads braces in %s", command)
		}
	}
}
