package i18n

import (
	"encoding/json"
	"testing"
	"time"

	"fleetd/fleet"
)

func TestBecause(t *testing.T) {
	catalogue["test.stalled"] = message{English: {"stalled for {idle_ms} after {sent_bytes} at {seen_at}: {cause}"},
		Chinese: {"{cause}"}}
	catalogue["test.full"] = message{English: {"{n} of {most} in {name}"}, Chinese: {"{name}：{n}/{most}"}}
	t.Cleanup(func() { delete(catalogue, "test.stalled"); delete(catalogue, "test.full") })
	at := time.Date(2026, 8, 1, 22, 0, 0, 0, time.UTC)
	full := fleet.Because("full", "n", 3, "most", int64(4000), "name", "{n}")
	tests := []struct {
		lang   Lang
		reason fleet.Reason
		want   string
	}{
		{English, fleet.Reason{}, ""},
		{English, full, "3 of 4,000 in {n}"},
		{Chinese, full, "{n}：3/4,000"},
		{English, fleet.Because("unheard_of", "n", 1), "unheard_of"},
		{English, fleet.Because("stalled", "idle_ms", 90*time.Second, "sent_bytes", 2048, "seen_at", at, "cause",
			full),
			"stalled for 1 min 30 s after 2.0 KiB at 2 Aug 2026, 06:00:00: 3 of 4,000 in {n}"},
	}
	for _, tt := range tests {
		text, err := json.Marshal(tt.reason)
		if err != nil {
			t.Fatal(err)
		}
		var stored fleet.Reason
		if err := json.Unmarshal(text, &stored); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, r := range []fleet.Reason{tt.reason, stored} {
			if got := Because(tt.lang, time.FixedZone("", 8*3600), "test.", r); got != tt.want {
				t.Errorf("%s in %s: %q, want %q", text, tt.lang, got, tt.want)
			}
		}
	}
}

func TestStoredParamsAreTyped(t *testing.T) {
	var p fleet.Params
	for _, bad := range []string{`{"n":1.5}`, `{"n":true}`, `{"n":[1]}`, `{"n":9223372036854775808}`, `{"r":{"code":1}}`,
		`[]`} {
		if err := json.Unmarshal([]byte(bad), &p); err == nil {
			t.Errorf("%s was read as %v", bad, p)
		}
	}
	if err := json.Unmarshal([]byte(`null`), &p); err != nil || p != nil {
		t.Errorf("null: %v, %v", p, err)
	}
}
