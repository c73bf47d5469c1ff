package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

func TestDevices(t *testing.T) {
	w := newWorld(t)
	d := decode[deviceView](t, w.get(t, "/devices/A0-85-E3-11-22-33"), 200)
	if d.ID != unit || d.MAC != "a0:85:e3:11:22:33" || d.Board != "bread-compact-wifi" ||
		d.Presence != fleet.PresenceOnline ||
		d.PresenceSince == nil || d.ToolsCount != len(tools) || d.Enrolment != fleet.EnrolmentEnrolled || d.Hold != nil {
		t.Errorf("answered %+v", d)
	}
	tests := []struct {
		query string
		want  []fleet.DeviceID
	}{
		{"", []fleet.DeviceID{unit, other, waiting}},
		{"?q=", []fleet.DeviceID{unit, other, waiting}},
		{"?q=enrolment:waiting", []fleet.DeviceID{waiting}},
		{"?q=tool:self.reboot+-id:a085e3112244", []fleet.DeviceID{unit}},
		{"?q=version%3C2.0", nil},
	}
	for _, tt := range tests {
		r := w.get(t, "/devices"+tt.query)
		var got []fleet.DeviceID
		for _, d := range decode[list[deviceView]](t, r, 200).Items {
			got = append(got, d.ID)
		}
		if slices.Sort(got); !slices.Equal(got, tt.want) || !strings.Contains(string(r.body), `"items":[`) {
			t.Errorf("%q: %q, want %q", tt.query, got, tt.want)
		}
	}
	for _, sort := range []string{"name", "-name", "board", "version", "presence", "last_seen", "-last_seen", "created"} {
		walk(t, w, "/devices?limit=1&sort="+sort, 3)
	}
}

func TestUpdateDevice(t *testing.T) {
	w := newWorld(t)
	patch := func(body string) deviceView {
		return decode[deviceView](t, w.as(t, fleet.RoleOperator, http.MethodPatch, "/devices/a085e3112233", body), 200)
	}
	if d := patch(`{"name":" front door ","tags":["Lab","b","lab"]}`); d.Name != "front door" || !slices.Equal(d.Tags,
		[]string{"b", "lab"}) {
		t.Errorf("answered %+v", d)
	}
	if d := patch(`{"notes":"two\nlines","tags":[]}`); d.Name != "front door" || d.Notes != "two\nlines" ||
		len(d.Tags) != 0 {
		t.Errorf("answered %+v", d)
	}
}

func TestHold(t *testing.T) {
	w := newWorld(t)
	until := time.Now().Add(time.Hour).In(time.FixedZone("", 3600)).Format(time.RFC3339)
	d := decode[deviceView](t, w.post(t, "/devices/a085e3112233/hold", `{"reason":"on the bench","until":"`+until+`"}`),
		200)
	if d.Hold == nil || d.Hold.Reason != "on the bench" || d.Hold.By != "admin-script" || d.Hold.Until == nil ||
		d.Hold.Until.Location() != time.UTC {
		t.Fatalf("answered %+v", d.Hold)
	}
	if c := decode[callView](t, w.as(t, fleet.RoleOperator, "POST", callPath, volume50),
		200); c.State != fleet.CallRefused {
		t.Errorf("the call is %s", c.State)
	}
	if d := decode[deviceView](t, w.post(t, "/devices/a085e3112233/release", ""), 200); d.Hold != nil {
		t.Errorf("after the release the hold is %+v", d.Hold)
	}
}

func TestEnrolment(t *testing.T) {
	w := newWorld(t)
	code := w.poll(t, waiting).Activation.Code
	if p := w.post(t, "/devices/claim", `{"code":"`+otherCode(code)+`"}`).problem(t); p.Status != 404 ||
		p.Code != "unknown_code" {
		t.Errorf("a wrong code is answered %+v", p)
	}
	d := decode[deviceView](t, w.as(t, fleet.RoleOperator, "POST", "/devices/claim", `{"code":"`+code[:3]+" "+code[3:]+
		`"}`), 200)
	if d.ID != waiting || d.Enrolment != fleet.EnrolmentEnrolled {
		t.Errorf("answered %+v", d)
	}
	if d := decode[deviceView](t, w.post(t, "/devices/a085e3112255/reject", ""),
		200); d.Enrolment != fleet.EnrolmentRejected {
		t.Errorf("after the rejection the device is %s", d.Enrolment)
	}
	if d := decode[deviceView](t, w.post(t, "/devices/a085e3112255/approve", ""),
		200); d.Enrolment != fleet.EnrolmentEnrolled {
		t.Errorf("after the approval the device is %s", d.Enrolment)
	}
	for range 12 {
		w.post(t, "/devices/claim", `{"code":"`+otherCode(code)+`"}`)
	}
	if p := w.post(t, "/devices/claim", `{"code":"`+otherCode(code)+`"}`).problem(t); p.Status != 429 ||
		p.Code != "too_many_attempts" {
		t.Errorf("guessing is answered %+v", p)
	}
}

