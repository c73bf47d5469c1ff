package server

import (
	"fmt"
	"strings"
	"testing"
)

func TestRedactURL(t *testing.T) {
	for _, s := range []string{
		"postgres://u:sekret@db/fleet",
		"postgres://u@db/fleet?password=sekret&sslmode=require",
		"postgres://u@db/fleet?sslpassword=sekret",
		"host=db user=u password=sekret dbname=fleet",
		"postgres://u:sekret%zz@db/fleet",
	} {
		if got := redactURL(s); got == "" || strings.Contains(got, "sekret") {
			t.Errorf("redactURL(%q) = %q", s, got)
		}
	}
	const plain = "postgres://u@db/fleet?sslmode=require"
	if got := redactURL(plain); got != plain {
		t.Errorf("redactURL(%q) = %q", plain, got)
	}
	if got := redactURL(""); got != "" {
		t.Errorf("no URL became %q", got)
	}
}

func TestPrefixes(t *testing.T) {
	got, err := prefixes("--trusted-proxies", []string{"10.1.2.3/8", "192.0.2.7", "2001:db8::1/32", "::1"})
	if want := "[10.0.0.0/8 192.0.2.7/32 2001:db8::/32 ::1/128]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v, want %s", got, err, want)
	}
	for _, bad := range []string{"", "proxy.test", "10.0.0.0/33", "10.0.0", "::ffff:10.0.0.1", "10.0.0.1:80"} {
		_, err := prefixes("--trusted-proxies", []string{bad})
		if err == nil || !strings.Contains(err.Error(), "--trusted-proxies") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
