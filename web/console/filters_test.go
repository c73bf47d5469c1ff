package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"fleetd/fleet"
)

func TestSaveAFilter(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleOperator)
	list := "/devices?q=" + url.QueryEscape("tag:lab -hold")
	save := "/filters?q=" + url.QueryEscape("tag:lab -hold")
	if n := len(b.get(list).find("form[action=/filters?q=tag%3Alab+-hold]")); n != 1 {
		t.Fatalf("%d forms to save the filter", n)
	}
	p := b.post(save, url.Values{"name": {"My Lab"}, "title": {"<b>"}}).wantStatus(http.StatusUnprocessableEntity)
	p.wantText("#saved", "is not a valid filter name")
	if !strings.Contains(p.body, `<details id="saved" class="fold" open>`) {
		t.Error("the form is folded away with its error")
	}
	b.post(save, url.Values{"name": {"lab"}, "title": {"Our lab"}}).wantRedirect(list)
	p = b.get("/devices")
	p.wantText("nav[aria-label=Saved filters]", "Our lab")
	f, err := c.filters.FilterByName(t.Context(), "lab")
	if err != nil || f.Query != "tag:lab -hold" {
		t.Fatalf("saved %+v, %v", f, err)
	}
	p.wantText("nav[aria-label=Saved filters]", "All devices 1 Our lab 0")
	if on := b.get(list).find("a[aria-current=true]"); attribute(on[len(on)-1], "href") == "" {
		t.Error("the filter that is shown is not marked")
	}
	viewer := c.as(fleet.RoleViewer)
	if p := viewer.get(list); len(p.find("#saved"))+len(p.find("#kept")) != 0 {
		t.Error("a viewer is offered to change filters")
	}
	p = b.post("/filters/"+f.ID.String()+"/rename", url.Values{"name": {"N O"}, "title": {"Typed"}}).
		wantStatus(http.StatusUnprocessableEntity)
	p.wantText("#kept", "is not a valid filter name")
	if !strings.Contains(p.body, `value="Typed"`) || !strings.Contains(p.body, `<details class="fold" open>`) {
		t.Error("what was typed is lost, or folded away")
	}
	b.post("/filters/00000000-0000-0000-0000-000000000001/rename", url.Values{"name": {"x"}}).
		wantStatus(http.StatusNotFound)
	b.post("/filters/"+f.ID.String()+"/rename", url.Values{"name": {"lab-2"}, "title": {"Other"}}).wantRedirect(list)
	if f, err = c.filters.FilterByName(t.Context(), "lab-2"); err != nil || f.Title != "Other" || f.Query != "tag:lab -hold" {
		t.Fatalf("renamed %+v, %v", f, err)
	}
	viewer.post("/filters/"+f.ID.String()+"/rename", nil).wantStatus(http.StatusForbidden)
	b.post("/filters/"+f.ID.String()+"/delete", nil).wantRedirect("/devices")
	if n := len(b.get("/devices").find("#kept")); n != 0 {
		t.Errorf("deleted, and shown %d times", n)
	}
}

// An operator enters a title, and programs get a name made from it.
func TestAFilterIsNamedByItsTitle(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	for _, tt := range []struct{ title, name string }{
		{"Old minis", "old-minis"}, {"Old  minis!", "old-minis-2"}, {"Äpfel & Birnen 3", "apfel-birnen-3"},
		{"旧设备", "tag-lab-hold"}, {"旧的", "tag-lab-hold-2"}, {strings.Repeat("long ", 20), strings.Repeat("long-", 11) + "l"},
	} {
		b.post("/filters?q="+url.QueryEscape("tag:lab -hold"), url.Values{"title": {tt.title}, "name": {""}}).wantStatus(303)
		f, err := c.filters.FilterByName(t.Context(), tt.name)
		if err != nil || f.Title != strings.TrimSpace(tt.title) {
			t.Errorf("%s is named %+v, %v, want %s", tt.title, f, err, tt.name)
		}
	}
	b.post("/filters?q="+url.QueryEscape("tag:lab"), url.Values{"title": {""}, "name": {""}}).wantStatus(422)
}
