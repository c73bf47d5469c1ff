package gateway

//lint:file-ignore SA1019 logging is deprecated since 2026-07-28, and what clients have

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
)

// Limits of what programs announce. Many changes become one, and further log messages are
// dropped.
const (
	announceEvery = 50 * time.Millisecond
	listsEvery    = time.Second // for each program
	maxLogs       = 20          // of a program in announceEvery
	maxLogsSecond = 50          // of a program
	maxLogText    = 4 << 10
	// recentFor is how long the SDK may take to send a change of lists.
	recentFor = 2 * time.Second
	// maxWanted bounds the resources of one program to which sessions subscribe.
	maxWanted = 1000
)

// subscriptions are those of sessions to the resources of one program. There is one subscription
// to the program for each resource, as long as a session has one.
type subscriptions struct {
	gate   chan struct{} // holds one value while the program is asked
	by     map[string]map[*mcp.ServerSession]struct{}
	server *mcp.ClientSession // with which active are
	active map[string]bool
}

// A pendingChange is what a program announced and sessions do not know yet.
type pendingChange struct {
	lists   bool
	updated map[string]bool
	logs    []*ProgramLog
}

// An announced change of lists.
type announced struct {
	device fleet.Device
	at     time.Time
	logs   int // messages in the second after logged
	logged time.Time
}

// subscribe subscribes a session to a resource of a program.
func (p *programs) subscribe(ctx context.Context, session *mcp.ServerSession, id fleet.DeviceID, uri,
	shown string) error {
	if _, err := p.find(ctx, id); absent(err, uri) {
		return mcp.ResourceNotFoundError(fleet.CleanText(shown, maxURI))
	} else if err != nil {
		return p.g.protocolError(err)
	}
	sending, server, done, err := p.begin(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	if i := server.InitializeResult(); i == nil || i.Capabilities == nil || i.Capabilities.Resources == nil ||
		!i.Capabilities.Resources.Subscribe {
		return p.refuse(jsonrpc.CodeInvalidParams, fleet.Refuse(fleet.ErrInvalid, "mcp_program_subscribe", "device", string(id)))
	}
	p.mu.Lock()
	s := p.wanted[id]
	if s == nil {
		s = &subscriptions{gate: make(chan struct{}, 1), by: map[string]map[*mcp.ServerSession]struct{}{}}
		p.wanted[id] = s
	}
	if len(s.by) >= maxWanted && s.by[uri] == nil {
		p.mu.Unlock()
		return p.g.protocolError(fleet.Refuse(fleet.ErrTooMany, "mcp_too_many_subscriptions", "limit", maxWanted))
	}
	if s.by[uri] == nil {
		s.by[uri] = map[*mcp.ServerSession]struct{}{}
	}
	s.by[uri][session] = struct{}{}
	p.mu.Unlock()
	if err := p.settle(sending, id, s, uri); err != nil {
		p.unsubscribe(session, id, uri)
		return p.failure(sending, id, err)
	}
	return nil
}

// unsubscribe ends the subscription of a session. The program learns of it later.
func (p *programs) unsubscribe(session *mcp.ServerSession, id fleet.DeviceID, uri string) {
	p.mu.Lock()
	s := p.wanted[id]
	if s == nil || s.by[uri] == nil {
		p.mu.Unlock()
		return
	}
	delete(s.by[uri], session)
	last := len(s.by[uri]) == 0
	if last {
		delete(s.by, uri)
	}
	p.mu.Unlock()
	if last {
		go p.settleLater(id, s, uri)
	}
}

// release ends the subscriptions of a session that ended.
func (p *programs) release(session *mcp.ServerSession) {
	type place struct {
		id  fleet.DeviceID
		uri string
	}
	var places []place
	p.mu.Lock()
	for id, s := range p.wanted {
		for uri, sessions := range s.by {
			if _, has := sessions[session]; has {
				places = append(places, place{id, uri})
			}
		}
	}
	p.mu.Unlock()
	for _, at := range places {
		p.unsubscribe(session, at.id, at.uri)
	}
}

func (p *programs) settleLater(id fleet.DeviceID, s *subscriptions, uri string) {
	ctx, cancel := context.WithTimeout(p.g.life, programTimeout)
	defer cancel()
	if err := p.settle(ctx, id, s, uri); err != nil && p.g.life.Err() == nil {
		p.g.log.Warn("subscription at a program not changed", "device", id, "err", fleet.CleanText(err.Error(), 200))
	}
}

// settle subscribes or unsubscribes at the program, if that differs from what sessions want.
func (p *programs) settle(ctx context.Context, id fleet.DeviceID, s *subscriptions, uri string) error {
	select {
	case s.gate <- struct{}{}:
		defer func() { <-s.gate }()
	case <-ctx.Done():
		return ctx.Err()
	}
	server := p.Server(id)
	if server != s.server {
		s.server, s.active = server, map[string]bool{}
	}
	p.mu.Lock()
	want := len(s.by[uri]) > 0
	p.mu.Unlock()
	switch {
	case server == nil || want == s.active[uri]:
		return nil
	case want:
		if err := server.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
			return err
		}
		s.active[uri] = true
		return nil
	}
	delete(s.active, uri)
	return server.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
}

