package voicelink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/edge"
	"fleetd/broker/voice"
	"fleetd/broker/voice/voicetest"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
)

const board, other = fleet.DeviceID("020000000001"), fleet.DeviceID("020000000002")

// services are the core's services: they count what happens.
type services struct {
	mu        sync.Mutex
	edges     map[fleet.DeviceID]string // which edge holds a device
	upstream  voice.Upstream
	attached  bool
	calls     []call.Request
	asked     []fleet.DeviceID // whose tools were read
	records   map[uuid.UUID]fleet.Conversation
	saves     int
	fail      error // of records
	open      map[uuid.UUID]fleet.DeviceID
	programs  []fleet.DeviceID
	beforeEnd chan struct{} // a call ends when it is closed; nil: at once
}

func newServices(u voice.Upstream) *services {
	return &services{edges: map[fleet.DeviceID]string{board: "edge-1", other: "edge-2"}, upstream: u, attached: true,
		records: make(map[uuid.UUID]fleet.Conversation), open: make(map[uuid.UUID]fleet.DeviceID)}
}

func (s *services) lock() func() { s.mu.Lock(); return s.mu.Unlock }

func (s *services) connection(id fleet.DeviceID) (fleet.Connection, bool) {
	defer s.lock()()
	node, ok := s.edges[id]
	return fleet.Connection{Device: id, Node: node, ClientID: "GID_x@@@mac@@@uuid"}, ok
}

func (s *services) choose(context.Context, voice.Hello) (voice.Upstream, bool, error) {
	defer s.lock()()
	return s.upstream, s.upstream.URL != "", nil
}

func (s *services) Make(_ context.Context, r call.Request) (fleet.Call, error) {
	s.mu.Lock()
	s.calls = append(s.calls, r)
	wait := s.beforeEnd
	s.mu.Unlock()
	if wait != nil {
		<-wait
	}
	if r.Tool == "self.forbidden" {
		return fleet.Call{State: fleet.CallRefused, Error: fleet.NewCallError(fleet.CodeBusy)}, nil
	}
	done := json.RawMessage(`{"content":[{"type":"text","text":"done"}]}`)
	return fleet.Call{State: fleet.CallSucceeded, Result: done}, nil
}

func (s *services) Offered(_ context.Context, _ fleet.Principal, id fleet.DeviceID) (fleet.Device, []fleet.Tool,
	error) {
	defer s.lock()()
	s.asked = append(s.asked, id)
	return fleet.Device{ID: id, Board: "b", Version: "1", InventoryID: "i"}, []fleet.Tool{{Name: "self.volume",
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)}}, nil
}

func (s *services) OfferedToVoice(context.Context, fleet.Principal) ([]fleet.DeviceID, error) {
	defer s.lock()()
	return s.programs, nil
}

func (s *services) OffersToVoice(id fleet.DeviceID) bool {
	defer s.lock()()
	return slices.Contains(s.programs, id)
}

func (s *services) SaveConversations(_ context.Context, list []fleet.Conversation) error {
	defer s.lock()()
	if s.fail != nil {
		return s.fail
	}
	s.saves++
	for _, c := range list {
		s.records[c.ID] = c
	}
	return nil
}

func (s *services) Begin(c fleet.Conversation) { defer s.lock()(); s.open[c.ID] = c.Device }

func (s *services) End(_ fleet.DeviceID, id uuid.UUID) { defer s.lock()(); delete(s.open, id) }

func (s *services) openNow() int { defer s.lock()(); return len(s.open) }

// untouched reports an error if something was read, called, recorded or shown.
func (s *services) untouched(t *testing.T, what string) {
	t.Helper()
	defer s.lock()()
	if len(s.calls)+len(s.asked)+len(s.records)+len(s.open) > 0 {
		t.Errorf("%s: %d calls, tools of %v, %d records, %d open", what, len(s.calls), s.asked, len(s.records), len(s.open))
	}
}

type edgeKey struct{}

