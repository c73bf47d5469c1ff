package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
)

func (v bulkView) left() map[string]int {
	left := map[string]int{}
	for _, s := range v.Skipped {
		left[s.Reason] = s.Count
	}
	return left
}

func (w *world) count(t *testing.T, query string) (n int) {
	t.Helper()
	if err := w.db.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (w *world) tagsOf(t *testing.T, id fleet.DeviceID) []string {
	t.Helper()
	d, err := w.store.Device(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return d.Tags
}

func TestBulkTags(t *testing.T) {
	w := newWorld(t)
	both := fmt.Sprintf(`"devices":["A0:85:E3:11:22:33",%q,%q,"ffffffffffff"]`, other, unit)
	preview := decode[bulkView](t, w.post(t, "/devices/bulk", `{"act":"tag","tags":["Lab","b2"],"dry_run":true,`+both+`}`), 200)
	if preview.Changed != 2 || preview.Matched != 3 || preview.left()["unknown_device"] != 1 || !preview.DryRun {
		t.Errorf("a dry run says %+v", preview)
	}
	if tags := w.tagsOf(t, unit); len(tags) != 0 {
		t.Errorf("a dry run tagged the device %q", tags)
	}
	done := decode[bulkView](t, w.post(t, "/devices/bulk", `{"act":"tag","tags":["Lab","b2"],"confirm":2,`+both+`}`), 200)
	if done.Changed != 2 || !slices.Equal(w.tagsOf(t, unit), []string{"b2", "lab"}) ||
		!slices.Equal(w.tagsOf(t, other), []string{"b2", "lab"}) {
		t.Errorf("tagging says %+v, the tags are %q and %q", done, w.tagsOf(t, unit), w.tagsOf(t, other))
	}
	if n := w.count(t, `SELECT count(*) FROM audit_entries WHERE action = 'device.update' AND detail->>'bulk' <> ''
		AND detail->'tags' = '["b2", "lab"]'`); n != 2 {
		t.Errorf("%d audit entries of two tagged devices", n)
	}
	again := decode[bulkView](t, w.post(t, "/devices/bulk", `{"act":"tag","tags":["lab"],"q":"tag:lab"}`), 200)
	if again.Changed != 0 || again.left()["unchanged"] != 2 {
		t.Errorf("tagging again says %+v", again)
	}
	gone := decode[bulkView](t, w.post(t, "/devices/bulk", `{"act":"untag","tags":["b2"],"q":"tag:lab"}`), 200)
	if gone.Changed != 2 || !slices.Equal(w.tagsOf(t, unit), []string{"lab"}) {
		t.Errorf("untagging says %+v, the tags are %q", gone, w.tagsOf(t, unit))
	}
	var many []string
	for i := range 32 {
		many = append(many, fmt.Sprintf(`"t%d"`, i))
	}
	full := decode[bulkView](t, w.post(t, "/devices/bulk", `{"act":"tag","q":"tag:lab","tags":[`+strings.Join(many, ",")+
		`]}`), 200)
	if full.Changed != 0 || full.left()["too_many_tags"] != 2 {
		t.Errorf("33 tags say %+v", full)
	}
}

func TestBulkHoldsAndRetires(t *testing.T) {
	w := newWorld(t)
	operator := func(body string) reply { return w.as(t, fleet.RoleOperator, "POST", "/devices/bulk", body) }
	held := decode[bulkView](t, operator(fmt.Sprintf(`{"act":"hold","reason":"bench","devices":[%q]}`, unit)), 200)
	if held.Changed != 1 {
		t.Fatalf("holding says %+v", held)
	}
	both := fmt.Sprintf(`"devices":[%q,%q]`, unit, other)
	if r := operator(`{"act":"retire","confirm":2,` + both + `}`); r.status != http.StatusForbidden {
		t.Errorf("an operator retires: %d %s", r.status, r.body)
	}
	p := decode[bulkView](t, w.as(t, fleet.RoleAdmin, "POST", "/devices/bulk", `{"act":"retire","dry_run":true,`+both+
		`}`), 200)
	if p.Changed != 1 || p.left()["device_held"] != 1 {
		t.Errorf("retiring a held device would: %+v", p)
	}
	for _, confirm := range []string{"", `"confirm":2,`} {
		r := w.as(t, fleet.RoleAdmin, "POST", "/devices/bulk", `{"act":"retire",`+confirm+both+`}`)
		if r.status != http.StatusConflict || r.problem(t).Code != "bulk_count_differs" {
			t.Errorf("retiring with %q: %d %s", confirm, r.status, r.body)
		}
	}
	if n := w.count(t, `SELECT count(*) FROM devices WHERE retired_at IS NOT NULL`); n != 0 {
		t.Errorf("%d devices are retired without the right number", n)
	}
	if n := w.count(t, `SELECT count(*) FROM audit_entries WHERE action = 'device.retire'`); n != 0 {
		t.Errorf("%d audit entries of what was undone", n)
	}
	w.as(t, fleet.RoleAdmin, "POST", "/devices/bulk", `{"act":"retire","confirm":1,`+both+`}`)
	done := decode[bulkView](t, operator(`{"act":"release",`+both+`}`), 200)
	if done.Changed != 1 || done.left()["device_retired"] != 1 {
		t.Errorf("releasing one held and one retired device: %+v", done)
	}
}

// A scope narrows what an act finds, device by device.
func TestBulkScope(t *testing.T) {
	w := newWorld(t)
	newSides(t, w)
	secret := w.scoped(t, fleet.RoleOperator, "tag:in")
	narrow := func(body string) bulkView {
		t.Helper()
		return decode[bulkView](t, w.as(t, "", "POST", "/devices/bulk", body, "Authorization", "Bearer "+secret), 200)
	}
	v := narrow(fmt.Sprintf(`{"act":"hold","reason":"x","devices":[%q,%q]}`, unit, other))
	if v.Changed != 1 || v.left()["unknown_device"] != 1 {
		t.Errorf("%+v, want the other device to be unknown", v)
	}
	if d, err := w.store.Device(t.Context(), other); err != nil || d.Hold != nil {
		t.Errorf("the device outside is held (%v)", err)
	}
	if v = narrow(`{"act":"untag","tags":["in"],"q":""}`); v.Matched != 1 || v.left()["leaves_scope"] != 1 {
		t.Errorf("a device is taken out of the scope: %+v", v)
	}
}

func TestBulkBadInput(t *testing.T) {
	w := newWorld(t)
	for body, code := range map[string]string{
		`{"act":"tag","q":""}`:                                              "invalid_tag",
		`{"act":"tag","tags":["a b"],"q":""}`:                               "invalid_tag",
		`{"act":"hold","q":""}`:                                             "invalid_reason",
		`{"act":"hold","reason":"  ","q":""}`:                               "invalid_reason",
		`{"act":"explode","q":""}`:                                          "invalid_request",
		`{"act":"release"}`:                                                 "audience_missing",
		`{"act":"release","q":"","devices":["a"]}`:                          "audience_missing",
		`{"act":"release","q":"nofield:1"}`:                                 "unknown_field",
		`{"act":"release","devices":["../x"]}`:                              "invalid_device_id",
		`{"act":"hold","reason":"x","q":"","until":"2001-01-01T00:00:00Z"}`: "invalid_until",
	} {
		if r := w.post(t, "/devices/bulk", body); r.status != 422 || r.problem(t).Code != code {
			t.Errorf("%s: %d %s, want %s", body, r.status, r.body, code)
		}
	}
}

func TestImportIsTheDiffThatWasShown(t *testing.T) {
	w := newWorld(t)
	file := func(csv, more string) string { return fmt.Sprintf(`{"csv":%q%s}`, csv, more) }
	text := "id,name,tags\n" + string(unit) + ",Kitchen,lab\n" + string(other) + ",,\nffffffffffff,x,\nno id,x,\n"
	p := decode[importView](t, w.post(t, "/devices/import", file(text, "")), 200)
	if p.Applied || p.Changed != 1 || p.Unchanged != 1 || p.Invalid != 1 || len(p.Skipped) != 1 ||
		p.Skipped[0].Reason != "unknown_device" || p.Problems[0].Line != 5 || *p.Changes[0].New.Name != "Kitchen" {
		t.Fatalf("the plan is %+v", p)
	}
	if d, _ := w.store.Device(t.Context(), unit); d.Name != "" {
		t.Fatal("a plan changed the device")
	}
	with := `,"digest":"` + p.Digest + `"`
	w.as(t, fleet.RoleAdmin, "PATCH", "/devices/"+string(unit), `{"name":"Hall"}`)
	if r := w.post(t, "/devices/import", file(text, with)); r.status != http.StatusConflict ||
		r.problem(t).Code != "import_differs" {
		t.Errorf("after the device changed: %d %s", r.status, r.body)
	}
	if d, _ := w.store.Device(t.Context(), unit); d.Name != "Hall" || len(d.Tags) != 0 {
		t.Errorf("a refused import changed the device: %+v", d)
	}
	w.as(t, fleet.RoleAdmin, "PATCH", "/devices/"+string(unit), `{"name":""}`)
	done := decode[importView](t, w.post(t, "/devices/import", file(text, with)), 200)
	d, err := w.store.Device(t.Context(), unit)
	if err != nil || !done.Applied || done.Changed != 1 || d.Name != "Kitchen" || !slices.Equal(d.Tags, []string{"lab"}) {
		t.Errorf("%+v (%v); the device is %+v", done, err, d)
	}
	if n := w.count(t, `SELECT count(*) FROM audit_entries WHERE detail->>'bulk' <> '' AND detail->>'name' = 'Kitchen'`); n != 1 {
		t.Errorf("%d audit entries", n)
	}
	out := w.get(t, "/devices.csv?q=tag:lab&columns=id,name")
	if out.status != 200 || string(out.body) != "id,name\n"+string(unit)+",Kitchen\n" {
		t.Errorf("the export is %d %q", out.status, out.body)
	}
	if r := w.get(t, "/devices.csv?columns=id,secret"); r.status != 422 {
		t.Errorf("an unknown column: %d %s", r.status, r.body)
	}
	newSides(t, w)
	secret := w.scoped(t, fleet.RoleOperator, "tag:in")
	hidden := w.as(t, "", "GET", "/devices.csv", "", "Authorization", "Bearer "+secret)
	if strings.Contains(string(hidden.body), string(other)) || !strings.Contains(string(hidden.body), string(unit)) {
		t.Errorf("an export within a scope is %q", hidden.body)
	}
	r := w.as(t, "", "POST", "/devices/import", file("id,tags\n"+string(unit)+",\n"+string(other)+",in\n", ""),
		"Authorization", "Bearer "+secret)
	if v := decode[importView](t, r, 200); v.Changed != 0 || len(v.Skipped) != 2 {
		t.Errorf("an import across a scope would: %+v", v)
	}
}