// restore subscribes again at a program that came back. Its resources may have changed meanwhile.
func (p *programs) restore(id fleet.DeviceID) {
	p.mu.Lock()
	s := p.wanted[id]
	var uris []string
	if s != nil {
		uris = slices.Collect(maps.Keys(s.by))
	}
	p.mu.Unlock()
	server := p.Server(id)
	if len(uris) == 0 || server == nil {
		return
	}
	s.gate <- struct{}{}
	back := s.server != server
	<-s.gate
	if !back {
		return
	}
	for _, uri := range uris {
		p.settleLater(id, s, uri)
		p.receive(ProgramChange{Device: id, Updated: uri})
	}
}

// receive notes a change. It does not block.
func (p *programs) receive(c ProgramChange) {
	p.mu.Lock()
	next := p.pending[c.Device]
	if next == nil {
		next = &pendingChange{updated: map[string]bool{}}
		p.pending[c.Device] = next
	}
	if c.Lists {
		next.lists = true
	}
	if s := p.wanted[c.Device]; c.Updated != "" && s != nil && s.by[c.Updated] != nil {
		next.updated[c.Updated] = true
	}
	if c.Log != nil && len(next.logs) < maxLogs {
		next.logs = append(next.logs, c.Log)
	}
	p.mu.Unlock()
	if c.Lists {
		p.forget(c.Device)
	}
	p.signal()
}

// announceLists makes sessions read the lists of a program again.
func (p *programs) announceLists(id fleet.DeviceID) {
	p.mu.Lock()
	if p.pending[id] == nil {
		p.pending[id] = &pendingChange{updated: map[string]bool{}}
	}
	p.pending[id].lists = true
	p.mu.Unlock()
	p.signal()
}

func (p *programs) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run announces changes until the gateway closes.
func (p *programs) run() {
	for {
		select {
		case <-p.g.life.Done():
			return
		case <-p.wake:
		}
		p.mu.Lock()
		pending := p.pending
		p.pending = map[fleet.DeviceID]*pendingChange{}
		p.mu.Unlock()
		for id, c := range pending {
			p.announce(id, c)
		}
		select {
		case <-p.g.life.Done():
		case <-time.After(announceEvery):
		}
	}
}

// announce notifies sessions of the changes of one program.
func (p *programs) announce(id fleet.DeviceID, c *pendingChange) {
	ctx, cancel := context.WithTimeout(p.g.life, 10*time.Second)
	defer cancel()
	d, err := p.g.o.Devices.Device(ctx, id)
	if err != nil {
		return
	}
	p.g.scopes.mu.Lock()
	own := p.g.scopes.by[programKey(id)]
	p.g.scopes.mu.Unlock()
	now := time.Now()
	p.mu.Lock()
	last := p.recent[id]
	early := c.lists && now.Sub(last.at) < listsEvery
	if c.lists && !early {
		last.device, last.at = d, now
	}
	if now.Sub(last.logged) > time.Second {
		last.logged, last.logs = now, 0
	}
	c.logs = c.logs[:min(len(c.logs), max(0, maxLogsSecond-last.logs))]
	last.logs += len(c.logs)
	p.recent[id] = last
	p.mu.Unlock()
	switch {
	case early:
		time.AfterFunc(listsEvery-now.Sub(last.at), func() { p.announceLists(id) })
	case c.lists:
		go p.restore(id)
		// The SDK notifies sessions only when its lists change, which have nothing of programs.
		p.g.addPrompts(p.g.fleet)
		p.g.addResources(p.g.fleet)
		if own != nil {
			addNothing(own.server)
		}
	}
	p.updating.Store(&d)
	for uri := range c.updated {
		_ = p.g.fleet.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: address{}.uri(id, uri)})
		if own != nil {
			_ = own.server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: uri})
		}
	}
	if len(c.logs) > 0 {
		p.log(ctx, d, c.logs)
	}
}

