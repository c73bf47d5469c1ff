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

func TestGreetShowsTheDemosToken(t *testing.T) {
	for _, token := range []string{"", "flt_demo"} {
		var out bytes.Buffer
		(&Server{cfg: Config{PublicURL: "http://h:8080"}, modelToken: token}).Greet(&out)
		if !strings.Contains(out.String(), "http://h:8080/mcp ") {
			t.Errorf("no address for MCP:\n%s", &out)
		}
		if shown := strings.Contains(out.String(), "Token "); shown != (token != "") {
			t.Errorf("with the token %q:\n%s", token, &out)
		}
	}
}

// Greet warns if boards cannot reach its address because only this machine can.
func TestGreetWarnsOfALocalAddress(t *testing.T) {
	for public, want := range map[string]bool{"http://127.0.0.1:8080": true, "http://localhost:8080": true,
		"http://192.0.2.7:8080": false, "https://fleet.example.org": false} {
		var out bytes.Buffer
		(&Server{cfg: Config{PublicURL: public}}).Greet(&out)
		if got := strings.Contains(out.String(), "LAN=1 make run"); got != want {
			t.Errorf("%s warns: %v, want %v:\n%s", public, got, want, &out)
		}
	}
	if got := (&Config{PublicURL: "http://192.0.2.7:8080"}).networkURL(); got != "" {
		t.Errorf("an address that boards reach is to be replaced by %s", got)
	}
}
