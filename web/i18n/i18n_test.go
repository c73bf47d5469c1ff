package i18n

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
)

// same are the texts that are rightly equal in both languages: names and signs.
var same = []string{"app.name", "firmware.idf", "firmware.sha256", "call.after", "campaign.unit.percent",
	"campaign.from_to", "campaign.wave_named", "error.code.any.cause", "call.error.any.cause", "audit.kind.webhook"}

func TestBothLanguagesAreWhole(t *testing.T) {
	for key, m := range catalogue {
		en, zh := m[English], m[Chinese]
		if len(zh) != 1 {
			t.Errorf("%s: Chinese has no plural forms", key)
		}
		for _, text := range append(slices.Clone(en.texts()), zh...) {
			if text == "" {
				t.Errorf("%s has an empty text", key)
			}
			if strings.Contains(text, "} %") {
				t.Errorf("%s: %q has a space before %%, which no other percentage has", key, text)
			}
		}
		want := placeholders(en[len(en)-1])
		for _, text := range append(slices.Clone(en.texts()), zh...) {
			want := want
			if count := "{" + en.count() + "}"; len(en) > 1 && text == en.texts()[0] && !strings.Contains(text, count) {
				want = slices.DeleteFunc(slices.Clone(want), func(p string) bool { return p == count }) // "once"
			}
			if got := placeholders(text); !slices.Equal(got, want) {
				t.Errorf("%s: %q has the placeholders %v, want %v", key, text, got, want)
			}
		}
		if words := placeholder.ReplaceAllString(en.texts()[0], ""); words != "" && en.texts()[0] == zh[0] && !slices.Contains(same, key) {
			t.Errorf("%s: %q is not translated", key, en.texts()[0])
		}
		if hasHan(en.texts()[0]) && key != "language.short" {
			t.Errorf("%s: Chinese in the English text %q", key, en.texts()[0])
		}
	}
}

func placeholders(s string) []string {
	found := placeholder.FindAllString(s, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

func hasHan(s string) bool {
	for _, r := range s {
		if unicode.Is(unicode.Han, r) {
			return true
		}
	}
	return false
}

func TestText(t *testing.T) {
	tests := []struct {
		lang Lang
		key  string
		args []any
		want string
	}{
		{English, "fanout.n_devices", []any{"n", 1}, "1 device"},
		{English, "fanout.n_devices", []any{"n", 12345}, "12,345 devices"},
		{Chinese, "fanout.n_devices", []any{"n", 1}, "1 台设备"},
		{Chinese, "fanout.will_call", []any{"tool", "self.reboot", "n", 37}, "将对 37 台设备调用 self.reboot。"},
		{English, "fanout.will_call", []any{"tool", "{n}", "n", 2}, "{n} will be called on 2 devices."},
		{English, "reason.wave_soaking", []any{"devices", int64(1), "soak_ms", time.Second}, "1 device has to stay healthy for 1 s"},
		{English, "reason.wave_soaking", []any{"devices", 2, "soak_ms", time.Second}, "2 devices have to stay healthy for 1 s"},
		{English, "reason.wave_under_way", []any{"open", 1, "size", 3}, "1 of 3 devices are not done"},
		{English, "no.such.key", nil, "⟦no.such.key⟧"},
	}
	for _, tt := range tests {
		if got := Text(tt.lang, tt.key, tt.args...); got != tt.want {
			t.Errorf("Text(%s, %s, %v) = %q, want %q", tt.lang, tt.key, tt.args, got, tt.want)
		}
	}
}

func TestDurations(t *testing.T) {
	tests := []struct {
		d      time.Duration
		en, zh string
	}{
		{0, "0 ms", "0 毫秒"},
		{84 * time.Millisecond, "84 ms", "84 毫秒"},
		{1240 * time.Millisecond, "1.24 s", "1.24 秒"},
		{1680 * time.Millisecond, "1.68 s", "1.68 秒"}, // d.Seconds() returns 1.6800000000000002 for it
		{9490 * time.Millisecond, "9.49 s", "9.49 秒"},
		{300 * time.Microsecond, "<1 ms", "<1 毫秒"},
		{10 * time.Second, "10 s", "10 秒"},
		{9994 * time.Millisecond, "9.99 s", "9.99 秒"},
		{61 * time.Second, "1 min 1 s", "1 分 1 秒"},
		{time.Hour, "1 h", "1 小时"},
		{125 * time.Minute, "2 h 5 min", "2 小时 5 分"},
		{24 * time.Hour, "1 day", "1 天"},
		{50 * time.Hour, "2 d 2 h", "2 天 2 小时"},
	}
	for _, tt := range tests {
		if got := Duration(English, tt.d); got != tt.en {
			t.Errorf("Duration(en, %v) = %q, want %q", tt.d, got, tt.en)
		}
		if got := Duration(Chinese, tt.d); got != tt.zh {
			t.Errorf("Duration(zh-CN, %v) = %q, want %q", tt.d, got, tt.zh)
		}
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", -100: "-100"} {
		if got := Number(English, n); got != want {
			t.Errorf("Number(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 4198: "4.1 KiB", 157286400: "150 MiB"} {
		if got := Bytes(English, n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestRelative(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		at     time.Time
		en, zh string
	}{
		{now.Add(-2 * time.Second), "just now", "刚刚"},
		{now.Add(-59 * time.Second), "59 s ago", "59 秒前"},
		{now.Add(-time.Hour), "1 h ago", "1 小时前"},
		{now.Add(-72 * time.Hour), "3 days ago", "3 天前"},
		{now.Add(10 * time.Minute), "in 10 min", "10 分钟后"},
	}
	for _, tt := range tests {
		if got := Relative(English, tt.at, now); got != tt.en {
			t.Errorf("Relative(en, %v) = %q, want %q", tt.at, got, tt.en)
		}
		if got := Relative(Chinese, tt.at, now); got != tt.zh {
			t.Errorf("Relative(zh-CN, %v) = %q, want %q", tt.at, got, tt.zh)
		}
	}
}

func TestLasting(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		since  time.Time
		en, zh string
	}{
		{now.Add(-2 * time.Second), "just now", "刚刚"},
		{now.Add(-21 * time.Minute), "for 21 min", "已持续 21 分钟"},
		{now.Add(-72 * time.Hour), "for 3 days", "已持续 3 天"},
		{now.Add(time.Minute), "just now", "刚刚"}, // the clock was set back
	}
	for _, tt := range tests {
		if got := Lasting(English, tt.since, now); got != tt.en {
			t.Errorf("Lasting(en, %v) = %q, want %q", tt.since, got, tt.en)
		}
		if got := Lasting(Chinese, tt.since, now); got != tt.zh {
			t.Errorf("Lasting(zh-CN, %v) = %q, want %q", tt.since, got, tt.zh)
		}
	}
}

func TestMatch(t *testing.T) {
	tests := []struct {
		choice, accept string
		want           Lang
	}{
		{"", "", English},
		{"", "zh-CN,zh;q=0.9,en;q=0.8", Chinese},
		{"", "zh", Chinese},
		{"", "de-DE,de", English},
		{"en", "zh-CN", English},
		{"klingon", "zh-Hans", Chinese},
	}
	for _, tt := range tests {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept-Language", tt.accept)
		if got := Match(tt.choice, r); got != tt.want {
			t.Errorf("Match(%q, %q) = %s, want %s", tt.choice, tt.accept, got, tt.want)
		}
	}
}
