package gateway_test

//lint:file-ignore SA1019 logging is deprecated since 2026-07-28, and what clients have

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/mcp/gateway"
)

// testPrograms are plug-ins in this process.
type testPrograms struct {
	mu       sync.Mutex
	servers  map[fleet.DeviceID]*mcp.ClientSession
	audience map[fleet.DeviceID]fleet.Audience
	receive  func(gateway.ProgramChange)
}

func (p *testPrograms) Server(id fleet.DeviceID) *mcp.ClientSession {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[id]
}

func (p *testPrograms) Audience(id fleet.DeviceID) fleet.Audience {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.audience[id]
}

func (p *testPrograms) OnChange(receive func(gateway.ProgramChange)) { p.receive = receive }

// run connects a plug-in, or another one of its name in its place.
func (p *testPrograms) run(t *testing.T, w *world, id fleet.DeviceID, s *mcp.Server) {
	t.Helper()
	kind := fleet.DevicePlugin
	if strings.HasPrefix(string(id), fleet.EndpointPrefix) {
		kind = fleet.DeviceEndpoint
	}
	if err := w.store.SaveProgram(t.Context(), id, kind, "1", time.Now().UTC()); err != nil {
		t.Fatal(err)
	}
	c, server := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), server, nil); err != nil {
		t.Fatal(err)
	}
	lists := func() { p.receive(gateway.ProgramChange{Device: id, Lists: true}) }
	client, err := mcp.NewClient(&mcp.Implementation{Name: "fleetd", Version: "1"}, &mcp.ClientOptions{
		PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { lists() },
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { lists() },
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			p.receive(gateway.ProgramChange{Device: id, Updated: r.Params.URI})
		}}).Connect(t.Context(), c, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	p.mu.Lock()
	p.servers[id] = client
	p.mu.Unlock()
	lists()
}

func (p *testPrograms) stop(id fleet.DeviceID) {
	p.mu.Lock()
	s := p.servers[id]
	delete(p.servers, id)
	p.mu.Unlock()
	s.Close()
	p.receive(gateway.ProgramChange{Device: id, Lists: true})
}

func worldWithPrograms(t *testing.T) (*world, *testPrograms) {
	p := &testPrograms{servers: map[fleet.DeviceID]*mcp.ClientSession{}, audience: map[fleet.DeviceID]fleet.Audience{}}
	return newWorld(t, func(o *gateway.Options) { o.Programs = p }), p
}

const (
	quotes = fleet.DeviceID("plugin.quotes")
	today  = "quotes://today"
)

// quotesServer is a plug-in that counts its subscriptions.
func quotesServer(subscribed *atomic.Int32) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "quotes", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { subscribed.Add(1); return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { subscribed.Add(-1); return nil },
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{
				Values: []string{r.Params.Ref.Name + r.Params.Ref.URI}}}, nil
		}})
	read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		if strings.HasSuffix(r.Params.URI, "nobody") {
			return nil, mcp.ResourceNotFoundError(r.Params.URI)
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "of " + r.Params.URI}}}, nil
	}
	s.AddResource(&mcp.Resource{URI: today, Name: "today", Description: "good\u202e"}, read)
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "quotes://author/{name}", Name: "author"}, read)
	s.AddResource(&mcp.Resource{URI: "quotes://long", Name: "long"}, func(context.Context, *mcp.ReadResourceRequest) (
		*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{Text: strings.Repeat("x", 1<<20+1)}}}, nil
	})
	addPrompt(s, "cite", "Cite them.")
	addPrompt(s, "long", strings.Repeat("y", 1<<20+1))
	return s
}

func addPrompt(s *mcp.Server, name, text string) {
	s.AddPrompt(&mcp.Prompt{Name: name, Icons: []mcp.Icon{{Source: "https://elsewhere.example/x.png"}}},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: text}},
				{Role: "user", Content: &mcp.ResourceLink{URI: today, Name: "today"}}}}, nil
		})
}

