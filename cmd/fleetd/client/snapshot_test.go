package client

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSnapshotCommands(t *testing.T) {
	const one = `{"id":"s1","device_id":"a085e3112233","kind":"camera","question":"What?","width":2,"height":1,"bytes":7}`
	s := newREST(t, map[string]string{"GET /snapshots": `{"items":[` + one + `]}`, "GET /snapshots/s1": "picture"})
	file := filepath.Join(t.TempDir(), "s1.jpg")
	testCommands(t, s, []commandTest{
		{args: []string{"snapshot", "list", "--device", "a085e3112233", "--kind", "camera", "--since", "2026-06-01T10:00:00+02:00"},
			asks:   []string{"GET /snapshots?device=a085e3112233&kind=camera&limit=50&since=2026-06-01T08%3A00%3A00Z"},
			prints: `"What?"`},
		{args: []string{"snapshot", "list", "--fanout", "f1", "--limit", "3"}, asks: []string{"GET /snapshots?fanout=f1&limit=3"},
			prints: "s1"},
		{args: []string{"snapshot", "list"}, failure: "--device"},
		{args: []string{"snapshot", "list", "--device", "a", "--call", "c"}, failure: "--call"},
		{args: []string{"snapshot", "get", "s1"}, asks: []string{"GET /snapshots/s1"}, prints: "picture"},
		{args: []string{"snapshot", "get", "s1", "--out", file}, asks: []string{"GET /snapshots/s1"}},
		{args: []string{"snapshot", "get", "../devices"}, asks: []string{"GET /snapshots/../devices"}, failure: "404"},
	})
	if got, err := os.ReadFile(file); string(got) != "picture" {
		t.Errorf("stored %q, %v", got, err)
	}
}
