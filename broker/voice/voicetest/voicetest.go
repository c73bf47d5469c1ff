// Package voicetest is a voice server for tests. It is written from the description of the
// behaviour of real servers (voice-upstream.md) and not from fleetd's relay, with which it shares
// no code.
package voicetest

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Options configures a [Server]. The zero value answers every hello and sends nothing else.
type Options struct {
	// Secret makes the server refuse clients without a valid token.
	Secret string
	// Token makes the server refuse clients with any other token.
	Token string
	// Echo sends each frame of audio back, with its time stamp, in a tts message
	// pair before the first and after a listen stop.
	Echo bool
	// MCP makes the server initialize and list the tools, as it does for a device
	// with features.mcp, after ListDelay.
	MCP       bool
	ListDelay time.Duration
	// Client is the name of the server's MCP client. Default: XiaozhiClient.
	Client string
	// Vision is the server's address for pictures, with the token "t".
	Vision string
	// HelloAfter delays the answer to hello, until Close at most. If HelloWhen is not nil, the
	// answer waits until HelloWhen is closed.
	HelloAfter time.Duration
	HelloWhen  <-chan struct{}
	// Answer replaces the answer to hello; "" sends none at all, with NoHello.
	Answer  string
	NoHello bool
	// Broken handles requests instead of an upgrade, with HTML for example.
	Broken http.HandlerFunc
}

// A Server is a voice server on a loopback port.
type Server struct {
	o       Options
	http    *httptest.Server
	closing chan struct{}

	mu       sync.Mutex
	sessions []*Session
	seq      int
	refused  int
}

// Start runs a server until Close.
func Start(o Options) *Server {
	s := &Server{o: o, closing: make(chan struct{})}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	return s
}

// URL returns the address that accepts conversations. With framed, audio has the gateway's
// header.
func (s *Server) URL(framed bool) string {
	u := "ws" + strings.TrimPrefix(s.http.URL, "http") + "/xiaozhi/v1/"
	if framed {
		u += "?from=mqtt_gateway"
	}
	return u
}

// Close ends all conversations and the server.
func (s *Server) Close() {
	s.mu.Lock()
	select {
	case <-s.closing:
	default:
		close(s.closing)
	}
	s.mu.Unlock()
	for _, c := range s.Sessions() {
		c.Close()
	}
	s.http.Close()
}

// Sessions returns the conversations so far, in order.
func (s *Server) Sessions() []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Session(nil), s.sessions...)
}

// Forget drops the conversations so far and what they stored.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = nil
}

// Refused returns how many tokens were refused.
func (s *Server) Refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// A Frame is one binary message: a frame of Opus.
type Frame struct {
	Data      string
	Timestamp uint32
	Sequence  uint32
}

// An RPC is one MCP message in either direction.
type RPC struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// Heard returns the part of an answer to tools/call that the model of xiaozhi-esp32-server
// receives. It follows call_mcp_tool and handle_mcp_message of mcp_handler.py line for line.
func (a RPC) Heard() string {
	if a.Error != nil {
		return "MCP错误: " + a.Error.Message
	}
	var r struct {
		IsError bool `json:"isError"`
		Error   *string
		Content []struct{ Text *string }
	}
	if err := json.Unmarshal(a.Result, &r); err != nil {
		return err.Error()
	}
	switch {
	case r.IsError && r.Error == nil:
		return "工具调用错误: 工具调用返回错误，但未提供具体错误信息"
	case r.IsError:
		return "工具调用错误: " + *r.Error
	case len(r.Content) > 0 && r.Content[0].Text != nil:
		return *r.Content[0].Text
	}
	return string(a.Result)
}

// A Session is one conversation as the server sees it.
type Session struct {
	Header http.Header // of the upgrade
	Query  string
	ID     string // assigned by the server

	server *Server
	ws     *websocket.Conn
	framed bool

	writing sync.Mutex
	nextID  int
	sent    uint32

	mu       sync.Mutex
	hello    map[string]any
	texts    []string // all except hello and mcp
	frames   []Frame
	answers  map[int][]RPC
	tools    []string
	listed   bool
	speaking bool
	closed   bool
	faults   []string
}