func promptNames(t *testing.T, s *mcp.ClientSession) (names []string) {
	t.Helper()
	for p, err := range s.Prompts(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Icons != nil {
			t.Errorf("the prompt %s has icons", p.Name)
		}
		names = append(names, p.Name)
	}
	return names
}

func resourceURIs(t *testing.T, s *mcp.ClientSession) (uris []string) {
	t.Helper()
	for r, err := range s.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(r.Description, "\u202e") {
			t.Errorf("%s is described as %q", r.URI, r.Description)
		}
		uris = append(uris, r.URI)
	}
	return uris
}

func templates(t *testing.T, s *mcp.ClientSession) (uris []string) {
	t.Helper()
	for r, err := range s.ResourceTemplates(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		uris = append(uris, r.URITemplate)
	}
	return uris
}

// At /mcp, prompts and resources of all plug-ins have names that begin with the plug-in's. At the
// plug-in's own address they have their own names.
func TestPromptsAndResourcesOfPrograms(t *testing.T) {
	w, p := worldWithPrograms(t)
	var subscribed atomic.Int32
	p.run(t, w, quotes, quotesServer(&subscribed))
	lab := mcp.NewServer(&mcp.Implementation{Name: "lab", Version: "1"}, nil)
	addPrompt(lab, "cite", "In the lab.")
	p.run(t, w, "endpoint.quotes", lab)
	token := w.token(t, operator.TokenRequest{Role: fleet.RoleViewer})
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		for _, at := range []struct{ path, name, uri string }{{"/mcp", "quotes/", "plugin://quotes/"},
			{"/mcp/plugins/quotes", "", ""}} {
			t.Run(version+at.path, func(t *testing.T) {
				s := w.client(t, token, at.path, nil, version)
				names := promptNames(t, s)
				if !slices.Contains(names, at.name+"cite") {
					t.Errorf("prompts %q", names)
				}
				if fleetWide := at.name != ""; slices.Contains(names, "diagnose_device") != fleetWide ||
					slices.Contains(names, "endpoint.quotes/cite") != fleetWide {
					t.Errorf("prompts %q", names)
				}
				if uris := resourceURIs(t, s); !slices.Contains(uris, at.uri+today) {
					t.Errorf("resources %q", uris)
				}
				if uris := templates(t, s); !slices.Contains(uris, at.uri+"quotes://author/{name}") {
					t.Errorf("templates %q", uris)
				}
				for _, uri := range []string{today, "quotes://author/Goethe"} {
					r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: at.uri + uri})
					if err != nil || r.Contents[0].Text != "of "+uri || r.Contents[0].URI != at.uri+uri {
						t.Errorf("%s: %+v, %v", uri, r, err)
					}
				}
				for uri, want := range map[string]string{"quotes://author/nobody": "not found",
					"quotes://elsewhere": "not found", "quotes://long": "mcp_program_long"} {
					_, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: at.uri + uri})
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v, want %s", uri, err, want)
					}
				}
				g, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: at.name + "cite"})
				if err != nil || g.Messages[0].Content.(*mcp.TextContent).Text != "Cite them." ||
					g.Messages[1].Content.(*mcp.ResourceLink).URI != at.uri+today {
					t.Errorf("the prompt: %+v, %v", g, err)
				}
				for name, want := range map[string]string{"none": "unknown prompt", "long": "mcp_program_long"} {
					_, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: at.name + name})
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("the prompt %s: %v, want %s", name, err, want)
					}
				}
				for _, ref := range []*mcp.CompleteReference{{Type: "ref/prompt", Name: at.name + "cite"},
					{Type: "ref/resource", URI: at.uri + "quotes://author/{name}"}} {
					c, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: ref,
						Argument: mcp.CompleteParamsArgument{Name: "name"}})
					want := strings.TrimPrefix(ref.Name, at.name) + strings.TrimPrefix(ref.URI, at.uri)
					if err != nil || len(c.Completion.Values) != 1 || c.Completion.Values[0] != want {
						t.Errorf("completion of %+v: %+v, %v", ref, c, err)
					}
				}
			})
		}
	}
}

