package console_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/web/console"
)

// headings returns the columns of the page's table.
func (p *page) headings() []string {
	var all []string
	for _, th := range p.find("th") {
		var b strings.Builder
		for n := range th.Descendants() {
			b.WriteString(n.Data + " ")
		}
		if class := attribute(th, "class"); class != "col-check" {
			all = append(all, class)
		}
	}
	return all
}

func (c *site) tag(id fleet.DeviceID, tags ...string) {
	c.t.Helper()
	if _, err := c.devices.Update(c.t.Context(), anna, id, fleet.DevicePatch{Tags: &tags}); err != nil {
		c.t.Fatal(err)
	}
}

func TestColumnsToChoose(t *testing.T) {
	c := newConsole(t)
	c.enrolUnit()
	c.poll("a085e3445566")
	c.notify("telemetry", heartbeat(`,"crashes":2`))
	c.picture(unit)
	b := c.as(fleet.RoleViewer)
	usual := []string{"col-presence", "col-name", "col-board", "col-version", "col-more", "col-more", "col-more", "col-tags",
		"col-seen"} // with signal, uptime and crash, which one device reports, and without campaigns
	if got := b.get("/devices").headings(); !slices.Equal(got, usual) {
		t.Errorf("columns %v without a choice", got)
	}
	if got := b.get("/devices?q=a085e3445566").headings(); len(got) != 6 {
		t.Errorf("columns %v of a device that reports nothing", got)
	}
	to := b.get("/devices?q=a085&columns=&columns=heap&columns=signal&columns=%3Cb%3E&columns=heap").
		wantRedirect("/devices?columns=signal%2Cheap&q=a085")
	p := b.get(to).wantStatus(200)
	if got := p.headings(); len(got) != 4 {
		t.Errorf("columns %v, want presence, name, signal and heap", got)
	}
	p.wantText("tbody", "\u221266 dBm").wantText("tbody", "148")
	if links := p.find("a[href=/devices?columns=signal%2Cheap&desc=1&q=a085&sort=name]"); len(links) != 1 {
		t.Errorf("%d links sort the list and keep its columns", len(links))
	}
	if got := b.get("/devices").headings(); len(got) != 4 {
		t.Errorf("columns %v, want those that were chosen before", got)
	}
	if got := b.get("/devices?columns=nothing,such").headings(); len(got) != 2 {
		t.Errorf("columns %v for names that are unknown, want presence and name", got)
	}
	all := b.get("/devices?columns=picture,board,chip,version,slot,tags,signal,heap,crash,ip,transport,created,seen&sort=name")
	if got := all.headings(); len(got) != 15 {
		t.Errorf("%d columns of all: %v", len(got), got)
	}
	all.wantText("tbody", "192.0.2.7").wantText("tbody", "esp32s3")
	if n := len(all.find("img[loading=lazy]")); n != 1 {
		t.Errorf("%d pictures, want that of one device", n)
	}
	if links := all.find("a[href=/devices/" + string(unit) + "/health#crashes]"); len(links) != 1 {
		t.Errorf("%d devices with a crash", len(links))
	}
	b.get("/devices?columns=").wantStatus(200)
	b.get("/devices?columns=default").wantStatus(200)
	if got := b.get("/devices").headings(); !slices.Equal(got, usual) {
		t.Errorf("columns %v after the choice was ended", got)
	}
	if got := b.get(b.get("/devices?columns=&columns=").wantRedirect("/devices?columns=-")).headings(); len(got) != 2 {
		t.Errorf("columns %v where no box is ticked", got)
	}
}

// picture uploads a picture of the device's screen.
func (c *site) picture(id fleet.DeviceID) {
	c.t.Helper()
	if _, err := c.snapshots.Photo(c.t.Context(), id, "What is <i>this</i>?", strings.NewReader(string(testPNG(c.t)))); err != nil {
		c.t.Fatal(err)
	}
}

// proposals returns the completions of the filter, with their counts as shown.
func (b *browser) proposals(text string) map[string]string {
	b.t.Helper()
	p := b.get("/complete?" + url.Values{"q": {text}}.Encode()).wantStatus(200)
	found := map[string]string{}
	for _, li := range p.find("li[role=option]") {
		p.root = li
		found[attribute(li, "data-text")] = p.text("span[class=num muted]")
	}
	return found
}