// startCore starts a core over HTTP. In place of a certificate a header names the edge.
func startCore(t *testing.T, s *services) (*Core, *httptest.Server) {
	t.Helper()
	c := NewCore(CoreOptions{Key: []byte("key of the cluster"), Connection: s.connection,
		Edge:     func(ctx context.Context) string { name, _ := ctx.Value(edgeKey{}).(string); return name },
		Attached: func(string) bool { defer s.lock()(); return s.attached },
		Choose:   s.choose, Calls: s, Programs: s, Records: s, Open: s, Language: "zh-CN",
		ConnectTimeout: 100 * time.Millisecond})
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), edgeKey{}, r.Header.Get("Edge"))))
	}))
	t.Cleanup(h.Close)
	return c, h
}

// A way is an edge's way to the core that leads.
type way struct {
	edge string
	mu   sync.Mutex
	url  string // "" while no core leads
	err  error
	seen bytes.Buffer // all answers
}

func (w *way) Ask(ctx context.Context, q Question) (int, []byte, error) {
	for {
		w.mu.Lock()
		url, err := w.url, w.err
		w.mu.Unlock()
		if err != nil {
			return 0, nil, err
		}
		if url != "" {
			return w.post(ctx, url, q)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return 0, nil, fleet.Refuse(fleet.ErrUnavailable, "no_leader")
		}
	}
}

func (w *way) post(ctx context.Context, url string, q Question) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/"+q.Name, bytes.NewReader(q.Body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Edge", w.edge)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, fleet.Refuse(fleet.ErrUnavailable, CodeUnknown)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Write(text)
	return resp.StatusCode, text, err
}

func (w *way) set(url string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.url, w.err = url, err
}

func (w *way) answers() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.String()
}

func principal(id uuid.UUID) fleet.Principal {
	return fleet.Principal{Kind: fleet.KindVoice, ID: id.String(), Name: "admin", Role: fleet.RoleAdmin}
}

