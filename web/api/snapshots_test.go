package api

import (
	"bytes"
	"io"
	"path"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// The pictures of a fan-out obey the scope of people, and the tools of language models.
func TestSnapshotsOfAFanOut(t *testing.T) {
	w := newWorld(t)
	all := newSides(t, w)

	read := func(query string, header ...string) (ids []string) {
		t.Helper()
		role := fleet.RoleViewer
		if len(header) > 0 {
			role = ""
		}
		found := decode[list[snapshotView]](t, w.as(t, role, "GET", "/snapshots?"+query, "", header...), 200)
		for _, s := range found.Items {
			ids = append(ids, s.ID.String())
		}
		return ids
	}
	latest := map[fleet.DeviceID]string{}
	for id, b := range all {
		made := decode[list[callView]](t, w.get(t, "/calls?fanout="+b.fanOut), 200)
		for range 2 {
			link, err := w.snapshots.UploadURL(t.Context(), id, made.Items[0].ID, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			s, err := w.snapshots.Receive(t.Context(), path.Base(link), func() (io.Reader, error) {
				return bytes.NewReader(pngOf(4, 3)), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			latest[id] = s.ID.String()
		}
		for _, query := range []string{"fanout=" + b.fanOut, "fanout=" + b.fanOut + "&kind=screen&since=2020-01-01T00:00:00Z",
			"device=" + string(id) + "&limit=1", "device=" + string(id) + "&limit=1&until=2099-01-01T00:00:00Z"} {
			if got := read(query); len(got) != 1 || got[0] != latest[id] {
				t.Errorf("%s: %v, want %s", query, got, latest[id])
			}
		}
		for _, query := range []string{"fanout=" + b.fanOut + "&kind=camera", "fanout=" + b.fanOut + "&until=2020-01-01T00:00:00Z",
			"device=" + string(id) + "&since=2099-01-01T00:00:00Z"} {
			if got := read(query); len(got) != 0 {
				t.Errorf("%s: %v", query, got)
			}
		}
	}
	page := decode[list[snapshotView]](t, w.get(t, "/snapshots?limit=1&device="+string(unit)), 200)
	if page.Next == nil {
		t.Fatal("no second page")
	}
	if got := read("limit=1&device=" + string(unit) + "&cursor=" + *page.Next); len(got) != 1 || got[0] == latest[unit] {
		t.Errorf("the second page has %v", got)
	}
	for _, query := range []string{"", "device=" + string(unit) + "&fanout=" + all[unit].fanOut,
		"fanout=" + all[unit].fanOut + "&cursor=" + *page.Next, "fanout=" + all[unit].fanOut + "&call=" + all[unit].call} {
		if r := w.get(t, "/snapshots?"+query); r.status != 422 {
			t.Errorf("%q: %d %s", query, r.status, r.body)
		}
	}
	for name, tt := range map[string]struct {
		secret string
		sees   map[fleet.DeviceID]bool
	}{
		"in the scope":       {w.scoped(t, fleet.RoleOperator, "tag:in"), map[fleet.DeviceID]bool{unit: true}},
		"model, no tools":    {w.model(t, operator.TokenRequest{Name: "m1", Role: fleet.RoleViewer}), nil},
		"model, other tools": {w.model(t, operator.TokenRequest{Name: "m2", Role: fleet.RoleViewer, Tools: []string{"self.x*"}}), nil},
		"model, the tool": {w.model(t, operator.TokenRequest{Name: "m3", Role: fleet.RoleViewer, Tools: []string{"self.say"},
			Scope: "tag:in"}), map[fleet.DeviceID]bool{unit: true}},
	} {
		for id, b := range all {
			bearer := []string{"Authorization", "Bearer " + tt.secret}
			for _, query := range []string{"fanout=" + b.fanOut, "device=" + string(id) + "&limit=1"} {
				if got := read(query, bearer...); (len(got) == 1) != tt.sees[id] || len(got) > 1 {
					t.Errorf("%s, %s of %s: %v", name, query, id, got)
				}
			}
			if r := w.as(t, "", "GET", "/snapshots/"+latest[id], "", bearer...); (r.status == 200) != tt.sees[id] {
				t.Errorf("%s: the picture of %s: %d", name, id, r.status)
			}
		}
	}
}
