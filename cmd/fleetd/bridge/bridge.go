// Package bridge is the command `fleetd mcp`: it carries MCP messages between the standard
// input and output of a client that starts programs and a server's MCP address. After a
// lost connection it connects again, but it does not repeat requests.
//
// One goroutine reads standard input and one the server's stream; each request has one
// more.
package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/cmd/fleetd/terminal"
)

// Command lets an MCP client that starts programs, and communicates over their standard
// input and output, reach a server's MCP address.
type Command struct {
	URL   string `help:"Address of the server." default:"http://127.0.0.1:8080" env:"FLEETD_URL" placeholder:"URL"`
	Token string `help:"API token; create one with: fleetd token create NAME --kind model --tools '*'." env:"FLEETD_TOKEN" placeholder:"flt_..."`

	TokenFile string `name:"token-file" help:"File that contains the token." env:"FLEETD_TOKEN_FILE" type:"path" placeholder:"FILE"`
	Device    string `help:"Offer the tools of this device instead of the fleet's." placeholder:"ID" xor:"scope"`
	Group     string `help:"Offer the tools that all devices in a saved filter share." placeholder:"NAME" xor:"scope"`

	dialTimeout time.Duration // set by tests. Default: dialTimeout
}

// Run carries messages until standard input ends and all requests have answers.
func (c *Command) Run(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)) // standard output carries the protocol
	return c.bridge(ctx, &mcp.StdioTransport{}, log)
}

func (c *Command) bridge(ctx context.Context, local mcp.Transport, log *slog.Logger) error {
	if err := terminal.ReadSecrets(terminal.WarnOpenSecret, terminal.Secret{Flag: "--token", Value: &c.Token,
		File: c.TokenFile}); err != nil {
		return terminal.UsageError{Err: err}
	}
	if c.Token == "" {
		return terminal.UsageError{Err: errors.New(
			"no API token: set FLEETD_TOKEN, or make one on the server with: fleetd token create NAME --kind model --tools '*'")}
	}
	address, err := url.Parse(c.URL)
	if err != nil || (address.Scheme != "http" && address.Scheme != "https") || address.Host == "" {
		return terminal.UsageError{Err: fmt.Errorf("--url %q is not an address; write http://host:port or https://host", c.URL)}
	}
	switch address = address.JoinPath("mcp"); {
	case c.Device != "":
		address = address.JoinPath("devices", url.PathEscape(c.Device))
	case c.Group != "":
		address = address.JoinPath("groups", url.PathEscape(c.Group))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &mcpBridge{server: c.URL, endpoint: address.String(), log: log, ctx: ctx,
		waiting: make(map[jsonrpc.ID]*awaited), dialTimeout: cmp.Or(c.dialTimeout, dialTimeout)}
	b.client = &http.Client{Transport: &mcpDoor{b, c.Token},
		// No redirect is followed: the token must reach only this server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if b.local, err = local.Connect(ctx); err != nil {
		return err
	}
	return b.run()
}

// dialTimeout is how long the bridge tries to reach a server that does not listen: it may
// be restarting.
const dialTimeout = 10 * time.Second

// Pauses between attempts to reopen the stream of notifications.
const (
	streamPause    = time.Second
	maxStreamPause = 30 * time.Second
)

// Codes of the bridge's own errors, in the range that JSON-RPC leaves to implementations.
const (
	codeUnauthorized = -32001
	codeUnreachable  = -32002
	codeInterrupted  = -32003
)

// An mcpBridge carries messages between an MCP client on standard input and output, and a
// server behind HTTP. It does not change the messages.
//
// One goroutine reads the client's messages. Each request has one that waits until the
// server accepts it. One goroutine reads from each link, and one reads the stream of
// notifications. The lock guards the fields below it.
type mcpBridge struct {
	server, endpoint string
	client           *http.Client
	local            mcp.Connection
	log              *slog.Logger
	ctx              context.Context
	dialTimeout      time.Duration
	version          atomic.Pointer[string] // protocol version: as negotiated, or as in the latest request

	mu         sync.Mutex
	link       *mcpLink // nil: the next message opens one
	initialize *jsonrpc.Request
	waiting    map[jsonrpc.ID]*awaited // requests without an answer
	answering  int                     // answers that are being written
	idle       chan struct{}           // closed when input has ended and all requests have answers; nil before
}

// An awaited request has no answer yet.
type awaited struct {
	method string
	cancel context.CancelFunc // closes the stream that carries the answer
	link   *mcpLink           // the link that accepted the request; nil before
}

// An mcpLink is one connection to the server, with a session if the server has sessions.
type mcpLink struct {
	mcp.Connection
	cancel context.CancelFunc // ends the goroutines that read from it
	ctx    context.Context
	quiet  atomic.Pointer[jsonrpc.ID] // id of the bridge's own request, whose answer is not for the client
	opened chan error                 // receives that answer
	lists  bool                       // the server announces that its list of tools changed
	broken bool                       // under the bridge's lock
}

func (b *mcpBridge) run() error {
	defer b.local.Close()
	defer b.end()
	var requests sync.WaitGroup
	for {
		msg, err := b.local.Read(b.ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		request, _ := msg.(*jsonrpc.Request)
		switch {
		case request == nil || !request.IsCall():
			b.notify(msg)
		case request.Method == "initialize": // later messages need its session
			b.mu.Lock()
			b.initialize = request
			b.mu.Unlock()
			b.request(request)
		default:
			requests.Go(func() { b.request(request) })
		}
	}
	b.endListening()
	requests.Wait()
	select {
	case <-b.answered():
	case <-b.ctx.Done():
	}
	return nil
}

// methodListen is the request for notifications in newer versions. It has no answer until
// the client or the server ends it.
const methodListen = "subscriptions/listen"

func (b *mcpBridge) endListening() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, w := range b.waiting {
		if w.method == methodListen {
			w.cancel()
			delete(b.waiting, id)
		}
	}
}

// answered returns a channel that closes when no request waits for its answer and the last
// answer is written.
func (b *mcpBridge) answered() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle = make(chan struct{})
	b.closeIdle()
	return b.idle
}

