package operator_test

import (
	"testing"

	"fleetd/fleet/operator"
)

func TestBrowserName(t *testing.T) {
	tests := []struct{ agent, want string }{
		{"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox · Linux"},
		{"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36 Edg/142.0", "Edge · Windows"},
		{"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36", "Chrome · Windows"},
		{"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.0 Safari/605.1.15", "Safari · macOS"},
		{"Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 Version/18.5 Mobile/15E148 Safari/604.1", "Safari · iPhone"},
		{"Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/130.0 Mobile Safari/537.36 MicroMessenger/8.0.50", "WeChat · Android"},
		{"curl/8.5.0", "curl"},
		{"something else", ""},
		{"", ""},
	}
	for _, tt := range tests {
		if got := operator.BrowserName(tt.agent); got != tt.want {
			t.Errorf("BrowserName(%q) = %q, want %q", tt.agent, got, tt.want)
		}
	}
}
