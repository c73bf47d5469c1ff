package password_test

import (
	"strings"
	"testing"

	"fleetd/fleet/internal/password"
)

func TestJudge(t *testing.T) {
	tests := []struct {
		password string
		want     password.Weakness
	}{
		{"aaaaaaaaaaaa", password.Pattern},
		{"1234567890", password.Pattern},
		{"123456789012345", password.Pattern},
		{"0987654321", password.Pattern},
		{"abcdefghijkl", password.Pattern},
		{"abcabcabcabc", password.Pattern},
		{"qwertyuiop", password.Pattern},
		{"qwertyuiopasdfghjkl", password.Pattern},
		{"1qaz2wsx3edc", password.Pattern},
		{"20261123", password.Pattern},
		{"5029384756", password.Pattern}, // ten random digits
		{"password123", password.Common},
		{"P@ssw0rd2026!", password.Common},
		{"passwordpassword", password.Common},
		{"a new password", password.Common},
		{"iloveyou2020", password.Common},
		{"woaini1314520", password.Common},
		{"Summer2026!!", password.Common},
		{"letmein12345", password.Common},
		{"changeme-changeme", password.Common},
		{"fleetd-esp32", password.Common},
		{"hunter2hunter2hunter2", password.Common},
		{"Grace.Hopper", password.Name},
		{"xx grace.hopper 77 Tz!k9", password.Name},
		{"hopper123456", password.Name},
		{"gracegracegrace", password.Name},
		{strings.Repeat("a", 1000), password.Pattern},

		{"correct horse battery", password.None},
		{"battery staple", password.None},
		{"kP9x2mQv7L", password.None},
		{"tznqwpxoeb", password.None},
		{"disgrace the kipper loudly", password.None},
		{"雪山上的狐狸跳舞", password.None},
		{strings.Repeat("k7 Wq!", 200), password.None},
	}
	for _, tt := range tests {
		if got := password.Judge(tt.password, "grace.hopper", ""); got != tt.want {
			t.Errorf("Judge(%.40q) = %q, want %q", tt.password, got, tt.want)
		}
	}
}

// A three-letter name occurs in many words, so the rest must be strong enough without it.
func TestJudgeShortName(t *testing.T) {
	for secret, want := range map[string]password.Weakness{"ada ada ada ada": password.Name, "ada-ada-1234": password.Name,
		"canada goose parade 61": password.None} {
		if got := password.Judge(secret, "ada"); got != want {
			t.Errorf("Judge(%q) = %q, want %q", secret, got, want)
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	secret := strings.Repeat("@4$0!1|a", 125)
	for b.Loop() {
		password.Judge(secret, "grace.hopper")
	}
}
