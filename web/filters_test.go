package web_test

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
	p.wantText("#saved", "cannot be the name of a filter")
	if !strings.Contains(p.body, `<details id="saved" class="card fold" open>`) {
		t.Error("the form is folded away with its error")
	}
	b.post(save, url.Values{"name": {"lab"}, "title": {"Our lab"}}).wantRedirect(list)
	p = b.get("/devices")
	p.wantText("nav[aria-label=Saved filters]", "Our lab")
	f, err := c.filters.FilterByName(t.Context(), "lab")
	if err != nil || f.Query != "tag:lab -hold" {
		t.Fatalf("saved %+v, %v", f, err)
	}
	if viewer := c.as(fleet.RoleViewer).get(list); len(viewer.find("#saved")) != 0 {
		t.Error("a viewer is offered to save the filter")
	}
	b.post("/filters/"+f.ID.String()+"/delete", nil).wantRedirect("/devices")
	if n := len(b.get("/devices").find("#saved")); n != 0 {
		t.Errorf("deleted, and shown %d times", n)
	}
}
