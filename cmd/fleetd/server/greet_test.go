package server

import (
	"bytes"
	"strings"
	"testing"
)

func TestGreetShowsOnlyAGeneratedPassword(t *testing.T) {
	tests := []struct {
		name, first, given string
		shown              bool
	}{
		{"generated", "sekret-sekret", "", true},
		{"given", "sekret-sekret", "sekret-sekret", false},
		{"later start", "", "sekret-sekret", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			(&Server{cfg: Config{AdminPassword: tt.given}, firstPassword: tt.first}).Greet(&out)
			if shown := strings.Contains(out.String(), "sekret"); shown != tt.shown {
				t.Errorf("shown: %v, want %v:\n%s", shown, tt.shown, &out)
			}
		})
	}
}