// A client notes what it is notified of.
type notified struct {
	*mcp.ClientSession
	lists, resources atomic.Int32
	updates          chan string
}

func (w *world) notified(t *testing.T, token, path, version string) *notified {
	t.Helper()
	n := &notified{updates: make(chan string, 100)}
	n.ClientSession = w.client(t, token, path, &mcp.ClientOptions{
		PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { n.lists.Add(1) },
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { n.resources.Add(1) },
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			n.updates <- r.Params.URI
		}}, version)
	return n
}

// updated waits for an update, while it makes some.
func (n *notified) updated(t *testing.T, want string, update func()) {
	t.Helper()
	fleettest.Eventually(t, "an update of "+want, func() bool {
		update()
		select {
		case got := <-n.updates:
			return got == want
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
}

// Sessions share one subscription to the plug-in, which ends with the last of them and survives a
// restart of the plug-in.
func TestSubscriptionsToPrograms(t *testing.T) {
	w, p := worldWithPrograms(t)
	var subscribed, again atomic.Int32
	server := quotesServer(&subscribed)
	p.run(t, w, quotes, server)
	token := w.token(t, operator.TokenRequest{Role: fleet.RoleViewer})
	shown := "plugin://quotes/" + today
	a := w.notified(t, token, "/mcp", "2025-11-25")
	b := w.notified(t, token, "/mcp/plugins/quotes", "2025-11-25")
	c := w.notified(t, token, "/mcp", "2026-07-28")
	for _, s := range []struct {
		*notified
		uri string
	}{{a, shown}, {b, today}, {c, shown}} {
		if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: s.uri}); err != nil {
			t.Fatal(err)
		}
	}
	update := func(s *mcp.Server) func() {
		return func() { _ = s.ResourceUpdated(t.Context(), &mcp.ResourceUpdatedNotificationParams{URI: today}) }
	}
	a.updated(t, shown, update(server))
	b.updated(t, today, update(server))
	c.updated(t, shown, update(server))
	if n := subscribed.Load(); n != 1 {
		t.Errorf("%d subscriptions to the plug-in, want 1", n)
	}
	p.stop(quotes)
	if _, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: shown}); err == nil ||
		!strings.Contains(err.Error(), "mcp_program_offline") {
		t.Errorf("of a plug-in that is away: %v", err)
	}
	server = quotesServer(&again)
	p.run(t, w, quotes, server)
	fleettest.Eventually(t, "the subscription is made again", func() bool { return again.Load() == 1 })
	a.updated(t, shown, update(server))
	b.updated(t, today, update(server))
	c.updated(t, shown, update(server))
	for _, end := range []func() error{
		func() error { return a.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: shown}) }, b.Close, c.Close} {
		if n := again.Load(); n != 1 {
			t.Errorf("%d subscriptions, want 1", n)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	fleettest.Eventually(t, "the subscription ends", func() bool { return again.Load() == 0 })
}

// For a token whose scope excludes a plug-in, and for a model if the plug-in is for people, its
// prompts and resources do not exist.
func TestHiddenPrograms(t *testing.T) {
	w, p := worldWithPrograms(t)
	var subscribed atomic.Int32
	server := quotesServer(&subscribed)
	p.run(t, w, quotes, server)
	p.audience["plugin.people"] = fleet.AudienceUser
	people := mcp.NewServer(&mcp.Implementation{Name: "people", Version: "1"}, nil)
	addPrompt(people, "vote", "Vote.")
	p.run(t, w, "plugin.people", people)
	scoped := w.token(t, operator.TokenRequest{Name: "lab", Scope: "tag:lab"})
	model := w.token(t, operator.TokenRequest{Name: "m", Kind: fleet.KindModel, Tools: []string{"none.*"}})
	all := w.notified(t, w.token(t, operator.TokenRequest{Name: "all"}), "/mcp", "2025-11-25")

	shown := "plugin://quotes/" + today
	hidden := w.notified(t, scoped, "/mcp", "2025-11-25")
	if names := promptNames(t, hidden.ClientSession); len(names) != 3 {
		t.Errorf("prompts %q", names)
	}
	if uris := resourceURIs(t, hidden.ClientSession); slices.Contains(uris, shown) {
		t.Errorf("resources %q", uris)
	}
	if uris := templates(t, hidden.ClientSession); strings.Contains(strings.Join(uris, " "), "plugin:") {
		t.Errorf("templates %q", uris)
	}
	_, gotErr := hidden.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "quotes/cite"})
	_, readErr := hidden.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: shown})
	_, completeErr := hidden.Complete(t.Context(), &mcp.CompleteParams{Argument: mcp.CompleteParamsArgument{Name: "n"},
		Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "quotes/cite"}})
	subscribeErr := hidden.Subscribe(t.Context(), &mcp.SubscribeParams{URI: shown})
	for what, err := range map[string]error{"get": gotErr, "read": readErr, "complete": completeErr, "subscribe": subscribeErr} {
		if err == nil {
			t.Errorf("%s succeeds", what)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/mcp/plugins/quotes", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := bearer{scoped}.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("/mcp/plugins/quotes: %s", resp.Status)
	}

	// Without any tool, a model reads resources as it reads those of boards.
	m := w.client(t, model, "/mcp", nil, "2025-11-25")
	if names := promptNames(t, m); !slices.Contains(names, "quotes/cite") || slices.Contains(names, "people/vote") {
		t.Errorf("a model has the prompts %q", names)
	}
	if _, err := m.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "people/vote"}); err == nil {
		t.Error("a model gets a prompt for people")
	}
	if names := promptNames(t, w.client(t, model, "/mcp/plugins/people", nil, "2025-11-25")); len(names) > 0 {
		t.Errorf("a model has the prompts %q of a plug-in for people", names)
	}
	if names := promptNames(t, all.ClientSession); !slices.Contains(names, "people/vote") {
		t.Errorf("a program has the prompts %q", names)
	}

	before := all.lists.Load()
	addPrompt(server, "later", "Later.")
	fleettest.Eventually(t, "the session is notified", func() bool { return all.lists.Load() > before && all.resources.Load() > 0 })
	fleettest.Eventually(t, "the new prompt is listed", func() bool {
		return slices.Contains(promptNames(t, all.ClientSession), "quotes/later")
	})
	_ = hidden.Ping(t.Context(), nil) // earlier notifications have arrived
	if n := hidden.lists.Load() + hidden.resources.Load(); n > 0 || len(hidden.updates) > 0 || subscribed.Load() > 0 {
		t.Errorf("a session without the plug-in is notified %d times, %d updates, %d subscriptions", n, len(hidden.updates),
			subscribed.Load())
	}
}