// otherCode returns a code that no device shows.
func otherCode(code string) string {
	if code[0] == '0' {
		return "1" + code[1:]
	}
	return "0" + code[1:]
}

func TestRetireAndReplace(t *testing.T) {
	w := newWorld(t)
	w.as(t, fleet.RoleOperator, "PATCH", "/devices/a085e3112233", `{"name":"front door"}`)
	d := decode[deviceView](t, w.post(t, "/devices/a085e3112233/replace", `{"successor":"A0:85:E3:11:22:44"}`), 200)
	if d.ID != other || d.Name != "front door" {
		t.Errorf("answered %+v", d)
	}
	old := decode[deviceView](t, w.get(t, "/devices/a085e3112233"), 200)
	if old.RetiredAt == nil || old.ReplacedBy == nil || *old.ReplacedBy != other {
		t.Errorf("the old unit is %+v", old)
	}
	if r := w.as(t, fleet.RoleAdmin, "DELETE", "/devices/a085e3112244", ""); r.status != 204 || len(r.body) > 0 {
		t.Errorf("answered %d %s", r.status, r.body)
	}
	if p := w.as(t, fleet.RoleAdmin, "DELETE", "/devices/a085e3112244", "").problem(t); p.Status != 409 ||
		p.Code != "device_retired" {
		t.Errorf("a second time it is answered %+v", p)
	}
}

func TestTools(t *testing.T) {
	w := newWorld(t)
	for audience, want := range map[string]int{"": 4, "?audience=all": 4, "?audience=model": 2, "?audience=user": 2} {
		got := decode[list[toolView]](t, w.get(t, "/devices/a085e3112233/tools"+audience), 200)
		if len(got.Items) != want {
			t.Errorf("%q: %d tools, want %d", audience, len(got.Items), want)
		}
		for _, tool := range got.Items {
			if !strings.Contains(string(tool.InputSchema), `"object"`) || tool.Name == "" {
				t.Errorf("%+v", tool)
			}
		}
	}
	if got := decode[list[toolView]](t, w.get(t, "/devices/a085e3112255/tools"), 200); got.Items == nil ||
		len(got.Items) > 0 {
		t.Errorf("before its first listing a device has the tools %v", got.Items)
	}
}

func TestInventories(t *testing.T) {
	w := newWorld(t)
	const base = "/devices/a085e3112233/inventories"
	all := decode[list[inventoryView]](t, w.get(t, base), 200).Items
	if len(all) != 2 || all[0].ToolsCount != 4 || all[1].ToolsCount != 3 {
		t.Fatalf("answered %+v", all)
	}
	latest := decode[diffView](t, w.get(t, base+"/diff"), 200)
	named := decode[diffView](t, w.get(t, base+"/diff?from="+all[0].ID+"&to="+all[1].ID), 200)
	if len(latest.Added) != 1 || latest.Added[0].Name != fleet.ToolSnapshot || len(latest.Removed)+
		len(latest.Changed) > 0 {
		t.Errorf("the latest change is %+v", latest)
	}
	if len(named.Removed) != 1 || named.From != all[0].ID {
		t.Errorf("backwards it is %+v", named)
	}
}

func TestFirmwareAndFacts(t *testing.T) {
	w := newWorld(t)
	builds := decode[list[firmwareView]](t, w.get(t, "/devices/a085e3112233/firmware"), 200).Items
	if len(builds) != 1 || builds[0].Version != "2.0.3" || builds[0].Slot != "ota_0" {
		t.Errorf("answered %+v", builds)
	}
	if f := decode[factsView](t, w.get(t, "/devices/a085e3112233/facts"), 200); string(
		f.Facts) != `{"flash_size":16777216}` || f.Broken {
		t.Errorf("answered %s", f.Facts)
	}
}

func TestFactsWarnings(t *testing.T) {
	for _, tt := range []struct {
		facts fleet.Facts
		want  string
	}{
		{fleet.Facts{}, `[]`},
		{fleet.Facts{Broken: true}, `[{"code":"poll_unreadable","params":{"fields":[]}}]`},
		{fleet.Facts{Broken: true, Salvaged: []fleet.PollField{enrolment.PollChip, enrolment.PollBuild}},
			`[{"code":"poll_salvaged","params":{"fields":["chip","build"]}}]`},
	} {
		if got, err := json.Marshal(factsWarnings(tt.facts)); err != nil || string(got) != tt.want {
			t.Errorf("%s, %v, want %s", got, err, tt.want)
		}
	}
}