// addNothing makes the SDK send a change of the lists.
func addNothing(s *mcp.Server) {
	s.AddPrompt(&mcp.Prompt{Name: "none"}, nil)
	s.AddResource(&mcp.Resource{Name: "none", URI: "none:"}, nil)
}

// log sends log messages of a program to the sessions that see it.
func (p *programs) log(ctx context.Context, d fleet.Device, logs []*ProgramLog) {
	loggers := p.g.watches.loggers(d.ID)
	for session, by := range loggers {
		if !p.shows(*by, d) {
			continue
		}
		for _, l := range logs {
			text := string(l.Data)
			var plain string
			if json.Unmarshal(l.Data, &plain) == nil {
				text = plain
			}
			level := levelInfo
			if slices.Contains(levels, l.Level) {
				level = l.Level
			}
			_ = session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Logger: labelOf(d.ID), Data: logLine{
				Event: "program_log", Text: "Log message of " + string(d.ID), Device: d.ID,
				Logger: fleet.CleanText(l.Logger, maxShort), Words: written(text, maxLogText)}}) // the client may be gone
		}
	}
}

var levels = []mcp.LoggingLevel{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// hide drops what a session is not to know: the resources and lists of programs that its token
// does not see.
func (p *programs) hide(a address) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			session, _ := req.GetSession().(*mcp.ServerSession)
			switch params := req.GetParams().(type) {
			case *mcp.ResourceUpdatedNotificationParams:
				if id, _, ok := a.ofURI(params.URI); ok {
					d := p.updating.Load()
					if d == nil || d.ID != id || !p.showsTo(session, *d) {
						return nil, nil
					}
				}
			case *mcp.PromptListChangedParams, *mcp.ResourceListChangedParams:
				if !p.recentlyChanged(session, a) {
					return nil, nil
				}
			}
			return next(ctx, method, req)
		}
	}
}

func (p *programs) showsTo(session *mcp.ServerSession, d fleet.Device) bool {
	by := p.g.watches.principal(session)
	return by != nil && p.shows(*by, d)
}

// recentlyChanged reports whether lists changed that the session's token sees.
func (p *programs) recentlyChanged(session *mcp.ServerSession, a address) bool {
	p.mu.Lock()
	var changed []fleet.Device
	for id, r := range p.recent {
		if time.Since(r.at) < recentFor && (a.only == "" || a.only == id) {
			changed = append(changed, r.device)
		}
	}
	p.mu.Unlock()
	return slices.ContainsFunc(changed, func(d fleet.Device) bool { return p.showsTo(session, d) })
}

// progress returns a function that passes progress on to the client of a request, and one that
// ends it. Neither waits for the client longer than the request does: some progress may be lost.
func progress(ctx context.Context, req *mcp.CallToolRequest) (report func(fleet.Progress), end func()) {
	if req == nil || req.Params.GetProgressToken() == nil {
		return nil, func() {}
	}
	token := req.Params.GetProgressToken()
	reports, over, ended := make(chan fleet.Progress, 32), make(chan struct{}), make(chan struct{})
	send := func(r fleet.Progress) {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: r.Done,
			Total: r.Total, Message: r.Message}) // the client may be gone
	}
	go func() {
		defer close(ended)
		for {
			select {
			case r := <-reports:
				send(r)
			case <-over:
				for {
					select {
					case r := <-reports:
						send(r)
					default:
						return
					}
				}
			}
		}
	}()
	report = func(r fleet.Progress) {
		select {
		case reports <- r:
		default:
		}
	}
	return report, func() {
		close(over)
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
}