// closeIdle closes the channel idle if there is nothing left to answer. The caller holds
// the lock.
func (b *mcpBridge) closeIdle() {
	if b.idle != nil && len(b.waiting) == 0 && b.answering == 0 {
		close(b.idle)
	}
}

// request sends a request. If the server will not answer it, request does.
func (b *mcpBridge) request(r *jsonrpc.Request) {
	ctx, cancel := context.WithCancel(b.ctx)
	b.mu.Lock()
	b.waiting[r.ID] = &awaited{method: r.Method, cancel: cancel}
	b.mu.Unlock()
	if err := b.send(ctx, r); err != nil {
		b.answer(&jsonrpc.Response{ID: r.ID, Error: b.explain(err)})
	}
}

// accepted records the link that will carry the answer to a request.
func (b *mcpBridge) accepted(msg jsonrpc.Message, l *mcpLink) {
	r, ok := msg.(*jsonrpc.Request)
	if !ok || !r.IsCall() {
		return
	}
	b.mu.Lock()
	broken := l.broken
	if w := b.waiting[r.ID]; w != nil {
		w.link = l
	}
	b.mu.Unlock()
	if broken {
		b.answer(&jsonrpc.Response{ID: r.ID, Error: b.explain(mcp.ErrConnectionClosed)})
	}
}

// notify sends a message that has no answer: a notification, or an answer of the client.
func (b *mcpBridge) notify(msg jsonrpc.Message) {
	if err := b.send(b.ctx, msg); err != nil && b.ctx.Err() == nil {
		b.log.Warn("message not delivered", "err", b.explain(err).Message)
	}
	r, ok := msg.(*jsonrpc.Request)
	if !ok || r.Method != "notifications/cancelled" {
		return
	}
	// The client no longer waits for this answer, and the server may not send one.
	var params struct {
		RequestID any `json:"requestId"`
	}
	if json.Unmarshal(r.Params, &params) != nil {
		return
	}
	if id, err := jsonrpc.MakeID(params.RequestID); err == nil {
		if b.take(id) {
			b.finish()
		}
	}
}

// answer writes a response to the client, once.
func (b *mcpBridge) answer(r *jsonrpc.Response) {
	if b.take(r.ID) {
		b.say(r)
		b.finish()
	}
}

