package bridge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/cmd/fleetd/terminal"
	"fleetd/fleet/fleettest"
)

// mcpServer is a small MCP server behind HTTP, with a token, and with or
// without sessions.
type mcpServer struct {
	*httptest.Server
	mcp      *mcp.Server
	canceled chan struct{}
	inside   chan struct{} // receives a value for each call of wait
	paths    sync.Map
}

func newMCPServer(t *testing.T, stateless bool) *mcpServer {
	t.Helper()
	s := &mcpServer{canceled: make(chan struct{}, 1), inside: make(chan struct{}, 10)}
	s.mcp = s.tools()
	s.Server = httptest.NewServer(s.handler(stateless))
	t.Cleanup(s.close)
	return s
}

func (s *mcpServer) close() {
	s.CloseClientConnections()
	s.Close()
}

func (s *mcpServer) handler(stateless bool) http.Handler {
	door := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.mcp },
		&mcp.StreamableHTTPOptions{Stateless: stateless, PropagateRequestCancellation: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.paths.Store(r.URL.Path, true)
		if r.Header.Get("Authorization") != "Bearer flt_good" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		door.ServeHTTP(w, r)
	})
}

func (s *mcpServer) tools() *mcp.Server {
	m := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	type in struct {
		Text string `json:"text,omitempty"`
	}
	text := func(text string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	}
	mcp.AddTool(m, &mcp.Tool{Name: "echo"}, func(ctx context.Context, r *mcp.CallToolRequest, a in) (*mcp.CallToolResult,
		any, error) {
		return text(a.Text), nil, nil
	})
	mcp.AddTool(m, &mcp.Tool{Name: "count"}, func(ctx context.Context, r *mcp.CallToolRequest, _ in) (*mcp.CallToolResult,
		any, error) {
		for i := range 3 {
			err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(),
				Progress: float64(i + 1), Total: 3})
			if err != nil {
				return nil, nil, err
			}
		}
		return text("counted"), nil, nil
	})
	mcp.AddTool(m, &mcp.Tool{Name: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, _ in) (*mcp.CallToolResult,
		any, error) {
		answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Sure?"})
		if err != nil {
			return nil, nil, err
		}
		return text(answer.Action), nil, nil
	})
	mcp.AddTool(m, &mcp.Tool{Name: "wait"}, func(ctx context.Context, r *mcp.CallToolRequest, a in) (*mcp.CallToolResult,
		any, error) {
		s.inside <- struct{}{}
		timeout := time.Minute
		if a.Text != "" {
			timeout, _ = time.ParseDuration(a.Text)
		}
		select {
		case <-ctx.Done():
			s.canceled <- struct{}{}
			return nil, nil, ctx.Err()
		case <-time.After(timeout):
			return text("waited"), nil, nil
		}
	})
	return m
}

// A pipe is a running bridge, with the client's ends of its input and output.
type pipe struct {
	in    *io.PipeWriter
	out   *bufio.Reader
	ended chan error
	log   *syncText
}

type syncText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *syncText) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *syncText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func startBridge(t *testing.T, c *Command) (*pipe, mcp.Transport) {
	t.Helper()
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	p := &pipe{in: inWrite, out: bufio.NewReader(outRead), ended: make(chan error, 1), log: &syncText{}}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		p.ended <- c.bridge(ctx, &mcp.IOTransport{Reader: inRead, Writer: outWrite},
			slog.New(slog.NewTextHandler(p.log, nil)))
	}()
	t.Cleanup(func() {
		inWrite.Close()
		outRead.Close()
		stop()
		if t.Failed() {
			t.Log(p.log)
		}
	})
	return p, &mcp.IOTransport{Reader: outRead, Writer: inWrite}
}

func (p *pipe) send(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

type rpcLine struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
}

func (p *pipe) read(t *testing.T) (m rpcLine) {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return m
}