// An edge that asks about a device that it does not hold gets nothing, whatever pass it has.
func TestOnlyTheEdgeOfTheDeviceIsAnswered(t *testing.T) {
	s := newServices(voice.Upstream{ID: uuid.New(), Name: "lab", URL: "ws://voice/", Secret: "s3cret"})
	core, h := startCore(t, s)
	own := NewClient(ClientOptions{Asker: &way{edge: "edge-1", url: h.URL}})
	id := uuid.New()
	if _, ok, err := own.Choose(t.Context(), voice.Hello{Device: board, Conversation: id}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	held, _ := own.talks.Get(id)
	for _, tt := range []struct {
		name   string
		edge   string
		change func(*pass)
	}{
		{"the pass of another edge", "edge-2", func(*pass) {}},
		{"another device", "edge-1", func(p *pass) { p.Device = other }},
		{"another conversation", "edge-1", func(p *pass) { p.Conversation = uuid.New() }},
		{"another name", "edge-1", func(p *pass) { p.Name = "admin" }},
		{"another address", "edge-1", func(p *pass) { p.Written = "127.0.0.1:5432" }},
		{"no ticket", "edge-1", func(p *pass) { p.Ticket = nil }},
		{"a device that has left", "edge-1", func(p *pass) {}},
	} {
		left := tt.name == "a device that has left"
		s.mu.Lock()
		s.edges[board] = map[bool]string{true: "edge-3", false: "edge-1"}[left]
		s.mu.Unlock()
		c := NewClient(ClientOptions{Asker: &way{edge: tt.edge, url: h.URL}})
		p := held.pass
		tt.change(&p)
		c.talks.Add(p.Conversation, &talk{pass: p})
		by := principal(p.Conversation)
		if _, tools, err := c.Offered(t.Context(), by, board); err == nil || tools != nil {
			t.Errorf("%s: tools %v, %v", tt.name, tools, err)
		}
		if _, err := c.Make(t.Context(), call.Request{Actor: by, Device: board, Tool: "self.volume"}); err == nil {
			t.Errorf("%s: the call was made", tt.name)
		}
		if ids, err := c.OfferedToVoice(t.Context(), by); err == nil {
			t.Errorf("%s: programs %v", tt.name, ids)
		}
		if url, token, err := c.address(t.Context(), &talk{pass: p}, ""); err == nil {
			t.Errorf("%s: address %q %q", tt.name, url, token)
		}
		c.Begin(fleet.Conversation{ID: p.Conversation, Device: p.Device, Begin: time.Now()})
		c.report(t.Context())
		if !left { // its last record may come later
			end := time.Now()
			_ = c.SaveConversations(t.Context(), []fleet.Conversation{{ID: p.Conversation, Device: p.Device,
				Begin: end.Add(-time.Second), End: &end, Ended: fleet.EndedByDevice}})
		}
		s.untouched(t, tt.name)
	}
	// The message that a device is connected may come after its hello.
	s.mu.Lock()
	delete(s.edges, board)
	s.mu.Unlock()
	time.AfterFunc(10*time.Millisecond, func() { defer s.lock()(); s.edges[board] = "edge-1" })
	if _, ok, err := own.Choose(t.Context(), voice.Hello{Device: board, Conversation: uuid.New()}); !ok || err != nil {
		t.Errorf("a device that has just connected has no voice server: %v", err)
	}
	s.mu.Lock()
	s.edges[board] = "edge-3"
	s.mu.Unlock()
	for _, id := range []fleet.DeviceID{other, board, "020000000009", "", "../x"} {
		c := NewClient(ClientOptions{Asker: &way{edge: "edge-1", url: h.URL}})
		if u, ok, err := c.Choose(t.Context(), voice.Hello{Device: id, Conversation: uuid.New()}); ok || err != nil {
			t.Errorf("the voice server of %q: %+v, %v", id, u, err)
		}
	}
	if n := len(core.Conversations()); n != 0 {
		t.Errorf("%d conversations are open", n)
	}
}

// A program's tools need an offer, and a voice server without tools has none.
func TestWhatMayBeCalled(t *testing.T) {
	s := newServices(voice.Upstream{Name: "lab", URL: "ws://voice/"})
	s.programs = []fleet.DeviceID{"plugin.weather"}
	_, h := startCore(t, s)
	c := NewClient(ClientOptions{Asker: &way{edge: "edge-1", url: h.URL}})
	id := uuid.New()
	if _, _, err := c.Choose(t.Context(), voice.Hello{Device: board, Conversation: id}); err != nil {
		t.Fatal(err)
	}
	for device, want := range map[fleet.DeviceID]string{board: "", "plugin.weather": "", "plugin.other": "voice_not_offered",
		other: "voice_not_offered"} {
		got := ""
		_, err := c.Make(t.Context(), call.Request{Actor: principal(id), Device: device, Tool: "self.volume",
			Timeout: time.Hour})
		if e, ok := errors.AsType[*fleet.Error](err); ok {
			got = e.Code
		}
		if got != want {
			t.Errorf("a call of %s: %v, want %q", device, err, want)
		}
	}
	for _, r := range s.calls {
		by := fleet.Principal{Kind: fleet.KindVoice, ID: id.String(), Name: "lab", Role: fleet.RoleOperator}
		if fmt.Sprint(r.Actor) != fmt.Sprint(by) || r.Timeout > programTimeout || !r.Device.IsProgram() && r.Timeout != 0 {
			t.Errorf("the call %+v", r)
		}
	}
	s.mu.Lock()
	made := len(s.calls)
	s.upstream.NoTools = true
	s.mu.Unlock()
	id = uuid.New()
	if _, _, err := c.Choose(t.Context(), voice.Hello{Device: board, Conversation: id}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Make(t.Context(), call.Request{Actor: principal(id), Device: board, Tool: "self.volume"})
	if e, ok := errors.AsType[*fleet.Error](err); !ok || e.Code != "voice_no_tools" || len(s.calls) != made {
		t.Errorf("a voice server without tools: %v, %d calls", err, len(s.calls)-made)
	}
}

// Garbage is refused, and only edges are answered.
func TestGarbage(t *testing.T) {
	s := newServices(voice.Upstream{Name: "lab", URL: "ws://voice/"})
	_, h := startCore(t, s)
	bodies := []string{"", "x", "[]", "null", "{}", `{"pass":{}}`, `{"pass":{"ticket":"AAAA","device":"` + string(board) + `"}}`,
		`{"records":[{}]}`, `{"records":[` + strings.Repeat(`{},`, maxRecords) + `{}]}`, `{"begun":[{}],"all":true}`,
		`{"device":"` + string(board) + `"}`, `{"conversation":1}`, strings.Repeat(`[`, 100_000),
		`{"tool":"` + strings.Repeat("x", maxRequest) + `"}`}
	for _, name := range []string{askChoose, askAddress, askTools, askPrograms, askCall, askRecords, askReport, "voice/",
		"x"} {
		for _, body := range bodies {
			for _, edge := range []string{"edge-1", ""} {
				w := &way{edge: edge}
				status, text, err := w.post(t.Context(), h.URL, Question{Name: name, Body: []byte(body)})
				answered := status == http.StatusOK
				if err != nil || status >= 500 || answered && (edge == "" || name != askRecords && name != askReport) {
					t.Errorf("%s of %q with %.40q: %d %s %v", name, edge, body, status, text, err)
				}
			}
		}
	}
	s.untouched(t, "garbage")
}

// A call is not sent again if its outcome is not known, and the model learns what happened.
func TestCallsAreSentOnce(t *testing.T) {
	s := newServices(voice.Upstream{Name: "lab", URL: "ws://voice/"})
	_, h := startCore(t, s)
	w := &way{edge: "edge-1", url: h.URL}
	c := NewClient(ClientOptions{Asker: w})
	id := uuid.New()
	if _, _, err := c.Choose(t.Context(), voice.Hello{Device: board, Conversation: id}); err != nil {
		t.Fatal(err)
	}
	r := call.Request{Actor: principal(id), Device: board, Tool: "self.volume"}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fleet.Refuse(fleet.ErrUnavailable, CodeUnknown), "voice_outcome_unknown"},
		{fleet.Refuse(fleet.ErrUnavailable, "no_leader"), "voice_no_leader"},
		{fleet.Refuse(fleet.ErrUnavailable, "edge_stopping"), "voice_no_leader"},
	} {
		w.set("", tt.err)
		_, err := c.Make(t.Context(), r)
		if e, ok := errors.AsType[*fleet.Error](err); !ok || e.Code != tt.want {
			t.Errorf("after %v: %v", tt.err, err)
		}
	}
	w.set(h.URL, nil)
	s.beforeEnd = make(chan struct{})
	gone, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := c.Make(gone, r); done <- err }()
	made := func() int { defer s.lock()(); return len(s.calls) }
	fleettest.Eventually(t, "the call is made", func() bool { return made() == 1 })
	cancel()
	if err := <-done; err == nil {
		t.Error("a call that was given up has a result")
	}
	close(s.beforeEnd)
	h.Config.SetKeepAlivesEnabled(false)
	if made() != 1 {
		t.Errorf("%d calls", made())
	}
}

