package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"image"
	"image/png"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// listen opens a stream of events. The scanner reads its lines until the stream ends.
func (w *world) listen(t *testing.T, query, secret string) *bufio.Scanner {
	t.Helper()
	return w.listenAfter(t, "", query, secret)
}

// listenAfter opens a stream that continues after the event with the id.
func (w *world) listenAfter(t *testing.T, id, query, secret string) *bufio.Scanner {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+prefix+"/events"+query, nil)
	req.Header.Set("Authorization", "Bearer "+secret)
	if id != "" {
		req.Header.Set("Last-Event-ID", id)
	}
	resp, err := w.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || ct != "text/event-stream" {
		t.Fatalf("answered %d %s", resp.StatusCode, ct)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || lines.Text() != ": fleetd" {
		t.Fatalf("the stream begins with %q (%v)", lines.Text(), lines.Err())
	}
	return lines
}

// next returns the next event of a stream.
func next(t *testing.T, lines *bufio.Scanner) (kind string, e eventView) {
	t.Helper()
	for lines.Scan() {
		if k, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = k
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			return kind, e
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return "", e
}

func TestEvents(t *testing.T) {
	w := newWorld(t)
	calls := w.listen(t, "?kind=call,snapshot&device=A0:85:E3:11:22:33", w.tokens[fleet.RoleViewer])
	w.post(t, "/devices/a085e3112244/calls", volume50) // another device
	w.post(t, "/devices/a085e3112233/release", "")     // another kind
	w.post(t, callPath, volume50)
	for _, want := range []fleet.CallState{fleet.CallSent, fleet.CallSucceeded} {
		if kind, e := next(t, calls); kind != "call" || e.DeviceID != unit || e.Call == nil || e.Call.State != want {
			t.Errorf("%s %+v, want a call that is %s", kind, e, want)
		}
	}
	beats := 0
	for beats < 2 && calls.Scan() {
		if strings.HasPrefix(calls.Text(), ":") {
			beats++
		}
	}
	if beats != 2 {
		t.Errorf("%d heartbeats: %v", beats, calls.Err())
	}
}

// A client that lost its stream receives what it missed, or is asked to read its lists again.
func TestEventsContinue(t *testing.T) {
	w := newWorld(t)
	token := w.tokens[fleet.RoleViewer]
	publish := func(kind fleet.EventKind, subject string) {
		w.events.Publish(fleet.Event{Kind: kind, At: time.Now(), Subject: subject})
	}
	// read returns the next n events, and their ids.
	read := func(lines *bufio.Scanner, n int) (ids, events []string) {
		t.Helper()
		for range n {
			id := nextID(t, lines)
			for lines.Scan() && lines.Text() == "" { // a heartbeat
				id = nextID(t, lines)
			}
			kind, e := strings.TrimPrefix(lines.Text(), "event: "), eventView{}
			if lines.Scan() {
				if err := json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &e); err != nil {
					t.Fatal(err)
				}
			}
			ids, events = append(ids, id), append(events, strings.TrimSpace(kind+" "+e.AlertID))
		}
		return ids, events
	}
	first := w.listen(t, "?kind=alert", token)
	start := nextID(t, first)
	for _, subject := range []string{"1", "2", "3"} {
		publish(fleet.EventAlert, subject)
	}
	ids, _ := read(first, 3)
	publish(fleet.EventFanOut, "another kind")
	publish(fleet.EventAlert, "4")
	again := w.listenAfter(t, ids[1], "?kind=alert", token)
	publish(fleet.EventAlert, "5")
	if _, got := read(again, 3); !slices.Equal(got, []string{"alert 3", "alert 4", "alert 5"}) {
		t.Errorf("after the second event: %q", got)
	}
	begin := w.listenAfter(t, start, "?kind=alert", token)
	if _, got := read(begin, 5); !slices.Equal(got, []string{"alert 1", "alert 2", "alert 3", "alert 4", "alert 5"}) {
		t.Errorf("from the beginning: %q", got)
	}

	// A heartbeat has an id, because events that the client did not ask for count, too.
	publish(fleet.EventFanOut, "another kind")
	latest := nextID(t, begin)
	for latest != strings.TrimSuffix(start, "0")+"7" { // 5 alerts and 2 of another kind
		latest = nextID(t, begin)
	}
	resumed := w.listenAfter(t, latest, "?kind=alert", token)
	publish(fleet.EventAlert, "6")
	if _, got := read(resumed, 1); got[0] != "alert 6" {
		t.Errorf("after a heartbeat: %q", got)
	}

	for range keptEvents {
		publish(fleet.EventFanOut, "many")
	}
	for name, id := range map[string]string{"too old": ids[2], "of another process": "ABCDEFGHJKLM-4", "not ours": "4",
		"of the future": strings.TrimSuffix(latest, "7") + "999999"} {
		lines := w.listenAfter(t, id, "?kind=alert", token)
		publish(fleet.EventAlert, name)
		resets, got := read(lines, 2)
		if !slices.Equal(got, []string{"reset", "alert " + name}) {
			t.Errorf("an id that is %s: %q", name, got)
		}
		lines = w.listenAfter(t, resets[0], "?kind=alert", token)
		if _, got = read(lines, 1); got[0] != "alert "+name {
			t.Errorf("after a reset: %q", got)
		}
	}
}