func (b *mcpBridge) say(msg jsonrpc.Message) {
	if err := b.local.Write(b.ctx, msg); err != nil && b.ctx.Err() == nil {
		b.log.Warn("cannot write to the client", "err", err)
	}
}

// take removes a request, and reports whether it was waiting for its answer. The caller
// must call finish once the answer is written: the bridge may end after that.
func (b *mcpBridge) take(id jsonrpc.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, ok := b.waiting[id]
	if !ok {
		return false
	}
	delete(b.waiting, id)
	b.answering++
	time.AfterFunc(time.Second, w.cancel) // the stream that carried the answer normally ends earlier
	return true
}

func (b *mcpBridge) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answering--
	b.closeIdle()
}

// send sends a message. It repeats a message that certainly did not reach the server: a
// server that restarts listens again soon, and one that lost the session creates another.
func (b *mcpBridge) send(ctx context.Context, msg jsonrpc.Message) error {
	if r, ok := msg.(*jsonrpc.Request); ok {
		b.noteVersion(r)
	}
	reopened := false
	for begin, pause := time.Now(), 100*time.Millisecond; ; pause = min(2*pause, time.Second) {
		result := new(delivery)
		l, err := b.open(ctx, msg, result)
		if err == nil {
			err = l.deliver(ctx, msg, result)
		}
		switch {
		case err == nil:
			b.accepted(msg, l)
			return nil
		case errors.Is(err, mcp.ErrSessionMissing) && !reopened:
			reopened = true
			b.drop(l)
		case result.undialed && time.Since(begin) < b.dialTimeout:
			b.drop(l)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			if !result.transient() {
				b.drop(l)
			}
			return undelivered{err, *result}
		}
	}
}

// open returns the link, and creates one if needed. It begins a new link in the way in
// which the client began the first.
func (b *mcpBridge) open(ctx context.Context, msg jsonrpc.Message, result *delivery) (*mcpLink, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.link != nil {
		return b.link, nil
	}
	conn, err := (&mcp.StreamableClientTransport{Endpoint: b.endpoint, HTTPClient: b.client,
		DisableStandaloneSSE: true}).Connect(b.ctx) // see follow
	if err != nil {
		return nil, err
	}
	l := &mcpLink{Connection: conn, opened: make(chan error, 1)}
	l.ctx, l.cancel = context.WithCancel(b.ctx)
	go b.receive(l)
	if b.initialize != nil && msg != jsonrpc.Message(b.initialize) {
		if err := b.begin(ctx, l, result); err != nil {
			l.close()
			return nil, err
		}
	}
	b.link = l
	return l, nil
}

// begin opens a session in place of one that the server lost.
func (b *mcpBridge) begin(ctx context.Context, l *mcpLink, result *delivery) error {
	id, err := jsonrpc.MakeID("fleetd-bridge-reopen")
	if err != nil {
		return err
	}
	l.quiet.Store(&id)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	again := &jsonrpc.Request{ID: id, Method: b.initialize.Method, Params: b.initialize.Params}
	if err := l.deliver(ctx, again, result); err != nil {
		return err
	}
	select {
	case err := <-l.opened:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	b.log.Info("connected again", "server", b.endpoint)
	return l.deliver(ctx, &jsonrpc.Request{Method: "notifications/initialized"}, result)
}

// deliver sends a message and records the result.
func (l *mcpLink) deliver(ctx context.Context, msg jsonrpc.Message, result *delivery) error {
	*result = delivery{}
	if r, ok := msg.(*jsonrpc.Request); ok {
		result.method = r.Method
	}
	return l.Write(context.WithValue(ctx, deliveryKey{}, result), msg)
}

// drop ends a link, if it is still the one in use.
func (b *mcpBridge) drop(l *mcpLink) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l != nil && b.link == l {
		l.close()
		b.link = nil
	}
}

// end closes the session, if there is one.
func (b *mcpBridge) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.link != nil {
		b.link.close()
		b.link = nil
	}
}

func (l *mcpLink) close() {
	_ = l.Close() // ends the session on the server
	l.cancel()
}