var upgrader = websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if s.o.Broken != nil {
		s.o.Broken(w, r)
		return
	}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.seq++
	c := &Session{Header: r.Header, Query: r.URL.RawQuery, ID: "up-" + strconv.Itoa(s.seq), server: s, ws: ws,
		framed: r.URL.RawQuery == "from=mqtt_gateway", answers: make(map[int][]RPC)}
	s.sessions = append(s.sessions, c)
	s.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		ws.Close()
	}()
	if s.o.Secret != "" && !goodToken(s.o.Secret, r.Header) ||
		s.o.Token != "" && r.Header.Get("Authorization") != "Bearer "+s.o.Token {
		s.mu.Lock()
		s.refused++
		s.mu.Unlock()
		_ = c.text("认证失败")
		c.Close()
		return
	}
	for {
		kind, data, err := ws.ReadMessage()
		if err != nil {
			return
		}
		if kind == websocket.BinaryMessage {
			c.audio(data)
		} else {
			c.message(data)
		}
	}
}

// goodToken checks base64url(HMAC(secret, client|device|time)).time.
func goodToken(secret string, h http.Header) bool {
	token, ok := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	sum, at, cut := strings.Cut(token, ".")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if !ok || !cut || err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 30*24*time.Hour {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(h.Get("Client-Id") + "|" + h.Get("Device-Id") + "|" + at))
	return hmac.Equal([]byte(sum), []byte(base64.RawURLEncoding.EncodeToString(mac.Sum(nil))))
}

func (c *Session) message(data []byte) {
	var m struct {
		Type     string `json:"type"`
		State    string `json:"state"`
		Features struct {
			MCP bool `json:"mcp"`
		} `json:"features"`
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		c.fault("text that is not JSON: " + string(data))
		return
	}
	switch m.Type {
	case "hello":
		c.mu.Lock()
		_ = json.Unmarshal(data, &c.hello)
		c.mu.Unlock()
		if m.Features.MCP && c.server.o.MCP {
			c.initialize()
		}
		select {
		case <-time.After(c.server.o.HelloAfter):
		case <-c.server.closing:
		}
		if when := c.server.o.HelloWhen; when != nil {
			select {
			case <-when:
			case <-c.server.closing:
			}
		}
		answer := `{"type":"hello","version":1,"transport":"websocket","session_id":"` + c.ID +
			`","audio_params":{"format":"opus","sample_rate":24000,"channels":1,"frame_duration":60}}`
		if c.server.o.Answer != "" {
			answer = c.server.o.Answer
		}
		if !c.server.o.NoHello {
			_ = c.text(answer)
		}
	case "mcp":
		c.rpc(m.Payload)
	default:
		c.mu.Lock()
		c.texts = append(c.texts, string(data))
		ends := m.Type == "listen" && m.State == "stop" && c.speaking
		if ends {
			c.speaking = false
		}
		c.mu.Unlock()
		if ends {
			_ = c.text(`{"type":"tts","state":"stop","session_id":"` + c.ID + `"}`)
		}
	}
}