// A plug-in that does not answer delays the lists of others by two seconds at most, and one with
// very many prompts does not fill them.
func TestHostilePrograms(t *testing.T) {
	w, p := worldWithPrograms(t)
	var subscribed atomic.Int32
	p.run(t, w, quotes, quotesServer(&subscribed))
	hangs := mcp.NewServer(&mcp.Implementation{Name: "hangs", Version: "1"}, nil)
	addPrompt(hangs, "never", "")
	release := make(chan struct{})
	hangs.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if method == "prompts/list" {
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return next(ctx, method, r)
		}
	})
	p.run(t, w, "plugin.hangs", hangs)
	many := mcp.NewServer(&mcp.Implementation{Name: "many", Version: "1"}, nil)
	for i := range 10000 {
		addPrompt(many, fmt.Sprintf("prompt%05d", i), "many")
	}
	addPrompt(many, "sentence\u202e", "")
	addPrompt(many, "zlong", strings.Repeat("z", 5<<20))
	p.run(t, w, "plugin.many", many)
	s := w.notified(t, w.token(t, operator.TokenRequest{}), "/mcp", "2025-11-25")
	began := time.Now()
	names := promptNames(t, s.ClientSession)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the list takes %v", took)
	}
	if !slices.Contains(names, "quotes/cite") || slices.Contains(names, "hangs/never") || len(names) != 3+2+200 {
		t.Errorf("%d prompts: %q", len(names), names[:10])
	}
	began = time.Now()
	promptNames(t, s.ClientSession)
	if took := time.Since(began); took > time.Second {
		t.Errorf("the second list takes %v", took)
	}
	if g, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "many/prompt09999"}); err != nil {
		t.Errorf("a prompt that is not listed: %v, %v", g, err)
	}
	if _, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "many/zlong"}); err == nil ||
		!strings.Contains(err.Error(), "mcp_program_long") {
		t.Errorf("a prompt of 5 MiB: %v", err)
	}
	before := s.lists.Load()
	close(release)
	fleettest.Eventually(t, "the session is notified of the late list", func() bool { return s.lists.Load() > before })
	if names := promptNames(t, s.ClientSession); !slices.Contains(names, "hangs/never") {
		t.Errorf("prompts %q", names)
	}
}

