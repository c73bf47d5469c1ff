package record_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/record"
)

func callRow() *record.CallRow {
	text := func(s string) *string { return &s }
	at := time.Date(2026, 11, 28, 13, 34, 56, 789_012_999, time.FixedZone("", 3600))
	return &record.CallRow{ID: uuid.MustParse("019ac5a8-1f2e-7abc-8def-0123456789ab"), CreatedAt: at,
		Device: "02:00:00:00:00:01", Tool: "self.audio_speaker.set_volume", Arguments: text(`{"volume":40}`),
		Actor: record.Who{Kind: "token", ID: "t1", Name: "night \"shift\"", Role: "operator"},
		State: "succeeded", Result: text(`{"content":[{"type":"text","text":"true"}],"isError":false}`),
		Evidence: text(`[{"code":"answered"}]`), RPCID: 71, TimeoutMs: 30_000, SentAt: &at, FinishedAt: &at}
}

// Lines are hashed, so their bytes may never change.
func TestLinesStayAsTheyAre(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	tests := []struct {
		name, line, want string
	}{
		{"call", string(callRow().Line()), `{"entry":"call","id":"019ac5a8-1f2e-7abc-8def-0123456789ab",` +
			`"created_at":"2026-11-28T12:34:56.789012Z","device_id":"02:00:00:00:00:01",` +
			`"tool":"self.audio_speaker.set_volume","arguments":{"volume":40},"actor_kind":"token","actor_id":"t1",` +
			`"actor_name":"night \"shift\"","actor_role":"operator","state":"succeeded",` +
			`"result":{"content":[{"type":"text","text":"true"}],"isError":false},"evidence":[{"code":"answered"}],` +
			`"rpc_id":71,"timeout_ms":30000,"sent_at":"2026-11-28T12:34:56.789012Z",` +
			`"finished_at":"2026-11-28T12:34:56.789012Z"}`},
		{"late answer", string((&record.LateRow{CreatedAt: at, Late: `{"result":1}`}).Line()),
			`{"entry":"late_answer","created_at":"2026-01-02T03:04:05.000006Z","late":{"result":1}}`},
		{"action", string((&record.ActionRow{CreatedAt: at, Action: "device.hold", Subject: "a\tb",
			Detail: `{"b": 1.0, "a": null}`}).Line()),
			`{"entry":"action","created_at":"2026-01-02T03:04:05.000006Z","actor_kind":"","actor_id":"","actor_name":"",` +
				`"actor_role":"","action":"device.hold","subject":"a\u0009b","detail":{"a":null,"b":1}}`},
		{"dropped", string(record.RowlessLine(record.Dropped, "call", at)),
			`{"entry":"dropped","ref":"call","at":"2026-01-02T03:04:05.000006Z"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.line != tt.want {
				t.Errorf("line:\n%s\nwant:\n%s", tt.line, tt.want)
			}
		})
	}
}

func TestTimesOfLines(t *testing.T) {
	day := 24 * time.Hour
	for _, start := range []time.Time{{}, time.Unix(0, 0), time.Unix(0, -1), time.Date(1600, 2, 28, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC),
		time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)} {
		for i := range 800 {
			at := start.Add(time.Duration(i)*day + time.Duration(i*i)*997*time.Microsecond)
			want := `{"entry":"started","ref":"","at":"` +
				time.UnixMicro(at.UnixMicro()).UTC().Format("2006-01-02T15:04:05.000000Z") + `"}`
			if line := string(record.RowlessLine(record.Started, "", at)); line != want {
				t.Fatalf("line of %v: %s, want %s", at, line, want)
			}
		}
	}
}

func BenchmarkLeafOfCall(b *testing.B) {
	row := callRow()
	b.ReportAllocs()
	for b.Loop() {
		if leaf := row.Leaf().Append(nil); len(leaf) == 0 {
			b.Fatal("no leaf")
		}
	}
}
