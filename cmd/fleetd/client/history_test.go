package client

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
)

func TestHistoryCommands(t *testing.T) {
	const device = `{"id":"a085e3112233","kind":"esp32","name":"Hall","board":"b","chip":"c","version":"2.4.0","tags":["lab","x"],
		"hold":{"reason":"repair","since":"2026-06-01T08:00:00Z","until":null},"presence":"online","enrolment":"enrolled",
		"retired":false,"inventory_id":"","tools_count":3,"since":"2026-06-01T07:00:00Z"}`
	const before = `{"id":"a085e3112233","kind":"esp32","name":"","board":"b","chip":"c","version":"2.3.0","tags":[],"hold":null,
		"presence":"offline","enrolment":"enrolled","retired":false,"inventory_id":"","tools_count":3,
		"since":"2026-05-01T07:00:00Z"}`
	s := newREST(t, map[string]string{
		"GET /history":         `{"begins_at":"2026-05-01T00:00:00Z","versions_begin_at":"2026-04-01T00:00:00Z"}`,
		"GET /history/devices": `{"items":[` + device + `],"next_cursor":null}`,
		"GET /history/counts":  `{"total":5,"held":1,"by":"tag","items":[{"value":"lab","count":4}]}`,
		"GET /history/diff": `{"items":[{"id":"a085e3112233","fields":["version","presence"],"before":` + before + `,"after":` + device +
			`},{"id":"b","fields":["removed"],"before":` + before + `,"after":null}],"next_cursor":null,"devices":2,"by_field":{}}`,
		"GET /history/adoption": `{"times":["2026-06-01T08:00:00Z","2026-06-02T08:00:00Z"],
			"series":[{"version":"2.4.0","devices":[1,2]},{"version":"","devices":[3,4]}],"others":[5,6]}`,
		"GET /devices/a085e3112233/states": `{"items":[` + device + `]}`,
	})
	testCommands(t, s, []commandTest{
		{args: []string{"history", "begin"}, asks: []string{"GET /history"}, prints: "2026-05-01T00:00:00Z"},
		{args: []string{"history", "list", "--as-of", "2026-06-01T10:00:00+02:00", "-q", "tag:lab"},
			asks:   []string{"GET /history/devices?as_of=2026-06-01T08%3A00%3A00Z&limit=500&q=tag%3Alab"},
			prints: `"Hall"`},
		{args: []string{"history", "count", "--by", "tag"}, asks: []string{"GET /history/counts?by=tag&q="}, prints: `"lab"`},
		{args: []string{"history", "count", "--by", "slot"}, failure: "--by must be one of"},
		{args: []string{"history", "list", "--as-of", "yesterday"}, failure: "yesterday"},
		{args: []string{"history", "diff", "--from", "2026-05-01T00:00:00Z", "--field", "version"},
			asks:   []string{"GET /history/diff?field=version&from=2026-05-01T00%3A00%3A00Z&limit=500&q="},
			prints: "2.3.0"},
		{args: []string{"history", "adoption", "--points", "2"}, asks: []string{"GET /history/adoption?points=2&q=&version="},
			prints: "2026-06-02T08:00:00Z"},
		{args: []string{"history", "device", "a085e3112233"}, asks: []string{"GET /devices/a085e3112233/states?limit=50"},
			prints: "a085e3112233"},
		{args: []string{"history", "device", "b"}, asks: []string{"GET /devices/b/states?limit=50"}, failure: "404"},
	})

	var d PastDevice
	var c struct{ Items []PastChange }
	err := errors.Join(json.Unmarshal([]byte(device), &d), json.Unmarshal([]byte(s.answers["GET /history/diff"]), &c))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ got, want []string }{
		{d.row(), []string{"a085e3112233", "Hall", "b", "2.4.0", "online", "repair", "lab,x", "2026-06-01 07:00:00"}},
		{c.Items[0].row(), []string{"a085e3112233", "version,presence", "2.3.0 -> 2.4.0", " -> lab,x", "offline -> online"}},
		{c.Items[1].row(), []string{"b", "removed", "2.3.0 -> ", "", "offline -> "}},
	} {
		if !slices.Equal(row.got, row.want) {
			t.Errorf("a row is %q, want %q", row.got, row.want)
		}
	}
}