// Progress of a plug-in goes to the client that sent a token with its call.
func TestProgressOfPrograms(t *testing.T) {
	w, p := worldWithPrograms(t)
	var subscribed atomic.Int32
	p.run(t, w, quotes, quotesServer(&subscribed))
	w.listing(t, quotes, "bb", []fleet.Tool{{Name: "get_quote", InputSchema: json.RawMessage(`{"type":"object"}`)}})
	w.link.Sending = func(inv fleet.Invocation) {
		for i := range 3 {
			if inv.OnProgress != nil {
				inv.OnProgress(fleet.Progress{Done: float64(i + 1), Total: 3, Message: inv.Tool})
			}
		}
	}
	w.connect(quotes)
	token := w.token(t, operator.TokenRequest{})
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		for path, tool := range map[string]string{"/mcp": "call_device", "/mcp/plugins/quotes": "get_quote"} {
			var got []float64
			var mu sync.Mutex
			s := w.client(t, token, path, &mcp.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, r.Params.Progress)
				}}, version)
			params := &mcp.CallToolParams{Name: tool, Arguments: map[string]any{}}
			if path == "/mcp" {
				params.Arguments = map[string]any{"device": quotes, "tool": "get_quote"}
			}
			params.SetProgressToken("p1")
			r, err := s.CallTool(t.Context(), params)
			if err != nil || r.IsError {
				t.Fatalf("%s %s: %+v, %v", version, path, r, err)
			}
			fleettest.Eventually(t, version+" "+path+": progress", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return slices.Equal(got, []float64{1, 2, 3})
			})
		}
	}
}

// Log messages of a plug-in go to sessions that set a level and see the plug-in.
func TestLogMessagesOfPrograms(t *testing.T) {
	w, p := worldWithPrograms(t)
	var subscribed atomic.Int32
	p.run(t, w, quotes, quotesServer(&subscribed))
	_, lines := w.logged(t, w.token(t, operator.TokenRequest{Name: "all"}), "2025-11-25", "info")
	_, hidden := w.logged(t, w.token(t, operator.TokenRequest{Name: "lab", Scope: "tag:lab"}), "2025-11-25", "debug")
	say := func(level mcp.LoggingLevel, text string) {
		data, _ := json.Marshal(text)
		p.receive(gateway.ProgramChange{Device: quotes, Log: &gateway.ProgramLog{Level: level, Data: data}})
	}
	for range 1000 {
		say("debug", "flood")
	}
	time.Sleep(1500 * time.Millisecond) // the limit is per second
	say("warning", "out of quotes\u202e")
	wantLine(t, lines, "warning ", `"event":"program_log"`, `"device":"plugin.quotes"`, `out of quotes`)
	if len(hidden) > 0 {
		t.Errorf("a session that does not see the plug-in gets %s", <-hidden)
	}
}