// receive passes the messages of a link to the client.
func (b *mcpBridge) receive(l *mcpLink) {
	for {
		msg, err := l.Read(l.ctx)
		if err != nil {
			select {
			case l.opened <- err:
			default:
			}
			if l.ctx.Err() == nil && !errors.Is(err, io.EOF) {
				b.interrupted(l, err)
			}
			return
		}
		r, ok := msg.(*jsonrpc.Response)
		if !ok {
			b.say(msg)
			continue
		}
		if quiet := l.quiet.Load(); quiet != nil && r.ID == *quiet {
			l.opened <- r.Error
			b.negotiated(l, r)
			continue
		}
		b.mu.Lock()
		first := b.initialize != nil && r.ID == b.initialize.ID
		b.mu.Unlock()
		if first {
			b.negotiated(l, r)
		}
		b.answer(r)
	}
}

// interrupted answers the requests that the link will no longer answer. The server may
// have carried them out.
func (b *mcpBridge) interrupted(l *mcpLink, err error) {
	b.drop(l)
	b.log.Warn("the connection was lost", "server", b.endpoint, "err", err)
	var ids []jsonrpc.ID
	b.mu.Lock()
	l.broken = true
	for id, w := range b.waiting {
		if w.link == l {
			ids = append(ids, id)
		}
	}
	b.mu.Unlock()
	for _, id := range ids {
		b.answer(&jsonrpc.Response{ID: id, Error: b.explain(mcp.ErrConnectionClosed)})
	}
}

// negotiated reads the version that client and server agreed on. If that version has a
// stream for the server's notifications, negotiated follows it.
func (b *mcpBridge) negotiated(l *mcpLink, r *jsonrpc.Response) {
	var result mcp.InitializeResult
	if r.Error != nil || json.Unmarshal(r.Result, &result) != nil {
		return
	}
	b.version.Store(&result.ProtocolVersion)
	l.lists = result.Capabilities != nil && result.Capabilities.Tools != nil && result.Capabilities.Tools.ListChanged
	if l.SessionID() != "" {
		go b.follow(l)
	}
}

// noteVersion stores the version that newer clients write into each request, for messages
// without one.
func (b *mcpBridge) noteVersion(r *jsonrpc.Request) {
	var params struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	var version string
	if json.Unmarshal(r.Params, &params) == nil &&
		json.Unmarshal(params.Meta[mcp.MetaKeyProtocolVersion], &version) == nil {
		b.version.Store(&version)
	}
}

// explain returns the error for a request that the server does not answer.
func (b *mcpBridge) explain(err error) *jsonrpc.Error {
	var refused *jsonrpc.Error
	var u undelivered
	errors.As(err, &u)
	if u.status != 0 && !u.transient() && errors.As(err, &refused) {
		b.log.Error("refused", "status", u.status, "err", refused.Message)
		return refused // in the server's own text
	}
	e := &jsonrpc.Error{Code: codeUnreachable}
	switch {
	case u.status == http.StatusUnauthorized:
		e.Code, e.Message = codeUnauthorized, fmt.Sprintf("fleetd at %s refuses the token (401): it is wrong, expired or revoked; set FLEETD_TOKEN to one made with: fleetd token create NAME --kind model --tools '*'", b.server)
	case u.status == http.StatusForbidden:
		e.Code, e.Message = codeUnauthorized, fmt.Sprintf("the token may not use %s (403)", b.endpoint)
	case u.status == http.StatusNotFound:
		e.Message = fmt.Sprintf("%s does not exist (404): check FLEETD_URL, and the name of the device or group", b.endpoint)
	case u.status == http.StatusTooManyRequests:
		e.Message = "too many requests (429): wait a while"
	case u.status >= http.StatusBadRequest:
		e.Message = fmt.Sprintf("fleetd at %s answered with status %d", b.server, u.status)
	case u.undialed:
		e.Message = fmt.Sprintf("cannot reach fleetd at %s: is it running, and is FLEETD_URL right? (%s)", b.server,
			terminal.Printable(u.cause.Error()))
	default:
		e.Code, e.Message = codeInterrupted, fmt.Sprintf("the connection to fleetd at %s broke before the answer came; what was asked may have been done: look with list_calls before asking again", b.server)
	}
	b.log.Error(e.Message)
	return e
}
