package api

import (
	"errors"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/audit"
)

func TestFilters(t *testing.T) {
	w := newWorld(t)
	lab := decode[filterView](t, w.as(t, fleet.RoleOperator, "POST", "/filters",
		`{"name":"lab-speakers","title":"Speakers","q":" tag:lab "}`), 201)
	if lab.Name != "lab-speakers" || lab.Title != "Speakers" || lab.Query != "tag:lab" ||
		lab.CreatedBy != "operator-script" {
		t.Errorf("saved %+v", lab)
	}
	decode[filterView](t, w.post(t, "/filters", `{"name":"a","q":"board:x"}`), 201)
	all := decode[list[filterView]](t, w.get(t, "/filters"), 200).Items
	if len(all) != 2 || all[0].Name != "a" || all[1] != lab {
		t.Errorf("the filters are %+v", all)
	}
	bad := []struct {
		body, code string
		status     int
	}{
		{`{"name":"lab-speakers","q":"tag:x"}`, "name_taken", 409},
		{`{"name":"Lab","q":"tag:x"}`, "invalid_name", 422},
		{`{"name":"-lab","q":"tag:x"}`, "invalid_name", 422},
		{`{"name":"lab\n","q":"tag:x"}`, "invalid_name", 422},
		{`{"name":"` + strings.Repeat("x", 61) + `","q":"tag:x"}`, "", 422},
		{`{"name":"b","q":"colour:red"}`, "unknown_field", 422},
		{`{"name":"b","q":"  "}`, "invalid_query", 422},
		{`{"name":"b","q":"tag:x","title":"two\nlines"}`, "invalid_title", 422},
	}
	for _, tt := range bad {
		if p := w.post(t, "/filters", tt.body).problem(t); p.Status != tt.status || tt.code != "" && p.Code != tt.code {
			t.Errorf("%s is answered %d %+v, want %s", tt.body, p.Status, p, tt.code)
		}
	}
	path := "/filters/" + lab.ID.String()
	changed := decode[filterView](t, w.as(t, fleet.RoleOperator, "PATCH", path, `{"q":"tag:shop"}`), 200)
	if changed.Query != "tag:shop" || changed.Name != lab.Name || changed.Title != lab.Title {
		t.Errorf("changed to %+v", changed)
	}
	if p := w.as(t, fleet.RoleOperator, "PATCH", path, `{"name":"a"}`).problem(t); p.Code != "name_taken" {
		t.Errorf("a taken name is answered %+v", p)
	}
	if f, err := w.filters.FilterByName(t.Context(), "lab-speakers"); err != nil || f.Query != "tag:shop" {
		t.Errorf("by name: %+v, %v", f, err)
	}
	if r := w.as(t, fleet.RoleOperator, "DELETE", path, ""); r.status != 204 {
		t.Errorf("deleting is answered %d %s", r.status, r.body)
	}
	if p := w.as(t, fleet.RoleOperator, "DELETE", path, "").problem(t); p.Code != "unknown_filter" || p.Status != 404 {
		t.Errorf("deleting again is answered %+v", p)
	}
	for _, name := range []string{"lab-speakers", "../x", ""} {
		if _, err := w.filters.FilterByName(t.Context(), name); !isRefusal(err, "unknown_filter") {
			t.Errorf("%q by name: %v", name, err)
		}
	}
	entries, err := w.store.AuditEntries(t.Context(), audit.Filter{Subject: lab.ID.String()})
	if err != nil || len(entries.Items) != 3 || entries.Items[0].Action != "filter.delete" {
		t.Errorf("audited: %+v, %v", entries.Items, err)
	}
	narrow := fleet.Principal{Kind: fleet.KindProgram, Name: "narrow", Role: fleet.RoleOperator}
	if narrow.Scope, err = fleet.NewScope("tag:lab", "", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.filters.Create(t.Context(), narrow, fleet.Filter{Name: "n", Query: "tag:x"}); !isRefusal(err,
		"forbidden") {
		t.Errorf("with a role for some devices only: %v", err)
	}
}

func isRefusal(err error, code string) bool {
	var refused *fleet.Error
	return errors.As(err, &refused) && refused.Code == code
}
