package voicelink

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/dialect"
	"fleetd/broker/voice"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/outbound"
)

// CoreOptions configures a [Core]. All but Guard, ConnectTimeout and Log are required.
type CoreOptions struct {
	// Key signs passes. All cores have the same.
	Key []byte
	// Edge returns the name of the edge that sent a request, from its certificate.
	Edge func(ctx context.Context) string
	// Connection returns the connection of a device.
	Connection func(id fleet.DeviceID) (fleet.Connection, bool)
	// Attached reports whether an edge has announced all its connections.
	Attached func(edge string) bool

	// These are the services that a relay in the core's process would use.
	Choose   func(ctx context.Context, h voice.Hello) (voice.Upstream, bool, error)
	Calls    voice.Caller
	Programs voice.Programs
	Records  voice.Records
	Open     voice.OpenConversations
	Language string          // of the texts that devices show
	Guard    *outbound.Guard // opens connections for pictures. Default: one without options

	// ConnectTimeout is how long the hello of a device may be ahead of the message of its edge that the
	// device is connected. Default: 5s.
	ConnectTimeout time.Duration

	Log *slog.Logger
}

const (
	maxRequest = 512 << 10 // bytes: a voice server's messages have 256 KiB
	maxReport  = 8 << 20   // bytes: 10,000 conversations
	maxAsking  = 4096      // requests of one edge at a time
	maxRecords = 1024      // in one request

	chooseTimeout  = time.Second
	attachTimeout  = 10 * time.Second // until an edge has announced its connections to a new leader
	programTimeout = 29 * time.Second // of a call: the voice server waits no longer
)

// A Core answers the requests of edges in the core that leads. It serves paths that are the names of
// the requests.
type Core struct {
	o    CoreOptions
	open openTable

	mu      sync.Mutex
	asking  map[string]int // requests by edge
	visions map[uuid.UUID]*shown
}

// shown is where a voice server wants the pictures of its calls that are in flight.
type shown struct {
	device fleet.DeviceID
	vision voice.Vision
	calls  int
}

// NewCore returns a Core.
func NewCore(o CoreOptions) *Core {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 5*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Core{o: o, asking: make(map[string]int), visions: make(map[uuid.UUID]*shown),
		open: openTable{edges: make(map[string]*reported)}}
}

var (
	errNotHere   = fleet.Refuse(fleet.ErrForbidden, "voice_device_elsewhere")
	errBadPass   = fleet.Refuse(fleet.ErrForbidden, "voice_no_pass")
	errFull      = fleet.Refuse(fleet.ErrTooMany, "voice_too_many_requests")
	errNoTools   = fleet.Refuse(fleet.ErrForbidden, "voice_no_tools")
	errNotOffers = fleet.Refuse(fleet.ErrForbidden, "voice_not_offered")
	errGarbage   = errors.New("the request cannot be read")
)

// ServeHTTP answers a request of an edge.
func (c *Core) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	edge := c.o.Edge(r.Context())
	if edge == "" || r.Method != http.MethodPost {
		http.Error(w, "for the edges of the cluster", http.StatusForbidden)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if !c.enter(edge) {
		answer(w, nil, errFull)
		return
	}
	defer c.leave(edge)
	body := http.MaxBytesReader(w, r.Body, maxRequest)
	if name == askReport {
		body = http.MaxBytesReader(w, r.Body, maxReport)
	}
	ctx := r.Context()
	switch name {
	case askChoose:
		serve(w, body, func(q *chooseRequest) (any, error) { return c.choose(ctx, edge, q) })
	case askAddress:
		serve(w, body, func(q *addressRequest) (any, error) { return c.address(ctx, edge, q) })
	case askTools:
		serve(w, body, func(q *toolsRequest) (any, error) { return c.tools(ctx, edge, q) })
	case askPrograms:
		serve(w, body, func(q *programsRequest) (any, error) { return c.programs(ctx, edge, q) })
	case askCall:
		serve(w, body, func(q *callRequest) (any, error) { return c.call(ctx, edge, q) })
	case askRecords:
		serve(w, body, func(q *recordsRequest) (any, error) { return nothing{}, c.records(ctx, edge, q) })
	case askReport:
		serve(w, body, func(q *reportRequest) (any, error) { return c.report(ctx, edge, q) })
	default:
		http.NotFound(w, r)
	}
}

// serve reads a request, handles it and answers.
func serve[Q any](w http.ResponseWriter, body io.Reader, handle func(*Q) (any, error)) {
	text, err := io.ReadAll(body)
	var q Q
	if err == nil {
		err = json.Unmarshal(text, &q)
	}
	if err != nil {
		http.Error(w, errGarbage.Error(), http.StatusBadRequest)
		return
	}
	a, err := handle(&q)
	answer(w, a, err)
}