func (c *Session) initialize() {
	_ = c.text(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` +
		`"protocolVersion":"2024-11-05","capabilities":{"roots":{"listChanged":true},"sampling":{},` +
		`"vision":{"url":"` + cmp.Or(c.server.o.Vision, "http://192.0.2.7/mcp/vision/explain") + `","token":"t"}},` +
		`"clientInfo":{"name":"` + cmp.Or(c.server.o.Client, "XiaozhiClient") + `","version":"1.0.0"}}}}`)
}

// rpc handles an answer from the device or from fleetd in its place. Ids 1 and 2 are used twice:
// for initialize and the list, and by the first calls.
func (c *Session) rpc(payload []byte) {
	var a RPC
	if err := json.Unmarshal(payload, &a); err != nil {
		c.fault("mcp that cannot be read: " + string(payload))
		return
	}
	c.mu.Lock()
	listed := c.listed
	if listed || a.ID > 2 {
		c.answers[a.ID] = append(c.answers[a.ID], a)
	}
	c.mu.Unlock()
	switch {
	case listed:
	case a.ID == 1:
		time.AfterFunc(c.server.o.ListDelay, func() {
			_ = c.text(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":2,"method":"tools/list"}}`)
		})
	case a.ID == 2:
		var page struct {
			Tools []struct {
				Name        string
				Description *string
				InputSchema *struct{ Type string }
			}
			NextCursor string
		}
		if err := json.Unmarshal(a.Result, &page); err != nil {
			c.fault("a page of tools that cannot be read: " + string(payload))
			return
		}
		c.mu.Lock()
		for _, t := range page.Tools {
			if t.Description == nil || t.InputSchema == nil || t.InputSchema.Type != "object" {
				c.faults = append(c.faults, "tool "+t.Name+" is not whole")
			}
			c.tools = append(c.tools, t.Name)
		}
		c.listed = page.NextCursor == ""
		c.mu.Unlock()
		if page.NextCursor != "" {
			_ = c.text(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"cursor":"` +
				page.NextCursor + `"}}}`)
		}
	}
}

// ErrNoAnswer means that a tools/call was not answered in time.
var ErrNoAnswer = errors.New("no answer to tools/call")

// Call calls a tool as the server's model does, and waits for the answer.
func (c *Session) Call(tool, arguments string, wait time.Duration) (RPC, error) {
	c.mu.Lock()
	c.nextID++
	id := c.nextID
	seen := len(c.answers[id])
	c.mu.Unlock()
	if err := c.text(`{"type":"mcp","payload":{"jsonrpc":"2.0","id":` + strconv.Itoa(id) +
		`,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `}}}`); err != nil {
		return RPC{}, err
	}
	for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		c.mu.Lock()
		all := c.answers[id]
		c.mu.Unlock()
		if len(all) > seen {
			return all[seen], nil
		}
	}
	return RPC{}, ErrNoAnswer
}

func (c *Session) audio(data []byte) {
	f := Frame{Data: string(data)}
	if c.framed {
		if len(data) < 16 {
			c.fault("audio without the gateway's header")
			return
		}
		b := data[16:]
		if data[0] != 1 || data[1] != 0 || int(binary.BigEndian.Uint16(data[2:])) != len(b) ||
			int(binary.BigEndian.Uint32(data[12:])) != len(b) {
			c.fault("a gateway header that does not fit its frame")
		}
		f = Frame{Data: string(b), Timestamp: binary.BigEndian.Uint32(data[8:]), Sequence: binary.BigEndian.Uint32(data[4:])}
	}
	c.mu.Lock()
	c.frames = append(c.frames, f)
	first := c.server.o.Echo && !c.speaking
	c.speaking = c.speaking || first
	c.mu.Unlock()
	if first {
		_ = c.text(`{"type":"tts","state":"start","session_id":"` + c.ID + `"}`)
	}
	if c.server.o.Echo {
		_ = c.Speak([]byte(f.Data), f.Timestamp)
	}
}

// Speak sends a frame of audio.
func (c *Session) Speak(frame []byte, timestamp uint32) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.framed {
		return c.ws.WriteMessage(websocket.BinaryMessage, frame)
	}
	c.sent++
	b := binary.BigEndian.AppendUint16([]byte{1, 0}, uint16(len(frame)))
	b = binary.BigEndian.AppendUint32(b, c.sent)
	b = binary.BigEndian.AppendUint32(b, timestamp)
	b = binary.BigEndian.AppendUint32(b, uint32(len(frame)))
	return c.ws.WriteMessage(websocket.BinaryMessage, append(b, frame...))
}

// Send sends a text frame unchanged.
func (c *Session) Send(text string) error { return c.text(text) }

// SendBinary sends a binary message unchanged.
func (c *Session) SendBinary(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.ws.WriteMessage(websocket.BinaryMessage, b)
}

func (c *Session) text(text string) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.ws.WriteMessage(websocket.TextMessage, []byte(text))
}

// Close ends the conversation as the server does, by closing the socket.
func (c *Session) Close() {
	_ = c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Now().Add(time.Second))
	_ = c.ws.Close()
}

// Crash ends the connection without a close frame.
func (c *Session) Crash() { _ = c.ws.NetConn().Close() }

func (c *Session) fault(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, text)
}

// Closed reports whether the client has gone.
func (c *Session) Closed() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.closed }

// Listed reports whether the list of tools is complete.
func (c *Session) Listed() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.listed }

// Hello returns the client's hello; nil before it.
func (c *Session) Hello() map[string]any { c.mu.Lock(); defer c.mu.Unlock(); return c.hello }

// Tools returns the names of the listed tools.
func (c *Session) Tools() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.tools...)
}

// Texts returns the received messages except hello and mcp.
func (c *Session) Texts() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.texts...)
}

// Frames returns the received frames of audio.
func (c *Session) Frames() []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Frame(nil), c.frames...)
}

// Faults returns the client's actions that a server does not understand.
func (c *Session) Faults() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.faults...)
}

// HTML responds as a web server without WebSocket support.
func HTML(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	_, _ = w.Write(bytes.Repeat([]byte("<html>not here</html>\n"), 1000))
}