func TestCompleteTheFilter(t *testing.T) {
	c := newConsole(t)
	c.poll("a085e3000001", "a085e3000002", "a085e3000003")
	c.tag("a085e3000001", "lab", "living-room")
	c.tag("a085e3000002", "lab")
	c.tag("a085e3000003", "50%_")
	b := c.as(fleet.RoleViewer)
	tests := []struct {
		name, text, option, count string
	}{
		{"a key", "ta", "tag:", ""},
		{"a flag with its count", "hol", "hold", "0 devices"},
		{"a value", "tag:l", "tag:lab", "2 devices"},
		{"another value", "tag:liv", "tag:living-room", "1 device"},
		{"within quotes", `tag:"living`, "tag:living-room", "1 device"},
		{"a tag without its key", "living", "tag:living-room", "1 device"},
		{"after other words", "board:bread-compact-wifi tag:", "tag:lab", "2 devices"},
		{"the words before narrow it", "id:a085e3000002 tag:", "tag:lab", "1 device"},
		{"an alternative", "tag:lab,Li", "tag:lab,living-room", "1 device"},
		{"negated", "-tag:la", "-tag:lab", ""},
		{"a version", "version:2", "version:2.4.0", "3 devices"},
		{"versions compared", "version>=2", "version>=2.4.0", "3 devices"},
		{"an age", "seen>", "seen>7d", "0 devices"},
		{"in capitals", "BOARD:bread", "board:bread-compact-wifi", "3 devices"},
		{"wildcards mean themselves", "tag:%_", "tag:50%_", "1 device"},
		{"presence", "presence:", "presence:pending", "3 devices"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := b.proposals(tt.text)
			count, ok := got[tt.option]
			if !ok || count != tt.count {
				t.Errorf("%q proposes %v, want %q with %q", tt.text, got, tt.option, tt.count)
			}
		})
	}
	c.asks("a085e3000009", `<script>alert(1)</script> "x"`)
	for _, text := range []string{"", `"`, "board:<scr", "scr", "tag:\x00", "tag:\xff", "%", "colour:red ta", "colour:r", "hold:x", "seen:", "<", ":",
		"-", "'; DROP TABLE devices; --", strings.Repeat("a", 2000), strings.Repeat("a ", 40) + "ta", "tag:,,", `tag:a",`,
		"version<", "version<x", "tag<a", "tool:'"} {
		p := b.get("/complete?" + url.Values{"q": {text}}.Encode())
		if p.status != http.StatusOK || len(p.find("script")) != 0 {
			t.Errorf("%q answers %d", text, p.status)
		}
	}
	if got := b.proposals("colour:red tag:"); len(got) != 0 {
		t.Errorf("after a word that cannot be read: %v", got)
	}
}

// A viewer who sees some devices gets completions and counts of those alone.
func TestCompletionStaysInScope(t *testing.T) {
	b := newScopeBench(t)
	v := b.person("walker", operator.Access{Role: fleet.RoleOperator, Scope: "tag:in"})
	root := b.signIn("root")
	for _, text := range []string{"", "tag:", "board:", "version:", "presence:", "tool:", "chip:", marker[:3], "tag:" + marker} {
		for option, count := range v.proposals(text) {
			if strings.Contains(option, marker) || strings.HasPrefix(count, "2") {
				t.Errorf("%q proposes %q with %s", text, option, count)
			}
		}
	}
	if got := root.proposals("tag:"); got["tag:"+marker] != "1 device" || got["tag:in"] != "1 device" {
		t.Errorf("who sees all is proposed %v", got)
	}
	if got := v.proposals("tag:"); got["tag:in"] != "1 device" {
		t.Errorf("who sees one device is proposed %v", got)
	}
	root.post("/filters?q=id:a085*", url.Values{"name": {"all"}}).wantRedirect("/devices")
	root.post("/filters?q=id:a085*+tag:in", url.Values{"name": {"ours"}}).wantRedirect("/devices")
	for who, want := range map[*browser]string{root: "all 2 ours 1", v: "ours 1"} {
		who.get("/devices").wantText("nav[aria-label=Saved filters]", want)
	}
	for _, at := range []string{"/devices?view=wall", "/devices?columns=picture,signal,crash"} {
		p := v.get(at)
		if strings.Contains(p.body, marker) || strings.Contains(p.body, b.sides[outside].snapshot.String()) {
			t.Errorf("%s discloses the device outside", at)
		}
		if !strings.Contains(p.body, b.sides[inside].snapshot.String()) {
			t.Errorf("%s does not show the picture of the device inside", at)
		}
	}
}