// nextID returns the next id of a stream.
func nextID(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			return id
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return ""
}

func TestFirmwareEvents(t *testing.T) {
	w := newWorld(t)
	lines := w.listen(t, "?kind=campaign,deployment,release", w.tokens[fleet.RoleViewer])
	c := w.planned(t, "") // also creates an image and a release
	tests := []struct {
		kind string
		want func(eventView) bool
	}{
		{"release", func(e eventView) bool { return len(e.Image) == 64 && e.ReleaseID == "" }},
		{"release", func(e eventView) bool { return e.ReleaseID == c.ReleaseID.String() && e.Image == "" }},
		{"campaign", func(e eventView) bool { return e.CampaignID == c.ID.String() }},
		{"deployment", func(e eventView) bool { return e.CampaignID == c.ID.String() && e.DeviceID == unit }},
	}
	// as the engine does
	w.events.Publish(fleet.Event{Kind: fleet.EventDeployed, At: time.Now(), Device: unit, Subject: c.ID.String()})
	for _, tt := range tests {
		if kind, e := next(t, lines); kind != tt.kind || !tt.want(e) {
			t.Errorf("%s %+v, want a %s", kind, e, tt.kind)
		}
	}
}

// A stream ends when its token is revoked, also by another process, and sends no event afterwards.
func TestEventsEndWithTheToken(t *testing.T) {
	for name, revoke := range map[string]func(w *world) *operator.Service{
		"revoked here":      func(w *world) *operator.Service { return w.operators },
		"revoked elsewhere": func(w *world) *operator.Service { return operator.New(w.store) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.api.Heartbeat = time.Hour
			made, secret, err := w.operators.NewToken(t.Context(), root, operator.TokenRequest{Name: "short",
				Role: fleet.RoleViewer})
			if err != nil {
				t.Fatal(err)
			}
			lines := w.listen(t, "", secret)
			w.events.Publish(fleet.Event{Kind: fleet.EventDevice, At: time.Now(), Device: unit})
			if kind, _ := next(t, lines); kind != "device" {
				t.Fatalf("the stream sends %s", kind)
			}
			if err := revoke(w).Revoke(t.Context(), root, made.ID); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() { // no event happens and no heartbeat is due: the server ends it
			}
			if lines.Err() != nil {
				t.Errorf("the stream did not end on the server's side: %v", lines.Err())
			}
			w.events.Publish(fleet.Event{Kind: fleet.EventDevice, At: time.Now(), Device: unit})
			if lines.Scan() {
				t.Errorf("after the end: %q", lines.Text())
			}
		})
	}
}