func answer(w http.ResponseWriter, a any, err error) {
	status := http.StatusOK
	if err != nil {
		a, status = refusalOf(err), http.StatusUnprocessableEntity
		if errors.Is(err, errGarbage) {
			status = http.StatusBadRequest
		}
	}
	text, err := json.Marshal(a)
	if err != nil { // a result of a device that is no JSON
		text, status = []byte(`{}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the edge may have gone
}

func (c *Core) enter(edge string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking[edge] >= maxAsking {
		return false
	}
	c.asking[edge]++
	return true
}

func (c *Core) leave(edge string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking[edge]--; c.asking[edge] == 0 {
		delete(c.asking, edge)
	}
}

// held returns the device's connection if the edge holds it now. An edge that has not announced its
// connections to this core yet has a moment to do so, and one that has announced them has grace for a
// new one.
func (c *Core) held(ctx context.Context, edge string, id fleet.DeviceID, grace time.Duration) (fleet.Connection,
	error) {
	known := time.Now().Add(grace)
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		attached := c.o.Attached(edge)
		if conn, ok := c.o.Connection(id); ok && conn.Node == edge {
			return conn, nil
		}
		if attached && !time.Now().Before(known) {
			return fleet.Connection{}, errNotHere
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fleet.Connection{}, errNotHere
		}
	}
}

// signed returns nil if a core made the pass for this edge.
func (c *Core) signed(edge string, p *pass) error {
	if !hmac.Equal(p.Ticket, p.sign(c.o.Key, edge)) {
		return errBadPass
	}
	return nil
}

// valid returns the device's connection if a core made the pass for this edge, which holds the device
// now.
func (c *Core) valid(ctx context.Context, edge string, p *pass) (fleet.Connection, error) {
	if err := c.signed(edge, p); err != nil {
		return fleet.Connection{}, err
	}
	return c.held(ctx, edge, p.Device, 0)
}

func (c *Core) choose(ctx context.Context, edge string, q *chooseRequest) (any, error) {
	if q.Conversation == uuid.Nil {
		return nil, errGarbage
	}
	conn, err := c.held(ctx, edge, q.Device, c.o.ConnectTimeout)
	if err != nil {
		return nil, err
	}
	h := voice.Hello{Device: q.Device, ClientID: dialect.UUIDOf(conn.ClientID), Conversation: q.Conversation}
	u, ok, err := c.chosen(ctx, h)
	if err != nil || !ok {
		return chooseAnswer{Language: c.o.Language}, err
	}
	find := u.Find != nil
	u = u.For(h.ClientID, h.Device)
	p := &pass{Conversation: q.Conversation, Device: q.Device, Upstream: u.ID, Name: u.Name, Written: u.Written(),
		NoTools: u.NoTools}
	p.Ticket = p.sign(c.o.Key, edge)
	return chooseAnswer{Pass: p, Language: c.o.Language, Upstream: &voiceServer{Changed: u.Changed, URL: u.URL,
		Token: u.Token, Find: find, AllowReboot: u.AllowReboot}}, nil
}

func (c *Core) chosen(ctx context.Context, h voice.Hello) (voice.Upstream, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, chooseTimeout)
	defer cancel()
	return c.o.Choose(ctx, h)
}

var errChanged = errors.New("the voice server of the device has changed")

func (c *Core) address(ctx context.Context, edge string, q *addressRequest) (any, error) {
	conn, err := c.valid(ctx, edge, &q.Pass)
	if err != nil {
		return nil, err
	}
	h := voice.Hello{Device: q.Pass.Device, ClientID: dialect.UUIDOf(conn.ClientID), Conversation: q.Pass.Conversation}
	u, ok, err := c.chosen(ctx, h)
	if err != nil {
		return nil, err
	}
	if !ok || u.ID != q.Pass.Upstream || u.Find == nil {
		return addressAnswer{End: fleet.EndedNoWebSocket, Cause: errChanged.Error()}, nil
	}
	url, token, err := u.Find(ctx, voice.Poll{Device: h.Device, ClientID: h.ClientID}, q.Refused)
	if err != nil {
		return addressAnswer{End: voice.EndOf(err), Cause: err.Error()}, nil
	}
	return addressAnswer{URL: url, Token: token}, nil
}

// target returns the device of a request: that of the conversation, or a program.
func (c *Core) target(ctx context.Context, edge string, p *pass, of fleet.DeviceID) error {
	switch _, err := c.valid(ctx, edge, p); {
	case err != nil:
		return err
	case p.NoTools:
		return errNoTools
	case of != p.Device && !c.o.Programs.OffersToVoice(of):
		return errNotOffers
	}
	return nil
}

func (c *Core) tools(ctx context.Context, edge string, q *toolsRequest) (any, error) {
	if err := c.target(ctx, edge, &q.Pass, q.Of); err != nil {
		return nil, err
	}
	d, tools, err := c.o.Calls.Offered(ctx, q.Pass.principal(), q.Of)
	return toolsAnswer{d.Board, d.Version, d.InventoryID, tools}, err
}

func (c *Core) programs(ctx context.Context, edge string, q *programsRequest) (any, error) {
	if err := c.target(ctx, edge, &q.Pass, q.Pass.Device); err != nil {
		return nil, err
	}
	devices, err := c.o.Programs.OfferedToVoice(ctx, q.Pass.principal())
	return programsAnswer{devices}, err
}

// call makes a call. The call continues if the edge stops waiting for it.
func (c *Core) call(ctx context.Context, edge string, q *callRequest) (any, error) {
	if q.Tool == "" || len(q.Arguments) > 0 && !bytes.HasPrefix(bytes.TrimSpace(q.Arguments), []byte("{")) {
		return nil, errGarbage
	}
	if err := c.target(ctx, edge, &q.Pass, q.Of); err != nil {
		return nil, err
	}
	r := call.Request{Actor: q.Pass.principal(), Device: q.Of, Tool: q.Tool, Arguments: q.Arguments}
	if r.Device.IsProgram() {
		r.Timeout = min(cmp.Or(time.Duration(max(q.TimeoutMs, 0))*time.Millisecond, programTimeout), programTimeout)
	}
	defer c.show(q)()
	made, err := c.o.Calls.Make(context.WithoutCancel(ctx), r)
	if err != nil {
		return nil, err
	}
	if r.Device.IsProgram() && len(made.Result) > 0 {
		made.Result = voice.Spoken(made.Result)
	}
	return callAnswer{made.State, made.Result, made.Error}, nil
}

// show keeps the address for pictures during a call.
func (c *Core) show(q *callRequest) (done func()) {
	if q.Vision == nil || q.Vision.Check() != nil || q.Vision.URL == "" {
		return func() {}
	}
	id := q.Pass.Conversation
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.visions[id]
	if s == nil {
		s = &shown{}
		c.visions[id] = s
	}
	s.device, s.vision = q.Pass.Device, q.Vision.From(c.o.Guard, q.Pass.Written)
	s.calls++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.calls--; s.calls == 0 {
			delete(c.visions, id)
		}
	}
}

// Vision returns the address for pictures taken by calls of a conversation's upstream. conversation is
// the id of the calling principal.
func (c *Core) Vision(conversation string, id fleet.DeviceID) (voice.Vision, bool) {
	parsed, err := uuid.Parse(conversation)
	if err != nil {
		return voice.Vision{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.visions[parsed]; s != nil && s.device == id {
		return s.vision, true
	}
	return voice.Vision{}, false
}

// records stores records of conversations. The pass suffices: at the end of a conversation the device
// may have gone.
func (c *Core) records(ctx context.Context, edge string, q *recordsRequest) error {
	if len(q.Records) > maxRecords {
		return errGarbage
	}
	list := make([]fleet.Conversation, 0, len(q.Records))
	for i := range q.Records {
		r := &q.Records[i]
		if err := c.signed(edge, &r.Pass); err != nil || !r.plausible() {
			c.o.Log.Error("record of a conversation refused", "edge", edge, "conversation", r.Pass.Conversation, "err", err)
			continue
		}
		list = append(list, fleet.Conversation{ID: r.Pass.Conversation, Device: r.Pass.Device, Upstream: r.Pass.Name,
			Begin: r.Begin, End: r.End, Ended: r.Ended, Calls: r.Calls, HelloIn: r.HelloIn, Audio: r.Audio})
	}
	if len(list) == 0 {
		return nil
	}
	return c.o.Records.SaveConversations(ctx, list)
}

// plausible reports whether a relay could have made the record.
func (r *record) plausible() bool {
	if r.Begin.Year() < 2000 || r.Begin.Year() > 9999 || (r.End == nil) != (r.Ended == "") {
		return false
	}
	if end := r.End; end != nil && (end.Year() > 9999 || end.Before(r.Begin) ||
		!slices.Contains(fleet.ConversationEnds, r.Ended)) {
		return false
	}
	a := r.Audio
	for _, n := range []int64{r.Calls, int64(r.HelloIn), a.Received, a.Lost, a.Refused, a.Dropped, a.Sent, a.Moves,
		int64(a.Jitter)} {
		if n < 0 {
			return false
		}
	}
	return true
}
