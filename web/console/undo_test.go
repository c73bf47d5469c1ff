package console_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// undoOf returns the address that the page offers to take the last act back; "" if it offers none.
func (p *page) undoOf() string {
	for _, form := range p.find("form") {
		if to := attribute(form, "action"); strings.HasPrefix(to, "/undo/") {
			return to
		}
	}
	return ""
}

func TestUndo(t *testing.T) {
	c := newConsole(t)
	ids := []fleet.DeviceID{"a085e3112233", "a085e3112244"}
	c.enrol(ids...)
	ann, bob := c.as(fleet.RoleOperator), c.signIn(c.operator("bob", fleet.RoleOperator).Name)
	device := func(id fleet.DeviceID) fleet.Device {
		d, err := c.store.Device(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	at := "/devices/" + string(ids[0])
	home := url.Values{"next": {at}}
	act := func(path string, form url.Values) (undo string) {
		t.Helper()
		form.Set("next", at)
		ann.post(path, form).wantRedirect(at)
		return ann.get(at).undoOf()
	}

	// A name, by its maker, once.
	undo := act(at+"/edit", url.Values{"name": {"kitchen"}})
	bob.post(undo, home).wantRedirect(at)
	bob.get(at).wantText("#flash", "can no longer be undone")
	if got := device(ids[0]).Name; got != "kitchen" {
		t.Errorf("another operator's undo made the name %q", got)
	}
	ann.post(undo, home).wantRedirect(at)
	ann.get(at).wantText("#flash", "Undone.")
	if got := device(ids[0]).Name; got != "" {
		t.Errorf("after the undo the name is %q", got)
	}
	ann.post(undo, home).wantRedirect(at)
	ann.get(at).wantText("#flash", "can no longer be undone")

	// Not after another change.
	undo = act(at+"/edit", url.Values{"name": {"hall"}})
	bob.post(at+"/edit", url.Values{"name": {"attic"}}).wantRedirect(at)
	ann.post(undo, home)
	ann.get(at).wantText("#flash", "changed again")
	if got := device(ids[0]).Name; got != "attic" {
		t.Errorf("an undo overwrote a later change: %q", got)
	}
	if undo := act(at+"/edit", url.Values{"name": {"attic"}}); undo != "" {
		t.Error("a change of nothing can be undone")
	}

	// A hold, and its end.
	ann.post(act(at+"/hold", url.Values{"reason": {"wet"}, "hours": {"0"}}), home)
	if device(ids[0]).Hold != nil {
		t.Error("the hold was not undone")
	}
	act(at+"/hold", url.Values{"reason": {"wet"}, "hours": {"8"}})
	held := device(ids[0]).Hold
	ann.post(act(at+"/release", url.Values{}), home)
	if h := device(ids[0]).Hold; h == nil || h.Reason != "wet" || !h.Until.Equal(*held.Until) {
		t.Errorf("after the undo of its end the hold is %+v, it was %+v", h, held)
	}

	// Tags of many devices: a tag that one of them had before stays.
	act(at+"/edit", url.Values{"tags": {"hall"}})
	form := url.Values{"step": {"apply"}, "act": {"tag"}, "tags": {"hall new"}, "all": {"1"}, "q": {""}, "confirm": {"2"}}
	undo = act("/bulk", form)
	if got := device(ids[1]).Tags; !slices.Equal(got, []string{"hall", "new"}) {
		t.Fatalf("tagged: %q", got)
	}
	ann.post(undo, home)
	for i, want := range [][]string{{"hall"}, {}} {
		if got := device(ids[i]).Tags; !slices.Equal(got, want) {
			t.Errorf("after the undo device %d has the tags %q, want %q", i, got, want)
		}
	}

	// By a viewer, and of nothing.
	undo = act(at+"/edit", url.Values{"name": {"roof"}})
	c.as(fleet.RoleViewer).post(undo, home).wantStatus(http.StatusForbidden)
	for _, id := range []string{"x", "00000000-0000-0000-0000-000000000000", "%2e%2e"} {
		ann.post("/undo/"+id, url.Values{"next": {"//evil.example"}}).wantRedirect("/")
	}
	if got := device(ids[0]).Name; got != "roof" {
		t.Errorf("the name is %q", got)
	}
}

// An operator whose rights end meanwhile undoes nothing.
func TestUndoNeedsTheRightsOfNow(t *testing.T) {
	b := newScopeBench(t)
	name := b.person("ann", operator.Access{Role: fleet.RoleOperator, Scope: "tag:in"})
	at := "/devices/" + string(inside)
	name.post(at+"/edit", url.Values{"name": {"mine"}, "next": {at}}).wantRedirect(at)
	undo := name.get(at).undoOf()
	if undo == "" {
		t.Fatal("no undo is offered")
	}
	b.signIn("root").post(at+"/edit", url.Values{"tags": {"out"}}).wantStatus(http.StatusSeeOther)
	name.post(undo, url.Values{"next": {"/devices"}})
	if d, err := b.store.Device(t.Context(), inside); err != nil || d.Name != "mine" {
		t.Errorf("the device outside the scope is named %q, %v", d.Name, err)
	}
}
