package console_test

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
	"fleetd/web/ui"
)

// upstreamLink is a relay whose connection to the voice server of the command line failed.
type upstreamLink struct{}

func (upstreamLink) UpstreamHealth(id uuid.UUID, _ time.Time) (h upstream.Health) {
	if id == upstream.FixedID {
		at := time.Now()
		h.Failures, h.LastFailure, h.LastError = 3, &at, fleet.EndedUnreachable
	}
	return h
}

func (upstreamLink) CheckUpstream(_ context.Context, c upstream.Choice) upstream.Check {
	if c.Fixed {
		return upstream.Check{Error: fleet.EndedUnreachable}
	}
	return upstream.Check{OK: true, Took: 20 * time.Millisecond}
}

func TestUpstreamsPage(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	admin, viewer := c.as(fleet.RoleAdmin), c.as(fleet.RoleViewer)
	version := func() string { return strconv.FormatInt(c.upstreams.Version(), 10) }
	admin.get(ui.PathUpstreams).wantText("#upstreams", "flag.test").
		wantText("#upstreams", "3 failures in a row: it is unreachable. ").wantText("#upstreams", "No voice")
	if body := viewer.get(ui.PathUpstreams).body; strings.Contains(body, "<form method=\"post\" action=\"/settings/voice") {
		t.Error("a viewer is offered changes")
	}
	form := url.Values{"name": {"lab <b>"}, "kind": {"websocket"}, "url": {"ws://lab.test/xiaozhi/v1/"}, "auth": {"secret"},
		"secret": {"hush-hush"}, "devices": {"tag:lab"}, "tools": {"1"}, "enabled": {"1"}, "version": {version()}}
	bad := func(field, value, want string) {
		t.Helper()
		f := url.Values{}
		for k, v := range form {
			f[k] = v
		}
		f.Set(field, value)
		p := admin.post(ui.PathUpstreams, f).wantStatus(http.StatusUnprocessableEntity).wantText("#add", want)
		if strings.Contains(p.body, "hush-hush") {
			t.Error("the secret is shown again")
		}
	}
	bad("url", "http://lab.test/", "must begin with one of: ws, wss")
	bad("url", "ws://a:b@lab.test/", "must not contain a user name or password")
	bad("secret", "", "Enter the secret or token")
	bad("devices", "colour:red", "unknown field")
	bad("version", "77", "were changed in the meantime")
	admin.post(ui.PathUpstreams, form).wantRedirect(ui.PathUpstreams)
	lab := c.upstreams.States()[0]
	if lab.Name != "lab <b>" || lab.Auth != upstream.AuthSecret || !lab.Tools || lab.Devices != "tag:lab" {
		t.Fatalf("the form made %+v", lab)
	}
	admin.post(ui.PathUpstreams, url.Values{"name": {"mute"}, "kind": {"none"}, "auth": {"secret"}, "enabled": {"1"}}).
		wantRedirect(ui.PathUpstreams)
	mute := c.upstreams.States()[1]
	admin.get(ui.PathUpstreams+"?device=a0:85:e3:11:22:33").wantText("#match", `has no voice, because of "mute"`).
		wantText("#match", "does not match tag:lab").wantText("#match", "comes later")
	admin.get(ui.PathUpstreams+"?device=a085e3119999").wantText("#match", "There is no device")

	stale := version()
	admin.post(ui.UpstreamPath(mute.ID, "move"), url.Values{"to": {"0"}, "version": {stale}}).wantRedirect(ui.PathUpstreams)
	if c.upstreams.States()[0].ID != mute.ID {
		t.Error("it did not move")
	}
	admin.post(ui.UpstreamPath(mute.ID, "disable"), url.Values{"version": {stale}}).wantRedirect(ui.PathUpstreams)
	if !c.upstreams.States()[0].Enabled {
		t.Error("a form of an older list was accepted")
	}
	admin.post(ui.UpstreamPath(mute.ID, "disable"), url.Values{"version": {version()}}).wantRedirect(ui.PathUpstreams)
	admin.post(ui.UpstreamPath(lab.ID, "check"), nil).wantRedirect(ui.PathUpstreams)
	if body := admin.get(ui.PathUpstreams).body; !strings.Contains(body, "responded: hello took") {
		t.Error("the outcome of the check is not shown")
	}
	admin.post(ui.UpstreamPath(upstream.FixedID, "check"), nil).wantRedirect(ui.PathUpstreams)
	if body := admin.get(ui.PathUpstreams).body; !strings.Contains(body, "flag.test failed: it is unreachable") {
		t.Error("the failure of the check is not shown")
	}
	admin.post(ui.UpstreamPath(mute.ID, "check"), nil).wantStatus(http.StatusUnprocessableEntity)

	form.Set("secret", "")
	form.Set("devices", "")
	form.Set("version", version())
	admin.get(ui.UpstreamPath(lab.ID)).wantText("main", "cannot be shown")
	admin.post(ui.UpstreamPath(lab.ID, "edit"), form).wantRedirect(ui.PathUpstreams)
	if choice, ok := c.upstreams.Choose(t.Context(), "a085e3112233"); !ok || choice.ID != lab.ID ||
		choice.Key != "hush-hush" {
		t.Errorf("edited to %+v", choice)
	}
	viewer.get(ui.DevicePath("a085e3112233", "facts")).wantText("main", "Voice server").wantText("main", "lab <b>")
	viewer.stream("/events?view=device&id=a085e3112233&tab=facts").want("patch", "Voice server", "lab &lt;b&gt;")
	admin.post(ui.UpstreamPath(upstream.FixedID, "delete"), nil).wantStatus(http.StatusConflict)
	admin.post(ui.UpstreamPath(lab.ID, "delete"), url.Values{"version": {version()}}).wantRedirect(ui.PathUpstreams)
	if n := len(c.upstreams.States()); n != 2 {
		t.Errorf("%d are left", n)
	}
}