func TestBridgeCarriesASession(t *testing.T) {
	for _, tt := range []struct {
		stateless bool
		version   string
	}{{false, "2025-06-18"}, {false, "2025-11-25"}, {true, "2025-11-25"}, {true, "2026-07-28"}} {
		t.Run(fmt.Sprintf("%s stateless=%v", tt.version, tt.stateless), func(t *testing.T) {
			s := newMCPServer(t, tt.stateless)
			p, transport := startBridge(t, &Command{URL: s.URL + "/", Token: "flt_good", Group: "lab"})
			progress, changed := make(chan float64, 10), make(chan struct{}, 10)
			client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, &mcp.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
					progress <- r.Params.Progress
				},
				ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
				ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "accept"}, nil
				}})
			session, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: tt.version})
			if err != nil {
				t.Fatal(err)
			}
			list, err := session.ListTools(t.Context(), nil)
			if err != nil || len(list.Tools) != 4 {
				t.Fatalf("%+v: %v", list, err)
			}
			if got := say(t, session, "echo", "灯 <&>"); got != "灯 <&>" {
				t.Errorf("echo: %q", got)
			}
			params := &mcp.CallToolParams{Name: "count"}
			params.SetProgressToken("p")
			if _, err := session.CallTool(t.Context(), params); err != nil {
				t.Error(err)
			}
			for i := range 3 {
				if got := <-progress; got != float64(i+1) {
					t.Errorf("progress %v, want %d", got, i+1)
				}
			}
			if !tt.stateless {
				if got := say(t, session, "ask", ""); got != "accept" {
					t.Errorf("the server's request is answered %q", got)
				}
				mcp.AddTool(s.mcp, &mcp.Tool{Name: "new"}, func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult,
					any, error) {
					return nil, nil, nil
				})
				select {
				case <-changed:
				case <-time.After(time.Minute):
					t.Error("the change of the list did not arrive")
				}
			}
			if !tt.stateless || tt.version >= firstWithoutStreams { // other versions cannot identify the call
				ctx, cancel := context.WithCancel(t.Context())
				go func() { <-s.inside; cancel() }()
				if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "wait"}); !errors.Is(err, context.Canceled) {
					t.Errorf("canceled: %v", err)
				}
				select {
				case <-s.canceled:
				case <-time.After(time.Minute):
					t.Error("the server did not learn of the cancellation")
				}
			}
			if _, ok := s.paths.Load("/mcp/groups/lab"); !ok {
				t.Error("the group's address was not asked")
			}
			if err := session.Close(); err != nil {
				t.Error(err)
			}
			if err := <-p.ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func say(t *testing.T, s *mcp.ClientSession, tool, text string) string {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"text": text}})
	if err != nil {
		t.Fatal(err)
	}
	if r.IsError || len(r.Content) != 1 {
		t.Fatalf("%s: %+v", tool, r)
	}
	return r.Content[0].(*mcp.TextContent).Text
}

