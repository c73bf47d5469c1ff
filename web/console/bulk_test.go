package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/web/ui"
)

// An act on many devices is chosen in the list, named, previewed and done.
func TestBulkActFromTheList(t *testing.T) {
	c := newConsole(t)
	ids := []fleet.DeviceID{"a085e3112233", "a085e3112244", "a085e3112255"}
	for _, id := range ids {
		c.enrol(id)
	}
	b := c.as(fleet.RoleOperator)
	b.get("/devices").wantText("main", "All 3 devices")
	at := b.post(ui.PathBulk, url.Values{"act": {"tag"}, "d": {string(ids[0])}, "ids": {string(ids[1])},
		"next": {"/devices?sort=board"}}).wantStatus(http.StatusSeeOther).header.Get("Location")
	b.get(at).wantStatus(200).wantText("main", "2 devices")
	chosen := url.Values{"act": {"tag"}, "ids": {string(ids[0]) + "," + string(ids[1])}, "tags": {"Lab, shelf-2"},
		"next": {"/devices?sort=board"}}
	at = b.post(ui.PathBulk, chosen).wantStatus(http.StatusSeeOther).header.Get("Location")
	b.get(at).wantText("main", "2 devices get these tags")
	chosen.Set("step", "apply")
	chosen.Set("confirm", "3")
	b.post(ui.PathBulk, chosen).wantStatus(http.StatusUnprocessableEntity).wantText("main", "nothing was changed")
	chosen.Set("confirm", "2")
	b.post(ui.PathBulk, chosen).wantRedirect("/devices?sort=board")
	b.get("/devices?sort=board").wantText("#flash", "2 devices were tagged lab, shelf-2")
	d, err := c.store.Device(t.Context(), ids[1])
	if err != nil || !slices.Equal(d.Tags, []string{"lab", "shelf-2"}) {
		t.Errorf("the tags are %q (%v)", d.Tags, err)
	}
	all := url.Values{"act": {"tag"}, "all": {"1"}, "q": {"tag:lab"}, "d": {string(ids[2])}, "tags": {"lab x"}}
	at = b.post(ui.PathBulk, all).wantStatus(http.StatusSeeOther).header.Get("Location")
	b.get(at).wantText("main", "2 devices get these tags")
	b.post(ui.PathBulk, url.Values{"act": {"call"}, "d": {string(ids[2])}}).wantRedirect(ui.PathFanOutNew + "?d=")
	b.post(ui.PathBulk, url.Values{"act": {"update"}, "all": {"1"}, "q": {""}}).wantRedirect(ui.PathCampaignNew + "?q=")
	// The list's query alone chooses nothing.
	b.post(ui.PathBulk, url.Values{"act": {"tag"}, "q": {""}, "next": {"/devices"}}).wantRedirect("/devices")
	b.get("/devices").wantText("#flash", "No device is selected")
	b.get(ui.PathBulk + "?act=release").wantStatus(http.StatusUnprocessableEntity)
	b.get(ui.PathBulk + "?act=explode&all=1&q=").wantStatus(http.StatusUnprocessableEntity)
}

func TestBulkRetireNeedsTheTypedCount(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.enrol("a085e3112244")
	op := c.as(fleet.RoleOperator)
	op.get(ui.PathBulk + "?act=retire&all=1&q=").wantStatus(http.StatusForbidden)
	form := url.Values{"act": {"retire"}, "all": {"1"}, "q": {""}, "step": {"apply"}, "confirm": {"2"}}
	op.post(ui.PathBulk, form).wantStatus(http.StatusForbidden)
	b := c.as(fleet.RoleAdmin)
	b.get(ui.PathBulk+"?act=retire&all=1&q=").wantText("main", "2 devices are retired for good").
		wantText("main", "Type 2 to confirm")
	form.Set("confirm", "1")
	b.post(ui.PathBulk, form).wantStatus(http.StatusUnprocessableEntity)
	form.Del("confirm")
	b.post(ui.PathBulk, form).wantStatus(http.StatusUnprocessableEntity)
	if n, err := c.store.CountDevices(t.Context(), fleet.Query{}); n != 2 || err != nil {
		t.Fatalf("%d devices in service (%v), want 2", n, err)
	}
	form.Set("confirm", "2")
	b.post(ui.PathBulk, form).wantRedirect("/devices")
	b.get("/devices").wantText("#flash", "2 devices are retired")
}

// More devices than fit in an address can still be chosen, shown and changed.
func TestBulkManyTicked(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	ids := []string{"a085e3112233"}
	for i := range 2000 {
		ids = append(ids, fmt.Sprintf("a085e4%06x", i))
	}
	b := c.as(fleet.RoleOperator)
	form := url.Values{"act": {"hold"}, "ids": {strings.Join(ids, ",")}, "reason": {"stock"}}
	b.post(ui.PathBulk, form).wantStatus(200).wantText("main", "1 device is held").wantText("main", "unknown")
	form.Set("step", "apply")
	form.Set("confirm", "1")
	b.post(ui.PathBulk, form).wantRedirect("/devices")
	b.get("/devices").wantText("#flash", "2,000 were skipped: 2,000 unknown")
	form.Set("act", "call")
	form.Del("step")
	b.post(ui.PathBulk, form).wantStatus(http.StatusUnprocessableEntity)
}

func TestImportFromTheConsole(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleOperator)
	b.get(ui.PathImport).wantStatus(200)
	b.post(ui.PathImport, url.Values{"csv": {""}}).wantStatus(http.StatusUnprocessableEntity).
		wantText("main", "name the columns")
	text := "id,name,notes\na085e3112233,<b>Kitchen</b>,\"a\nb\"\nffffffffffff,x,\n"
	p := b.post(ui.PathImport, url.Values{"csv": {text}}).wantStatus(200).wantText("main", "Change 1 device").
		wantText("main", "<b>Kitchen</b>")
	carried := strings.TrimPrefix(p.find("textarea[name=csv]")[0].FirstChild.Data, "\n")
	form := url.Values{"csv": {carried}, "digest": {strings.Repeat("0", 64)}}
	b.post(ui.PathImport+"/apply", form).wantStatus(http.StatusUnprocessableEntity).wantText("main", "nothing was changed")
	form.Set("digest", attribute(p.find("input[name=digest]")[0], "value"))
	b.post(ui.PathImport+"/apply", form).wantRedirect("/devices")
	d, err := c.store.Device(t.Context(), "a085e3112233")
	if err != nil || d.Name != "<b>Kitchen</b>" || d.Notes != "a\nb" {
		t.Errorf("the device is %+v (%v)", d, err)
	}
	file := b.get(ui.PathExport + "?q=name:*kitchen*")
	if got := file.header.Get("Content-Disposition"); !strings.Contains(got, "attachment") {
		t.Errorf("the export is sent as %q", got)
	}
	b.get(ui.PathExport + "?q=nofield:1").wantStatus(http.StatusUnprocessableEntity)
}
