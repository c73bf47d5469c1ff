package origin_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"fleetd/fleet/origin"
)

const trace = "0af7651916cd43dd8448eb211c80319c"

func TestTraceParent(t *testing.T) {
	tests := []struct{ name, header, want string }{
		{"valid", "00-" + trace + "-b7ad6b7169203331-01", trace},
		{"later version", "cc-" + trace + "-b7ad6b7169203331-01-more", trace},
		{"none", "", ""},
		{"short", "00-" + trace, ""},
		{"more in version 00", "00-" + trace + "-b7ad6b7169203331-01-more", ""},
		{"joined to more", "cc-" + trace + "-b7ad6b7169203331-01more", ""},
		{"forbidden version", "ff-" + trace + "-b7ad6b7169203331-01", ""},
		{"upper case", "00-" + strings.ToUpper(trace) + "-b7ad6b7169203331-01", ""},
		{"zero trace", "00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", ""},
		{"zero parent", "00-" + trace + "-0000000000000000-01", ""},
		{"not hexadecimal", "00-" + trace[:31] + "g-b7ad6b7169203331-01", ""},
		{"other separators", "00_" + trace + "_b7ad6b7169203331_01", ""},
		{"invalid flags", "00-" + trace + "-b7ad6b7169203331-0x", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := origin.ParseTraceParent(tt.header).String(); got != tt.want {
				t.Errorf("trace id %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFromRequest(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "[2001:db8::7]:4711"
	r.Header.Set("User-Agent", "curl/8\x1b[31m\u202e\xff"+strings.Repeat("é", 150))
	r.Header.Set("Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	o := origin.FromRequest(r)
	if o.Address != "2001:db8::7" || o.Trace.String() != trace {
		t.Errorf("origin %+v", o)
	}
	if want := "curl/8[31m" + strings.Repeat("é", 92); o.Client != want {
		t.Errorf("client %q, want %q", o.Client, want)
	}
	r.Header.Add("Traceparent", "00-"+trace+"-b7ad6b7169203332-01")
	if o := origin.FromRequest(r); o.Trace != (origin.TraceID{}) {
		t.Errorf("two traces in one request: %v was taken", o.Trace)
	}
}