const helloLine = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`

func TestBridgeKeepsIDsAndAnswersBeforeItEnds(t *testing.T) {
	s := newMCPServer(t, false)
	p, _ := startBridge(t, &Command{URL: s.URL, Token: "flt_good", Device: "a0:85:e3:11:22:33"})
	p.send(t, helloLine)
	if m := p.read(t); string(m.ID) != `"hello"` || m.Error != nil {
		t.Fatalf("%+v", m)
	}
	p.send(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	ids := []string{`7`, `"7"`, `"ü"`, `9007199254740991`}
	for _, id := range ids {
		p.send(t, `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"wait","arguments":{"text":"300ms"}}}`)
	}
	p.in.Close() // before any answer
	got := map[string]bool{}
	for range ids {
		time.Sleep(200 * time.Millisecond) // each answer, also the last, waits for a client that reads late
		m := p.read(t)
		if m.Error != nil || !strings.Contains(string(m.Result), "waited") {
			t.Errorf("%s: %s %+v", m.ID, m.Result, m.Error)
		}
		got[string(m.ID)] = true
	}
	for _, id := range ids {
		if !got[id] {
			t.Errorf("%s has no answer; answered are %v", id, got)
		}
	}
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	if _, ok := s.paths.Load("/mcp/devices/a0:85:e3:11:22:33"); !ok {
		t.Error("the device's address was not asked")
	}
}

func TestBridgeSaysWhatIsWrong(t *testing.T) {
	s := newMCPServer(t, false)
	p, _ := startBridge(t, &Command{URL: s.URL, Token: "flt_bad"})
	p.send(t, helloLine)
	if m := p.read(t); m.Error == nil || m.Error.Code != codeUnauthorized ||
		!strings.Contains(m.Error.Message, "FLEETD_TOKEN") {
		t.Errorf("a bad token: %+v", m.Error)
	}
	if text := p.log.String(); !strings.Contains(text, "FLEETD_TOKEN") {
		t.Errorf("standard error says %s", text)
	}

	closed, err := fleettest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + closed
	b, _ := startImpatient(t, &Command{URL: url, Token: "flt_good"})
	b.send(t, helloLine)
	if m := b.read(t); m.Error == nil || m.Error.Code != codeUnreachable || !strings.Contains(m.Error.Message, url) {
		t.Errorf("no server: %+v", m.Error)
	}

	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	n, _ := startBridge(t, &Command{URL: other.URL, Token: "flt_good", Group: "none"})
	n.send(t, helloLine)
	if m := n.read(t); m.Error == nil || !strings.Contains(m.Error.Message, "groups/none does not exist") {
		t.Errorf("not an MCP server: %+v", m.Error)
	}

	var usage terminal.UsageError
	for _, c := range []*Command{{URL: url}, {URL: "localhost:8080", Token: "flt_good"}} {
		if err := c.bridge(t.Context(), &mcp.IOTransport{}, slog.New(slog.DiscardHandler)); !errors.As(err, &usage) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func startImpatient(t *testing.T, c *Command) (*pipe, mcp.Transport) {
	c.dialTimeout = 300 * time.Millisecond
	return startBridge(t, c)
}

// A server loses its sessions when it restarts.
func TestBridgeConnectsAgain(t *testing.T) {
	s := &mcpServer{canceled: make(chan struct{}, 1), inside: make(chan struct{}, 10)}
	s.mcp = s.tools()
	serve := func(on string) *httptest.Server {
		ln, err := net.Listen("tcp", on)
		if err != nil {
			t.Fatal(err)
		}
		server := &httptest.Server{Listener: ln, Config: &http.Server{Handler: s.handler(false)}}
		server.Start()
		return server
	}
	free, err := fleettest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	server := serve(free)
	p, transport := startBridge(t, &Command{URL: server.URL, Token: "flt_good", dialTimeout: time.Minute})
	changed := make(chan struct{}, 10)
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }})
	session, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: "2025-06-18"})
	if err != nil {
		t.Fatal(err)
	}
	say(t, session, "echo", "before")

	lost := make(chan error, 1)
	go func() {
		_, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "wait"})
		lost <- err
	}()
	<-s.inside
	server.Listener.Close()
	server.CloseClientConnections()
	if err := <-lost; err == nil {
		t.Errorf("a call whose connection broke: %v", err)
	}
	answered := make(chan string, 1)
	go func() { answered <- say(t, session, "echo", "after") }()
	time.Sleep(300 * time.Millisecond)
	fleettest.AwaitForks()
	server = serve(free)
	defer func() { server.CloseClientConnections(); server.Close() }()
	if got := <-answered; got != "after" {
		t.Errorf("answered %q", got)
	}
	list := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Error(what)
		}
	}
	list("the client is not told that the tools may have changed while there was no stream")
	mcp.AddTool(s.mcp, &mcp.Tool{Name: "new"}, func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any,
		error) {
		return nil, nil, nil
	})
	list("the new session's notifications do not arrive")
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
}
