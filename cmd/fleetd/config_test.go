package main

import (
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