func TestWallOfPictures(t *testing.T) {
	c := newConsole(t)
	c.poll("a085e3000001", "a085e3000002", "a085e3000003", "a085e3000004")
	c.tag("a085e3000001", "lab")
	c.tag("a085e3000003", "lab")
	b := c.as(fleet.RoleViewer)
	b.get("/devices?view=wall").wantText("#wall", "4 devices have no picture yet.")
	for _, id := range []fleet.DeviceID{"a085e3000001", "a085e3000001", "a085e3000002"} {
		c.picture(id)
	}
	p := b.get("/devices?view=wall")
	if n := len(p.find("img[loading=lazy]")); n != 2 {
		t.Errorf("%d pictures, want the latest of two devices", n)
	}
	p.wantText("#wall", "2 devices have no picture yet.").wantText("#wall", "a0:85:e3:00:00:01").wantText("#wall", "Camera")
	if strings.Contains(p.text("#wall"), "00:00:03") {
		t.Error("a device without a picture has a tile")
	}
	p = b.get("/devices?view=wall&q=tag%3Alab")
	if n := len(p.find("img[loading=lazy]")); n != 1 {
		t.Errorf("%d pictures of the lab, want one", n)
	}
	p.wantText("#wall", "1 device has no picture yet.")
	p = b.get("/devices?view=wall&limit=1")
	next := p.find("a[rel=next]")
	if len(next) != 1 || !strings.Contains(attribute(next[0], "href"), "view=wall") {
		t.Fatalf("%d links to the next page", len(next))
	}
	p = b.get(attribute(next[0], "href"))
	if n := len(p.find("img[loading=lazy]")); n != 1 || len(p.find("a[rel=next]")) != 0 {
		t.Errorf("%d pictures on the last page", n)
	}
	b.get("/devices?view=wall&q=colour%3Ared").wantText("#list", "colour")
}

// A search finds a part of an address as it is printed on the board.
func TestFindByPartOfAnAddress(t *testing.T) {
	c := newConsole(t)
	c.poll("a085e3112233", "ffeedd445566")
	b := c.as(fleet.RoleViewer)
	for _, q := range []string{"A0:85:E3", "a085e3", "A085E3", "A0-85", "A0-85-E3", "a0-85-", "11:22:33", "11-22-33", "A0:8",
		"a0:85:e3:11:22:33", "A0-85-E3-11-22-33", "-ff-ee", "-FF:EE"} {
		if p := b.get("/devices?q=" + url.QueryEscape(q)).wantStatus(200); len(p.find("#device-a085e3112233")) != 1 ||
			len(p.find("#device-ffeedd445566")) != 0 {
			t.Errorf("%s finds %q", q, p.text("tbody"))
		}
	}
}

// An address that only the server's machine can reach is shown with a warning.
func TestTeachingWarnsOfALocalAddress(t *testing.T) {
	local := newConsole(t, func(o *console.Options) { o.PublicURL, o.NetworkURL = "http://127.0.0.1:8080", "http://192.0.2.2:8080" })
	b := local.as(fleet.RoleOperator)
	p := b.get("/devices").wantText("main", "No board can reach this address")
	p.wantText("main", "http://192.0.2.2:8080/xiaozhi/ota/")
	b.get("/flash").wantText("#join", "No board can reach this address").
		wantText("#join", "http://192.0.2.2:8080/xiaozhi/ota/")
	if n := len(p.find("figure[class=teach-qr]")); n != 0 {
		t.Error("a phone is offered an address that it cannot reach")
	}
	if p := newConsole(t).as(fleet.RoleOperator).get("/devices"); strings.Contains(p.text("main"), "No board can reach") {
		t.Error("an address that boards reach is warned of")
	}
}
