package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// Limits of sessions and streams. If there is no room for a client's session, the client
// is served without one, and gets no pushes.
const (
	maxSessions        = 1000
	maxSessionsByToken = 32
	maxStreams         = 20 // for each token
	// A session that was idle for this long can be ended for another one of its token.
	sessionSpare = time.Minute
)

// sessions holds the open sessions, by the id that clients send. The zero value is ready.
type sessions struct {
	mu      sync.Mutex
	byID    map[string]*slot
	slots   map[*slot]struct{} // includes sessions without an id yet
	byToken map[string]int
	streams map[string]int // open, by token
}

// A slot is the place of one session.
type slot struct {
	all     *sessions
	caller  *caller
	path    string
	session *mcp.ServerSession // nil until the client is initialized
	used    time.Time
	busy    int // requests under way
	posts   int // of these, POSTs: an open stream does not keep a session alive
	posted  time.Time
	gone    bool
	lasts   bool // see [Gateway.Open]: it does not end because it is idle

	// Usual calls in progress, by id, with their cancel functions. The SDK does not see
	// these calls.
	calls   map[string]context.CancelFunc
	usual   sync.WaitGroup
	closing bool // a DELETE is waiting for the calls to end
}

// reserve returns a slot for a session, nil if there is no room.
func (s *sessions) reserve(c *caller, path string) *slot {
	now := time.Now()
	s.mu.Lock()
	if s.byToken[c.token] >= maxSessionsByToken {
		s.evict(c.token, now)
	}
	defer s.mu.Unlock()
	if s.byToken[c.token] >= maxSessionsByToken || len(s.slots) >= maxSessions {
		return nil
	}
	if s.slots == nil {
		s.byID, s.slots, s.byToken = map[string]*slot{}, map[*slot]struct{}{}, map[string]int{}
	}
	t := &slot{all: s, caller: c, path: path, used: now, posted: now}
	s.slots[t] = struct{}{}
	s.byToken[c.token]++
	return t
}

// evict ends the token's least recently used session, if it is idle. The caller holds mu.
func (s *sessions) evict(token string, now time.Time) {
	var oldest *slot
	for t := range s.slots {
		idle := t.session != nil && t.busy == 0 && !t.lasts
		if t.caller.token == token && idle && (oldest == nil || t.used.Before(oldest.used)) {
			oldest = t
		}
	}
	if oldest != nil && now.Sub(oldest.used) > sessionSpare {
		s.remove(oldest)
		go oldest.session.Close()
	}
}

// remove removes the slot. The caller holds mu.
func (s *sessions) remove(t *slot) {
	if t.gone {
		return
	}
	t.gone = true
	delete(s.slots, t)
	if t.session != nil {
		delete(s.byID, t.session.ID())
	}
	if s.byToken[t.caller.token]--; s.byToken[t.caller.token] == 0 {
		delete(s.byToken, t.caller.token)
	}
}

// opened stores the session of a client that initializes, before the client gets its id.
func (t *slot) opened(session *mcp.ServerSession) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	if t.session != nil || t.gone || session.ID() == "" {
		return
	}
	t.session = session
	t.all.byID[session.ID()] = t
	go func() {
		_ = session.Wait()
		t.all.mu.Lock()
		defer t.all.mu.Unlock()
		t.all.remove(t)
	}()
}

// settle frees the slot if no session was opened.
func (t *slot) settle() {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	if t.session == nil {
		t.all.remove(t)
	}
}

// enter returns the session for a request of the same token to the same address. The
// caller must call leave afterwards.
func (s *sessions) enter(id, path string, c *caller, post bool) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byID[id]
	if t == nil || t.caller.token != c.token || t.path != path {
		return nil
	}
	t.caller.sends(c)
	t.busy++
	t.used = time.Now()
	if post {
		t.posts++
	}
	return t
}

func (t *slot) leave(post bool) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	t.busy--
	t.used = time.Now()
	if post {
		t.posts--
		t.posted = t.used
	}
}

// initialized reports whether the client has identified itself and cannot open addresses
// for its user. If it can, a call may need an elicitation about an approval, which only
// the SDK sends.
func (t *slot) initialized() bool {
	p := t.session.InitializeParams()
	return p != nil && (p.Capabilities == nil || p.Capabilities.Elicitation == nil ||
		p.Capabilities.Elicitation.URL == nil)
}

// begun is the result of begin.
type begun int

const (
	began     begun = iota
	twice           // a call in progress has its id
	elsewhere       // the session is ending: the SDK answers
)

// begin registers a usual call, whose context ends when the client cancels the call. If
// begin returns began, the caller must call done afterwards. id is JSON.
func (t *slot) begin(ctx context.Context, id string) (context.Context, begun) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	if t.gone || t.closing {
		return ctx, elsewhere
	}
	if t.calls[id] != nil {
		return ctx, twice
	}
	if t.calls == nil {
		t.calls = map[string]context.CancelFunc{}
	}
	ctx, t.calls[id] = context.WithCancel(ctx)
	t.usual.Add(1)
	return ctx, began
}

