package console_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A search finds things by each of their names: printed MAC, id, name, title of a page in either
// language.
func TestFind(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.enrol("a085e3445566")
	b := c.as(fleet.RoleViewer)
	for _, tt := range []struct{ text, want, not string }{
		{"a0:85:E3:11:22:33", "/devices/a085e3112233", "/devices/a085e3445566"},
		{"E3:11:2", "/devices/a085e3112233", "/devices/a085e3445566"},
		{"a085e3", "/devices/a085e3445566", ""},
		{"polic", "/settings/policies", "/devices/a085e3112233"},
		{"批量", "/fanouts", "/settings"},
		{"", "/campaigns", "/devices/a085e3112233"},
		{uuid.NewString(), "", "/calls/"},
		{`name:"half`, "", "/devices/a085e3112233"},
		{"<script>alert(1)</script>", "", "/devices/a085e3112233"},
		{strings.Repeat("ab:", 400), "", "/devices/a085e3112233"},
	} {
		p := b.get("/find?q=" + url.QueryEscape(tt.text)).wantStatus(200)
		hits := p.found()
		if tt.want != "" && !hits[tt.want] {
			t.Errorf("%.40q does not find %s, but %v", tt.text, tt.want, hits)
		}
		if tt.not != "" && hits[tt.not] {
			t.Errorf("%.40q finds %s", tt.text, tt.not)
		}
	}
}

// found returns the addresses in the results of a search.
func (p *page) found() map[string]bool {
	hits := make(map[string]bool)
	for _, list := range p.find("#found") {
		for n := range list.Descendants() {
			if href := attribute(n, "href"); href != "" {
				hits[href] = true
			}
		}
	}
	return hits
}
