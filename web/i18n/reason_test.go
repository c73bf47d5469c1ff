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

func TestErrors(t *testing.T) {
	long := fleet.Refuse(fleet.ErrInvalid, "invalid_query.long", "size", 3000, "limit", 512)
	cause := fleet.Refuse(fleet.ErrInvalid, "invalid_query.cause", "cause", long.Reason()).At("q")
	passed := fleet.Refuse(fleet.ErrConflict, "end_has_passed", "name", "{end_at}", "end_at",
		time.Date(2026, 8, 1, 22, 0, 0, 0, time.UTC))
	tests := []struct {
		e              *fleet.Error
		detail, en, zh string
	}{
		{long, "the filter has 3,000 bytes; the limit is 512", "The filter has 3,000 bytes; the limit is 512.",
			"筛选条件长 3,000 字节，上限为 512 字节。"},
		{cause, "the filter has 3,000 bytes; the limit is 512", "The filter has 3,000 bytes; the limit is 512.",
			"筛选条件长 3,000 字节，上限为 512 字节。"},
		{passed, "the end of {end_at}, 2026-08-01T22:00:00Z, has passed; set a later one",
			"The end of {end_at}, 2 Aug 2026, 06:00:00, has passed; set a later one.",
			"活动“{end_at}”的结束时间 2026年8月2日 06:00:00 已过，请设置更晚的时间。"},
		{fleet.Refuse(fleet.ErrConflict, "of_a_newer_version"), "of_a_newer_version", "of_a_newer_version",
			"of_a_newer_version"},
	}
	zone := time.FixedZone("", 8*3600)
	for _, tt := range tests {
		if got := ErrorDetail(tt.e); got != tt.detail {
			t.Errorf("for programs: %q, want %q", got, tt.detail)
		}
		if got := Error(English, zone, tt.e); got != tt.en {
			t.Errorf("in English: %q, want %q", got, tt.en)
		}
		if got := Error(Chinese, zone, tt.e); got != tt.zh {
			t.Errorf("in Chinese: %q, want %q", got, tt.zh)
		}
	}
}

// Records of older versions have text and no parameters; a device's text stays unchanged.
func TestCallErrors(t *testing.T) {
	tests := []struct {
		e       *fleet.CallError
		zh      string
		foreign bool
	}{
		{nil, "", false},
		{fleet.NewCallError(fleet.CodeNoAnswer+".answer", "timeout_ms", 5*time.Second), "5 秒内没有应答，设备可能已执行调用。",
			false},
		{&fleet.CallError{Code: fleet.CodeNoAnswer, Message: "no answer within 5s"}, "no answer within 5s", true},
		{&fleet.CallError{Code: fleet.CodeStayed, Message: "the device stayed"}, "the device stayed", true},
		{&fleet.CallError{Code: fleet.CodeNotRecorded, Message: "the database"},
			"数据库未确认发送前必须写入的记录，未发送任何内容。", false},
		{&fleet.CallError{Code: fleet.CodeToolError, Message: "{speaker} gone"}, "{speaker} gone", true},
		{fleet.NewCallError(fleet.CodeTooLarge, "bytes", 300_000, "limit", 262_144),
			"设备已执行调用。应答大小为 293 KiB，超过上限 256 KiB，未予保存。", false},
		{fleet.NewCallError("unsendable.cause", "cause", fleet.Because("unknown_device", "device", "a0")), "没有设备 a0。",
			false},
	}
	for _, tt := range tests {
		if got, foreign := CallError(Chinese, time.UTC, tt.e); got != tt.zh || foreign != tt.foreign {
			t.Errorf("%v: %q, foreign %v; want %q, %v", tt.e, got, foreign, tt.zh, tt.foreign)
		}
	}
}