// A stream is the device's side of a conversation over a stream.
type stream struct {
	mu   sync.Mutex
	sent []string
	lost chan struct{}
}

func (s *stream) SendAudio([]byte, uint32) bool { return true }
func (s *stream) Close()                        {}
func (s *stream) send(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, string(p))
	return nil
}

func (s *stream) got(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.sent, func(m string) bool { return strings.Contains(m, text) })
}

type plainTexts struct{}

func (plainTexts) Ended(how fleet.ConversationEnd) (string, string) { return "", string(how) }
func (plainTexts) Call(c fleet.Call) string                         { return c.Error.Code }
func (plainTexts) Error(err error) string                           { return err.Error() }

// A conversation continues while no core leads, and the next core learns of it: its calls, its record,
// and that it is open. No answer of a core has the secret of the voice server.
func TestConversationWithoutALeader(t *testing.T) {
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", MCP: true, Vision: "http://voice.example.org/explain"})
	defer up.Close()
	u := voice.Upstream{ID: uuid.New(), Name: "lab", URL: up.URL(false), Secret: "s3cret"}
	first, second := newServices(u), newServices(u)
	core, h1 := startCore(t, first)
	next, h2 := startCore(t, second)
	w := &way{edge: "edge-1"}
	c := NewClient(ClientOptions{Asker: w, ReportEvery: 50 * time.Millisecond})
	r, err := voice.New(voice.Options{Choose: c.Choose, Addr: "127.0.0.1:0", Endpoint: "127.0.0.1:0", Calls: c, Programs: c,
		Store: c, Open: c, OnVision: c.OnVision, Texts: plainTexts{}, ChooseTimeout: time.Minute, OfferTimeout: time.Minute,
		HelloTimeout: time.Minute, KeepRecords: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c.Health(r.Healths)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	running.Go(func() { _ = c.Run(ctx) })
	defer func() { stop(); running.Wait() }()

	// A hello waits for a leader.
	b := &stream{lost: make(chan struct{})}
	begun := make(chan edge.Conversation, 1)
	go func() {
		begun <- r.Begin(edge.VoiceDevice{ID: board, ClientID: "uuid", RemoteAddr: "127.0.0.1", Stream: b, Send: b.send,
			Lost: b.lost, Opened: func() {}, Closed: func() {}}, []byte(`{"type":"hello","features":{"mcp":true}}`))
	}()
	w.set(h1.URL, nil)
	talk := <-begun
	fleettest.Eventually(t, "the tools are listed", func() bool { return len(up.Sessions()) == 1 && up.Sessions()[0].Listed() })
	if c.Language() != "zh-CN" {
		t.Errorf("language %q", c.Language())
	}
	session := up.Sessions()[0]
	a, err := session.Call("self.volume", `{}`, time.Minute)
	if err != nil || a.Error != nil || fleet.ResultText(a.Result) != "done" {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err = session.Call("self.forbidden", `{}`, time.Minute); err != nil || a.Error == nil || a.Error.Message != fleet.CodeBusy {
		t.Errorf("%+v, %v", a, err)
	}
	fleettest.Eventually(t, "the conversation is open, and the health known", func() bool {
		return first.openNow() == 1 && len(core.Conversations()) == 1 && core.Health(u.ID, u.Changed).Open == 1
	})

	// During a call of the model, the core knows where pictures go.
	first.mu.Lock()
	first.beforeEnd = make(chan struct{})
	id := core.Conversations()[0].String()
	first.mu.Unlock()
	pictured := make(chan error, 1)
	go func() { _, err := session.Call("self.camera", `{}`, time.Minute); pictured <- err }()
	fleettest.Eventually(t, "the address for pictures is known", func() bool {
		v, ok := core.Vision(id, board)
		return ok && v.URL == "http://voice.example.org/explain" && v.Token == "t"
	})
	if _, ok := core.Vision(id, other); ok {
		t.Error("another device has an address for pictures")
	}
	close(first.beforeEnd)
	if err := <-pictured; err != nil {
		t.Error(err)
	}
	fleettest.Eventually(t, "the address is forgotten", func() bool { _, ok := core.Vision(id, board); return !ok })

	w.set("", nil) // no core leads
	answers := make(chan voicetest.RPC, 1)
	go func() {
		a, err := session.Call("self.volume", `{"volume":1}`, time.Minute)
		if err != nil {
			t.Error(err)
		}
		answers <- a
	}()
	if err := session.Send(`{"type":"stt","text":"still here"}`); err != nil {
		t.Fatal(err)
	}
	fleettest.Eventually(t, "messages pass", func() bool { return b.got("still here") })
	w.set(h2.URL, nil)
	c.ReportAll()
	if a := <-answers; a.Error != nil || len(second.calls) != 1 || len(first.calls) != 3 {
		t.Errorf("%+v; %d and %d calls", a, len(first.calls), len(second.calls))
	}
	fleettest.Eventually(t, "the next core shows it", func() bool { return second.openNow() == 1 })
	next.Lost("edge-1")
	if n := second.openNow(); n != 0 {
		t.Errorf("%d conversations of a lost edge are open", n)
	}
	fleettest.Eventually(t, "the edge reports it again", func() bool { return second.openNow() == 1 })

	w.set("", nil)
	second.mu.Lock()
	delete(second.edges, board) // it has gone when its record comes
	second.mu.Unlock()
	talk.End(fleet.EndedByDeviceLost)
	w.set(h2.URL, nil)
	fleettest.Eventually(t, "the record is saved, and nothing open", func() bool {
		defer second.lock()()
		for _, v := range second.records {
			return v.Ended == fleet.EndedByDeviceLost && v.Calls == 4 && v.Upstream == "lab" && len(second.open) == 0
		}
		return false
	})
	if text := w.answers(); strings.Contains(text, "s3cret") || !strings.Contains(text, `"token":"`) {
		t.Errorf("answers of the cores: %s", text)
	}
}

// The core finds the address at a voice server with accounts, and the edge learns why it has none.
func TestAddressOfAnAccount(t *testing.T) {
	id := uuid.New()
	s := newServices(voice.Upstream{ID: uuid.New(), Name: "lab", URL: "https://voice/ota/"})
	s.upstream.Find = func(_ context.Context, p voice.Poll, refused string) (string, string, error) {
		if p.Device != board || p.ClientID != "uuid" {
			t.Errorf("%+v", p)
		}
		if refused == "old" {
			return "", "", voice.Failed(fleet.EndedRefused, errors.New("401"))
		}
		return "ws://voice/", "new", nil
	}
	_, h := startCore(t, s)
	c := NewClient(ClientOptions{Asker: &way{edge: "edge-1", url: h.URL}})
	u, ok, err := c.Choose(t.Context(), voice.Hello{Device: board, Conversation: id})
	if !ok || err != nil || u.URL != "https://voice/ota/" || u.Find == nil {
		t.Fatalf("%+v, %v", u, err)
	}
	p := voice.Poll{Device: board}
	if url, token, err := u.Find(t.Context(), p, ""); err != nil || url != "ws://voice/" || token != "new" {
		t.Errorf("%q %q %v", url, token, err)
	}
	if _, _, err := u.Find(t.Context(), p, "old"); voice.EndOf(err) != fleet.EndedRefused {
		t.Error(err)
	}
	s.mu.Lock()
	s.upstream.ID = uuid.New()
	s.mu.Unlock()
	if _, _, err := u.Find(t.Context(), p, ""); voice.EndOf(err) != fleet.EndedNoWebSocket {
		t.Errorf("after the voice server of the device has changed: %v", err)
	}
}

// Reports are applied once and in order, whatever is repeated.
func TestReports(t *testing.T) {
	s := newServices(voice.Upstream{Name: "lab", URL: "ws://voice/"})
	core, h := startCore(t, s)
	c := NewClient(ClientOptions{Asker: &way{edge: "edge-1", url: h.URL}})
	begin := func() uuid.UUID {
		id := uuid.New()
		if _, ok, err := c.Choose(t.Context(), voice.Hello{Device: board, Conversation: id}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		c.Begin(fleet.Conversation{ID: id, Device: board, Begin: time.Now()})
		return id
	}
	one := begin()
	report := func() (again bool) {
		t.Helper()
		q := c.nextReport()
		for range 2 { // the second time changes nothing
			var a reportAnswer
			if err := c.ask(t.Context(), Question{Name: askReport}, q, &a); err != nil {
				t.Fatal(err)
			}
			again = a.Again
		}
		return again
	}
	if again := report(); again || s.openNow() != 1 {
		t.Errorf("again %v, %d open", again, s.openNow())
	}
	two := begin()
	c.End(board, one)
	if again := report(); again || s.openNow() != 1 || core.Conversations()[0] != two {
		t.Errorf("again %v, %d open", again, s.openNow())
	}
	_ = begin()
	_ = c.nextReport() // is lost
	if again := report(); !again || s.openNow() != 1 {
		t.Errorf("after a lost report: again %v, %d open", again, s.openNow())
	}
	c.ReportAll()
	if again := report(); again || s.openNow() != 2 {
		t.Errorf("again %v, %d open", again, s.openNow())
	}
	s.mu.Lock()
	s.attached = false // a new core does not know the connections yet
	delete(s.edges, board)
	s.mu.Unlock()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c.ReportAll()
	q := c.nextReport()
	if a, err := core.report(short, "edge-1", &q); err != nil || !a.(reportAnswer).Again || s.openNow() != 2 {
		t.Errorf("%+v, %v, %d open", a, err, s.openNow())
	}
}