func (t *slot) done(id string) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	t.calls[id]()
	delete(t.calls, id)
	t.usual.Done()
}

// cancel cancels the usual calls that the cancellation messages in the body name.
func (t *slot) cancel(body []byte) {
	if !bytes.Contains(body, []byte("cancelled")) {
		return
	}
	messages := []json.RawMessage{body}
	if _ = json.Unmarshal(body, &messages); len(messages) > maxBatch { // 2025-03-26 has batches
		messages = messages[:maxBatch]
	}
	for _, data := range messages {
		m, err := jsonrpc.DecodeMessage(data)
		r, is := m.(*jsonrpc.Request)
		var params map[string]any
		if err != nil || !is || r.Method != "notifications/cancelled" || json.Unmarshal(r.Params, &params) != nil {
			continue
		}
		switch id := params["requestId"].(type) {
		case string: // the id of a usual call has no escapes
			t.cancelCall(`"` + id + `"`)
		case float64:
			t.cancelCall(strconv.FormatFloat(id, 'f', -1, 64))
		}
	}
}

// maxBatch is how many messages of a batch are read.
const maxBatch = 100

func (t *slot) cancelCall(id string) {
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	if cancel := t.calls[id]; cancel != nil {
		cancel()
	}
}

// drain waits for the usual calls in progress. No further call can begin.
func (t *slot) drain() {
	t.all.mu.Lock()
	t.closing = true
	t.all.mu.Unlock()
	t.usual.Wait()
}

func (s *sessions) openStream(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[token] >= maxStreams {
		return false
	}
	if s.streams == nil {
		s.streams = map[string]int{}
	}
	s.streams[token]++
	return true
}

func (s *sessions) closeStream(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[token]--; s.streams[token] == 0 {
		delete(s.streams, token)
	}
}

// sessionCheck is the interval between checks of the sessions' tokens.
const sessionCheck = 500 * time.Millisecond

// endSessions ends the sessions whose tokens were revoked or lost rights, and idle
// sessions, until the gateway closes: otherwise a session would go on receiving its
// subscriptions. The SDK cannot end idle sessions, because it does not see usual calls.
func (g *Gateway) endSessions() {
	defer close(g.ended)
	tick := time.NewTicker(sessionCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-g.life.Done():
			return
		}
		g.sessions.endIdle(time.Now().Add(-g.o.SessionIdle))
		for _, by := range g.sessions.principals() {
			if _, err := g.o.Authority.PrincipalNow(g.life, by); errors.Is(err, fleet.ErrActorGone) {
				g.sessions.end(by.ID)
			}
		}
	}
}

// principals returns the principals that have sessions.
func (s *sessions) principals() []fleet.Principal {
	s.mu.Lock()
	defer s.mu.Unlock()
	byToken := make(map[string]fleet.Principal, len(s.byToken))
	for t := range s.slots {
		byToken[t.caller.token] = *t.caller.by.Load()
	}
	return slices.Collect(maps.Values(byToken))
}

// end ends the sessions of a token: they no longer exist.
func (s *sessions) end(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.slots {
		if t.caller.token == token && t.session != nil {
			s.remove(t)
			go t.session.Close()
		}
	}
}

// endIdle ends the sessions without a message since the given time.
func (s *sessions) endIdle(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.slots {
		if t.session != nil && !t.lasts && t.posts == 0 && t.posted.Before(since) {
			s.remove(t)
			go t.session.Close()
		}
	}
}

// closeAll ends every session. A session with a request in progress ends after that
// request.
func (s *sessions) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.slots {
		if t.session != nil {
			go t.session.Close()
		}
	}
}

// serveSession serves a request of a session. For a token, sessions that another token
// opened do not exist. body is the body of a POST.
func (g *Gateway) serveSession(w http.ResponseWriter, r *http.Request, c *caller, id string, body []byte) {
	post := r.Method == http.MethodPost
	t := g.sessions.enter(id, r.URL.Path, c, post)
	if t == nil {
		g.refuse(w, http.StatusNotFound, fleet.Refuse(fleet.ErrNotFound, "mcp_unknown_session"))
		return
	}
	defer t.leave(post)
	r = r.WithContext(context.WithValue(r.Context(), callerKey{}, t.caller))
	switch r.Method {
	case http.MethodGet:
		g.serveStream(w, r, c, g.stateful)
		return
	case http.MethodPost:
		t.cancel(body)
	case http.MethodDelete:
		t.drain() // the SDK waits for the other calls
	}
	g.stateful.ServeHTTP(w, r)
}
