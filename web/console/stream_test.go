package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/fleettest"
	"fleetd/web/ui"
)

// A stream is a live page's connection, as a browser reads it.
type stream struct {
	t      testing.TB
	events chan sseEvent
}

type sseEvent struct{ kind, data string }

// stream opens a live stream, which ends with the test.
func (b *browser) stream(path string) *stream {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		b.t.Fatalf("%s: %s, %s", path, resp.Status, resp.Header.Get("Content-Type"))
	}
	s := &stream{t: b.t, events: make(chan sseEvent, 10_000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.events)
		s.read(bufio.NewScanner(resp.Body))
	}()
	b.t.Cleanup(func() { cancel(); resp.Body.Close(); <-done })
	return s
}

func (s *stream) read(lines *bufio.Scanner) {
	lines.Buffer(nil, 4<<20)
	var e sseEvent
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "event":
			e.kind = value
		case "data":
			e.data += value + "\n"
		case "":
			if e.kind != "" && e.kind != "beat" {
				s.events <- e
			}
			e = sseEvent{}
		}
	}
}

// want waits for an event of the kind whose data contains all the words.
func (s *stream) want(kind string, words ...string) {
	s.t.Helper()
	deadline := time.After(time.Minute)
	var seen []string
next:
	for {
		select {
		case e, ok := <-s.events:
			if !ok {
				s.t.Fatalf("the stream ended before %s with %q; it brought %q", kind, words, seen)
			}
			seen = append(seen, e.kind+": "+e.data)
			for _, w := range words {
				if e.kind != kind || !strings.Contains(e.data, w) {
					continue next
				}
			}
			if e.kind == kind {
				return
			}
		case <-deadline:
			s.t.Fatalf("no %s with %q; the stream brought %q", kind, words, seen)
		}
	}
}

// wantEnd waits for the server to end the stream.
func (s *stream) wantEnd() {
	s.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case _, ok := <-s.events:
			if !ok {
				return
			}
		case <-deadline:
			s.t.Fatal("the stream goes on")
		}
	}
}

func TestStreamSendsPresence(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244")
	b := c.as(fleet.RoleViewer)
	list, one, overview := b.stream("/events?view=devices"), b.stream("/events?view=device&id=a085e3112233"),
		b.stream("/events?view=overview")
	one.want("patch", `id="device-head"`, "is-pending")
	c.connect("a085e3112233", says("true"))
	list.want("patch", `id="device-a085e3112233"`, "is-online")
	one.want("patch", `id="device-head"`, "is-online")
	overview.want("patch", `id="presence-now"`, "<strong class=\"num\">1</strong>")
}

// Everything that a page shows about a device is from the same moment, in each response and each
// patch: presence does not run ahead of address, tools and times.
func TestDevicePagesAreLiveAsAWhole(t *testing.T) {
	c := newConsole(t)
	c.poll("a085e3112233")
	b := c.as(fleet.RoleViewer)
	// A page waits at most half a second until the facts are stored: on a busy machine the whole
	// page may be older.
	page := func(presence, other, facts string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; {
			p := b.get("/devices/a085e3112233/facts").wantStatus(200)
			head := strings.Fields(p.text("#device-head"))
			if slices.Contains(head, presence) || time.Now().After(deadline) {
				p.wantText("#device-head", presence).wantText("#device-facts", facts)
				return
			}
			if strings.Contains(p.text("#device-facts"), facts) {
				t.Fatalf("the head says %q, and the facts %q", head, facts)
			}
			p.wantText("#device-head", other)
		}
	}
	one := b.stream("/events?view=device&tab=facts&id=a085e3112233")
	one.want("patch", `id="device-head"`, "is-pending", `id="device-tabs"`, `id="device-facts"`)
	c.connect("a085e3112233", says("true"))
	page("online", "pending", "192.0.2.7")
	one.want("patch", `id="device-head"`, "is-online", `id="device-facts"`, "192.0.2.7")
	c.enrol("a085e3112233") // also lists its tools
	one.want("patch", `id="device-head"`, `<span class="count">6</span>`, `id="device-facts"`)
	for range 20 { // a device that connects and disconnects
		c.presences.Disconnected(fleet.Connection{Device: "a085e3112233", Epoch: c.epoch}, true, fleet.Cause{})
		page("offline", "online", "disconnected")
		c.connect("a085e3112233", says("true"))
		page("online", "offline", "connected from 192.0.2.7")
	}
}