// A stream does not delay the stop of the server.
func TestEventsEndWithTheServer(t *testing.T) {
	w := newWorld(t)
	stopping := make(chan struct{})
	w.api.Heartbeat, w.api.Stopping = time.Hour, stopping
	lines := w.listen(t, "", w.tokens[fleet.RoleViewer])
	close(stopping)
	for lines.Scan() {
	}
	if lines.Err() != nil {
		t.Errorf("the stream did not end on the server's side: %v", lines.Err())
	}
}

// One token, leaked or used by a program that does not close its streams, must not use up all
// connections.
func TestEventStreamsAreLimited(t *testing.T) {
	w := newWorld(t)
	token := w.tokens[fleet.RoleViewer]
	w.listen(t, "", w.tokens[fleet.RoleAdmin])
	for range maxStreams {
		w.listen(t, "", token)
	}
	got := w.as(t, fleet.RoleViewer, http.MethodGet, "/events", "")
	if p := got.problem(t); got.status != http.StatusTooManyRequests || p.Code != "too_many_streams" {
		t.Errorf("one stream too many was answered %d %s", got.status, p.Code)
	}
	w.listen(t, "", w.tokens[fleet.RoleAdmin]) // other tokens are not affected
}

// A reader that does not read is disconnected, and does not delay the others.
func TestSlowReaderIsDropped(t *testing.T) {
	w := newWorld(t)
	lines := w.listen(t, "?kind=fanout", w.tokens[fleet.RoleViewer])
	big := fleet.Event{Kind: fleet.EventFanOut, Subject: strings.Repeat("x", 64<<10)}
	for range 2000 { // a publisher that waited for the reader would never finish
		w.events.Publish(big)
	}
	events := 0
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "event:") {
			events++
		}
	}
	if events == 0 || events >= 2000 {
		t.Errorf("the slow reader got %d of 2000 events", events)
	}
}

func TestSnapshots(t *testing.T) {
	w := newWorld(t)
	picture := drawing(t)
	w.link.Connect(unit, func(ctx context.Context, _ string, args json.RawMessage) (fleet.Answer, error) {
		var a struct{ URL string }
		if err := json.Unmarshal(args, &a); err != nil {
			return fleet.Answer{}, err
		}
		_, err := w.snapshots.Receive(ctx, a.URL[strings.LastIndex(a.URL, "/")+1:],
			func() (io.Reader, error) { return bytes.NewReader(picture), nil })
		return fleettest.Text("true"), err
	})
	c := decode[callView](t, w.post(t, callPath, `{"tool":"self.screen.snapshot"}`), 200)
	if c.State != fleet.CallSucceeded || strings.Contains(string(c.Arguments), "token") {
		t.Fatalf("the call is %+v", c)
	}
	for _, query := range []string{"?device=A0:85:E3:11:22:33", "?call=" + c.ID.String()} {
		shots := decode[list[snapshotView]](t, w.get(t, "/snapshots"+query), 200).Items
		if len(shots) != 1 || *shots[0].CallID != c.ID || shots[0].Width != 8 || shots[0].Bytes != int64(len(picture)) {
			t.Fatalf("%s: %+v", query, shots)
		}
		r := w.get(t, strings.TrimPrefix(shots[0].URL, prefix))
		if r.status != 200 || r.header.Get("Content-Type") != "image/png" || !bytes.Equal(r.body, picture) ||
			r.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("the picture is answered %d %v, %d bytes", r.status, r.header, len(r.body))
		}
	}
	if none := decode[list[snapshotView]](t, w.get(t, "/snapshots?device=a085e3112244"), 200); none.Items == nil ||
		len(none.Items) > 0 {
		t.Errorf("the other device has %v", none.Items)
	}
}

func drawing(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := png.Encode(&buf, image.NewGray(image.Rect(0, 0, 8, 6))); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
