package campaign_test

import (
	"encoding/json"
	"strings"
	"testing"

	"fleetd/fleet/campaign"
)

const status = `{"audio_speaker":{"volume":70},"battery":{"level":80,"charging":false},"chip":{"minimum_free_heap_size":"81920"},
	"apps":[{"name":"a","ok":true},{"name":"b","ok":true}],"nothing":null}`

func TestCheckAssertions(t *testing.T) {
	tests := []struct {
		path, op, value string
		answer          string // "" is status
		baseline        string
		want            string // part of the error; "" for none
	}{
		{"$.audio_speaker.volume", "eq", "70", "", "", ""},
		{"$.audio_speaker.volume", "eq", "70.0", "", "", ""},
		{"$.audio_speaker.volume", "eq", "71", "", "", "$.audio_speaker.volume is 70 but must be 71"},
		{"$.audio_speaker.volume", "eq", `"70"`, "", "", "must be"},
		{"$.audio_speaker.volume", "ne", "71", "", "", ""},
		{"$.audio_speaker.volume", "ne", "70", "", "", "must not be 70"},
		{"$.battery.level", "ge", "80", "", "", ""},
		{"$.battery.level", "gt", "80", "", "", "must be more than 80"},
		{"$.battery.level", "le", "80", "", "", ""},
		{"$.battery.level", "lt", "81", "", "", ""},
		{"$.battery.level", "lt", "80", "", "", "must be less than 80"},
		{"$.battery.charging", "eq", "false", "", "", ""},
		{"$.battery.charging", "ge", "1", "", "", "is false, which cannot be compared with 1"},
		{"$.chip.minimum_free_heap_size", "ge", "81920", "", "", ""}, // devices write numbers as text
		{"$.battery", "exists", "", "", "", ""},
		{"$.nothing", "exists", "", "", "", ""},
		{"$.nothing", "eq", "null", "", "", ""},
		{"$.screen", "exists", "", "", "", "$.screen is not in the answer"},
		{"$.screen", "ne", "1", "", "", "is not in the answer"},
		{"$.battery", "eq", `{"charging":false,"level":80}`, "", "", ""},
		{"$.apps[*].ok", "eq", "true", "", "", ""},
		{"$.apps[*].name", "eq", `"a"`, "", "", `is "b"`},
		{"$.apps[?(@.name=='b')].ok", "eq", "true", "", "", ""},
		{"$.apps[0].name", "matches", `"^[ab]$"`, "", "", ""},
		{"$.battery.level", "matches", `"^8"`, "", "", ""},
		{"$.apps[0].name", "matches", `"^c"`, "", "", "must match \"^c\""},
		{"$", "eq", `"true"`, `"true"`, "", ""},
		{"$", "eq", "true", "true", "", ""},
		{"$", "matches", `"fine$"`, "all is fine", "", ""}, // an answer that is no JSON is its text
		{"$.battery", "exists", "", "all is fine", "", "is not in the answer"},
		{"$.battery", "unchanged", "", "", `{"battery":{"charging":false,"level":80.0}}`, ""},
		{"$.battery.level", "unchanged", "", "", `{"battery":{"level":90}}`,
			"$.battery.level was 90 before the upgrade and is 80 now"},
		{"$.battery.level", "unchanged", "", "", "", "there is no answer from before"},
		{"$.battery.level", "unchanged", "", "", "not JSON", "before the upgrade and is 80 now"},
		{"$.battery.level", "about", "80", "", "", "unknown comparison"},
		{"$[", "exists", "", "", "", "is not a JSON path"},
		{"$.battery.level", "eq", "", "", "", "no value"},
	}
	for _, tt := range tests {
		t.Run(tt.path+" "+tt.op+" "+tt.value, func(t *testing.T) {
			if tt.answer == "" {
				tt.answer = status
			}
			a := campaign.Assertion{Path: tt.path, Op: tt.op, Value: json.RawMessage(tt.value)}
			err := campaign.CheckAssertions([]campaign.Assertion{a}, tt.answer, tt.baseline)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(saidError(err), tt.want) {
				t.Errorf("%q, want %q", saidError(err), tt.want)
			}
		})
	}
	if err := campaign.CheckAssertions(nil, "anything", ""); err != nil {
		t.Errorf("without assertions: %v", err)
	}
}

// FuzzCheckAssertions: operators write paths, devices write answers. Neither may crash the
// engine.
func FuzzCheckAssertions(f *testing.F) {
	for _, path := range []string{"$.battery.level", "$..level", "$.apps[?(@.ok == true)].name", "$[-1:0:2]", "@.a[*]",
		"$['a','b']"} {
		f.Add(path, "eq", "80", status, status)
		f.Add(path, "matches", `"^8"`, status, "")
		f.Add(path, "unchanged", "", status, "plain text")
	}
	f.Fuzz(func(t *testing.T, path, op, value, answer, baseline string) {
		a := campaign.Assertion{Path: path, Op: op, Value: json.RawMessage(value)}
		err := campaign.CheckAssertions([]campaign.Assertion{a}, answer, baseline)
		if text := saidError(err); len(text) > 2*len(path)+2*len(op)+1000 {
			t.Errorf("an error of %d bytes", len(text))
		}
	})
}

// A deeply nested answer is treated as text: a path with ".." would find more in it than fits
// into memory.
func TestCheckAssertionsOfADeepAnswer(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	exists := []campaign.Assertion{{Path: "$..*..*", Op: "exists"}}
	if err := campaign.CheckAssertions(exists, nested(50), ""); err != nil {
		t.Errorf("50 levels: %v", err)
	}
	for _, deep := range []string{nested(5000), `{"a":` + nested(5000) + "}"} {
		if err := campaign.CheckAssertions(exists, deep, ""); err == nil {
			t.Errorf("%.10s...: found values in an answer of 5000 levels", deep)
		}
	}
}
