package ui

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChoices(t *testing.T) {
	tests := []struct {
		name, description, argument string
		want                        []string
	}{
		{"stock theme", "Set the theme of the screen. The theme can be `light` or `dark`.", "theme",
			[]string{"light", "dark"}},
		{"list", "Mode: one of `a`, `b`, or `c`", "mode", []string{"a", "b", "c"}},
		{"Chinese", "设置灯效，effect 可为 `rainbow`、`breath` 或 `off`。", "effect", []string{"rainbow", "breath", "off"}},
		{"argument names only", "Take a photo.\nArgs:\n  `question`: what to ask.", "question", nil},
		{"a sentence about something else", "The unit is `c` or `f`. Give a city.", "city", nil},
		{"one word is no choice", "Set theme, such as `dark`.", "theme", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, choices(tt.description, tt.argument)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