func TestStreamSendsNewDevicesAndCalls(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleOperator)
	devices, filtered, calls := b.stream("/events?view=devices"), b.stream("/events?view=devices&q=name:x"),
		b.stream("/events?view=calls")
	device := b.stream("/events?view=device&id=a085e3112233")
	if _, err := c.enrolments.Poll(enrolment.BootPoll{Device: "a085e3112255", ClientID: uuid.NewString(),
		Board: "esp-box-3", At: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
	devices.want("new", "1")
	b.post("/devices/a085e3112233/tools/self.get_device_status", nil).wantStatus(303) // ends offline
	calls.want("new", "1")
	device.want("new", "1")
	select {
	case e := <-filtered.events:
		t.Errorf("a list that the device does not fit was sent %v", e)
	default:
	}
}

func TestStreamIsForThoseSignedIn(t *testing.T) {
	c := newConsole(t)
	b := c.browser()
	b.headers["Accept"] = "text/event-stream"
	b.get("/events?view=overview").wantStatus(401)
	b = c.as(fleet.RoleViewer)
	for _, q := range []string{"", "view=nope", "view=device&id=!", "view=call&id=x", "view=fanout&id=x"} {
		b.get("/events?" + q).wantStatus(404)
	}
	b.get("/events?view=devices&q=nope:x").wantStatus(422)
}

// A stream is refused in time if its page cannot be read, because the browser would wait for the
// response.
func TestStreamOfAPageThatHangs(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.enrol("a085e3112233")
	tx, err := c.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "LOCK TABLE devices IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	var asking sync.WaitGroup
	b := c.as(fleet.RoleViewer)
	b.headers["Accept"] = "text/event-stream"
	for _, view := range []string{"devices", "device&id=a085e3112233"} {
		asking.Go(func() {
			began := time.Now()
			status := b.get("/events?view=" + view).status
			if took := time.Since(began); status != http.StatusServiceUnavailable || took > 14*time.Second {
				t.Errorf("%s: %d after %s", view, status, took)
			}
		})
	}
	asking.Wait()
}

func TestTooManyStreams(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleViewer)
	for range 5 {
		b.stream("/events?view=overview")
	}
	one := b.stream("/events?view=overview")
	one.want("full")
	one.wantEnd()
	c.signIn("viewer-1").stream("/events?view=overview") // another browser
}

// A slow call shows as sent, and its outcome follows over the stream.
func TestSlowCallFollowsOverTheStream(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	answer := make(chan struct{})
	c.connect("a085e3112233", func(ctx context.Context, _ string, _ json.RawMessage) (fleet.Answer, error) {
		select {
		case <-answer:
			return fleettest.Text("at last"), nil
		case <-ctx.Done():
			return fleet.Answer{}, ctx.Err()
		}
	})
	b := c.as(fleet.RoleOperator)
	s := b.stream("/events?view=device&id=a085e3112233")
	b.headers["HX-Request"] = "true"
	location := b.post("/devices/a085e3112233/tools/self.get_device_status", nil).wantRedirect(
		"/devices/a085e3112233/tools/self.get_device_status?call=")
	u, err := url.Parse(location)
	if err != nil {
		t.Fatal(err)
	}
	id := u.Query().Get("call")
	if b.get(location).find("#callview-"+id) == nil {
		t.Fatal("the page does not show the call")
	}
	close(answer)
	s.want("patch", `id="callview-`+id, "at last")
	s.want("patch", `id="callview-`+id, "at last") // again, for a page that was still on its way
}

func TestSnapshotShowsAtOnce(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	c.connect("a085e3112233", func(ctx context.Context, _ string, args json.RawMessage) (fleet.Answer, error) {
		var a struct{ URL string }
		if err := json.Unmarshal(args, &a); err != nil {
			return fleet.Answer{}, err
		}
		if err := c.upload(ctx, a.URL, testPNG(t)); err != nil {
			return fleet.Answer{}, err
		}
		return fleettest.Text("true"), nil
	})
	b := c.as(fleet.RoleOperator)
	s := b.stream("/events?view=device&id=a085e3112233")
	location := b.post(ui.ToolPath("a085e3112233", fleet.ToolSnapshot), url.Values{"arg.quality": {"80"}}).wantRedirect(
		ui.ToolPath("a085e3112233", fleet.ToolSnapshot))
	s.want("patch", `id="snapshot"`, "/snapshots/")
	p := b.get(location).wantStatus(200)
	shots := p.find("figure[id=snapshot]")
	if len(shots) == 0 {
		t.Fatal("the call's page has no picture")
	}
	src := attribute(p.find("img")[0], "src")
	picture := b.get(src).wantStatus(200)
	if got := picture.header.Get("Content-Type"); got != "image/png" {
		t.Errorf("the picture is served as %q", got)
	}
	if csp := picture.header.Get("Content-Security-Policy"); csp != "default-src 'none'; sandbox" {
		t.Errorf("the picture's policy is %q", csp)
	}
	if got := b.get("/devices/a085e3112233/screen").find("img"); len(got) == 0 {
		t.Error("the screen tab shows no picture")
	}
	c.browser().get(src).wantRedirect("/sign-in")
}

// A fleet that reconnects at once must not flood a page: rows are coalesced.
func TestStormIsCoalesced(t *testing.T) {
	c := newConsole(t)
	var ids []fleet.DeviceID
	for i := range 300 {
		ids = append(ids, fleet.DeviceID(fmt.Sprintf("a085e311%04x", i)))
	}
	c.enrol(ids...)
	b := c.as(fleet.RoleViewer)
	list, overview := b.stream("/events?view=devices&limit=50"), b.stream("/events?view=overview")
	for range 3 {
		for _, id := range ids {
			c.connect(id, says("true"))
		}
	}
	overview.want("patch", `id="presence-now"`, `>300</strong>`)
	if n := len(list.events); n > 150 {
		t.Errorf("a page of 50 rows was sent %d events", n)
	}
	if n := len(overview.events); n > 12 {
		t.Errorf("the overview was sent %d events more", n)
	}
}

// A page shows when the database becomes unavailable and when it is back. It then shows the changes
// since.
func TestStreamSaysThatTheDatabaseIsAway(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	s := c.as(fleet.RoleViewer).stream("/events?view=device&id=a085e3112233")
	s.want("patch", `id="device-head"`, "is-pending")
	c.databaseAway.Store(time.Now().Add(-5 * time.Second).UnixMilli())
	s.want("database", "5")
	c.connect("a085e3112233", says("true"))
	c.databaseAway.Store(0)
	s.want("database", "back")
	s.want("patch", `id="device-head"`, "is-online")
}
