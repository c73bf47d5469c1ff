package console_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// Each list shows and follows a call that waits for its device, and permitted viewers can cancel
// it; a call that was not canceled is sent once the device is back.
func TestWaitingCallsInRows(t *testing.T) {
	c := newConsole(t)
	c.enrol(unit)
	const other = fleet.DeviceID("a085e3112244")
	c.enrol(other)
	c.tag(other, "in")
	b := c.as(fleet.RoleOperator)
	wait := func(volume string) (id string) {
		at := b.post(hubAt+"/tools/"+fleet.ToolSetVolume, url.Values{"arg.volume": {volume}, "offline": {"wait"},
			"next": {hubAt}}).wantRedirect(hubAt + "?call=")
		return strings.TrimPrefix(at, hubAt+"?call=")
	}
	stays, goes := wait("31"), wait("32")
	places := []string{hubAt, hubAt + "?call=" + stays, "/calls", "/calls?state=pending_device", "/calls/" + stays,
		hubAt + "/tools"}
	buttons := func(b *browser, at, id string) int {
		return len(b.get(at).wantStatus(200).find("form[action=/calls/" + id + "/cancel]"))
	}
	for _, at := range places {
		if buttons(b, at, stays) == 0 {
			t.Errorf("%s does not offer to cancel the call", at)
		}
	}

	person := func(name string, a operator.Access) *browser {
		if _, err := operator.New(c.store).Create(t.Context(), anna, operator.Request{Name: name,
			Password: password, Access: a}); err != nil {
			t.Fatal(err)
		}
		return c.signIn(name)
	}
	for name, tt := range map[string]struct {
		access operator.Access
		status int
	}{
		"reads":               {operator.Access{Role: fleet.RoleViewer}, http.StatusForbidden},
		"reads-here":          {operator.Access{Role: fleet.RoleOperator, Scope: "tag:in", Rest: fleet.RoleViewer}, http.StatusForbidden},
		"has-other-devices":   {operator.Access{Role: fleet.RoleOperator, Scope: "tag:in"}, http.StatusNotFound},
		"admin-of-other-ones": {operator.Access{Role: fleet.RoleAdmin, Scope: "tag:in"}, http.StatusNotFound},
	} {
		v := person(name, tt.access)
		v.post("/calls/"+stays+"/cancel", nil).wantStatus(tt.status)
		for _, at := range places {
			if p := v.get(at); len(p.find("form[action=/calls/"+stays+"/cancel]")) > 0 {
				t.Errorf("%s offers %s to cancel the call", at, name)
			}
		}
		got, err := c.calls.Get(t.Context(), uuid.MustParse(stays))
		if err != nil || got.State != fleet.CallPendingDevice {
			t.Errorf("after %s the call is %s, %v", name, got.State, err)
		}
	}

	hub, list := b.stream("/events?view=device&id="+string(unit)), b.stream("/events?view=calls")
	newer := wait("33")
	hub.want("patch", `id="entry-`, "/calls/"+newer+"/cancel")
	b.post("/calls/"+goes+"/cancel", nil).wantRedirect("/calls/" + goes)
	b.get("/calls/"+goes).wantText("#flash", "Canceled. Nothing was sent.").wantText("#main", "Canceled by operator-1")
	hub.want("patch", `id="entry-`+goes, "is-canceled", "Canceled by", "operator-1")
	list.want("patch", `id="call-`+goes, "canceled")
	for _, at := range places {
		if buttons(b, at, goes) > 0 {
			t.Errorf("%s offers to cancel a call that is canceled", at)
		}
	}
	b.post("/calls/"+goes+"/cancel", nil).wantRedirect("/calls/" + goes)
	b.get("/calls/"+goes).wantText("#flash", "The call is not waiting; it is canceled.")

	sent := make(chan string, 9)
	c.connect(unit, func(_ context.Context, _ string, arguments json.RawMessage) (fleet.Answer, error) {
		sent <- string(arguments)
		return fleettest.Text("true"), nil
	})
	hub.want("patch", `id="callview-`+newer, "succeeded")
	if first, second := <-sent, <-sent; first != `{"volume":31}` || second != `{"volume":33}` || len(sent) > 0 {
		t.Errorf("sent %s, %s, and %d more", first, second, len(sent))
	}
	for _, at := range places {
		if p := b.get(at); strings.Contains(p.body, "/cancel\"") {
			t.Errorf("%s offers to cancel what was sent", at)
		}
	}
}
