package voicelink

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/voice"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/outbound"
	"fleetd/internal/bounded"
)

// A Question is a request to the core that leads.
type Question struct {
	Name    string
	Body    []byte
	Repeat  bool          // it may be sent again after a core may have received it
	HoldFor time.Duration // how long it waits while no core leads. 0: until the context ends
}

// An Asker sends requests to the core that leads.
type Asker interface {
	// Ask returns the status and the body of the answer. Its errors are [fleet.Error]: one with the code
	// [CodeUnknown] if a core may have handled the question, others if none did.
	Ask(ctx context.Context, q Question) (status int, answer []byte, err error)
}

// CodeUnknown is the code of an error of [Asker.Ask].
const CodeUnknown = "outcome_unknown"

// ClientOptions configures a [Client]. Asker is required.
type ClientOptions struct {
	Asker Asker
	Guard *outbound.Guard // opens connections to voice servers. Default: one without options

	// HoldFor is how long a call waits while no core leads; the voice server gives up after 30s.
	// Default: 28s.
	HoldFor time.Duration
	// ReportEvery is the time between reports of open conversations without a change. Default: 5s.
	ReportEvery time.Duration

	Log *slog.Logger
}

const (
	// callTimeout is how long an answer to a call is of use: longer than the voice server waits.
	callTimeout = 35 * time.Second
	// maxTalks bounds the passes that the client keeps: for open conversations, and for those whose records
	// are not saved yet.
	maxTalks = 1 << 15
)

// A Client asks the core that leads for the relay of an edge: it is the relay's choice of voice
// servers, its caller, its programs, its records and its open conversations.
type Client struct {
	o           ClientOptions
	incarnation uint64
	talks       *bounded.Cache[uuid.UUID, *talk]
	language    atomic.Value // string

	mu     sync.Mutex
	open   map[uuid.UUID]fleet.Conversation
	begun  []uuid.UUID // since the last report
	ended  []uuid.UUID
	all    bool  // the next report has all conversations
	number int64 // of the last report
	wake   chan struct{}
	health func() []voice.HealthReport
}

// A talk is what the client knows of a conversation.
type talk struct {
	pass   pass
	vision atomic.Pointer[voice.Vision]
}

var (
	_ voice.Caller            = (*Client)(nil)
	_ voice.Programs          = (*Client)(nil)
	_ voice.Records           = (*Client)(nil)
	_ voice.OpenConversations = (*Client)(nil)
)

// NewClient returns the core as the relay of an edge sees it. [Client.Run] starts its reports.
func NewClient(o ClientOptions) *Client {
	o.HoldFor = cmp.Or(o.HoldFor, 28*time.Second)
	o.ReportEvery = cmp.Or(o.ReportEvery, 5*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{o: o, incarnation: rand.Uint64(), talks: bounded.New[uuid.UUID, *talk](maxTalks),
		open: make(map[uuid.UUID]fleet.Conversation), all: true, wake: make(chan struct{}, 1)}
}

// Language returns the language in which devices show failures, as the core said last; "" before.
func (c *Client) Language() string {
	l, _ := c.language.Load().(string)
	return l
}

// ask sends a request and reads its answer into answer.
func (c *Client) ask(ctx context.Context, q Question, request, answer any) error {
	var err error
	if q.Body, err = json.Marshal(request); err != nil {
		return err
	}
	status, text, err := c.o.Asker.Ask(ctx, q)
	if err != nil {
		return err
	}
	if status == http.StatusOK {
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("answer of the core to %s: %w", q.Name, err)
		}
		return nil
	}
	var r refusal
	if json.Unmarshal(text, &r) != nil || r.Kind == "" {
		return fmt.Errorf("%s: status %d: %w", q.Name, status, errFailed)
	}
	return r.err()
}

// Choose returns the voice server of a device. See [voice.Options.Choose].
func (c *Client) Choose(ctx context.Context, h voice.Hello) (voice.Upstream, bool, error) {
	var a chooseAnswer
	err := c.ask(ctx, Question{Name: askChoose, Repeat: true}, chooseRequest{h.Device, h.Conversation}, &a)
	switch {
	case errors.Is(err, fleet.ErrForbidden): // the device has connected elsewhere
		return voice.Upstream{}, false, nil
	case err != nil:
		c.o.Log.Warn("no voice server chosen for a device", "device", h.Device, "err", err)
		return voice.Upstream{}, false, err
	}
	c.language.Store(a.Language)
	if a.Pass == nil || a.Upstream == nil {
		return voice.Upstream{}, false, nil
	}
	t := &talk{pass: *a.Pass}
	c.talks.Add(h.Conversation, t)
	u := voice.Upstream{ID: a.Pass.Upstream, Changed: a.Upstream.Changed, Name: a.Pass.Name, URL: a.Upstream.URL,
		Token: a.Upstream.Token, NoTools: a.Pass.NoTools, AllowReboot: a.Upstream.AllowReboot, Guard: c.o.Guard}
	if a.Upstream.Find {
		u.Find = func(ctx context.Context, _ voice.Poll, refused string) (string, string, error) {
			return c.address(ctx, t, refused)
		}
	}
	return u, true, nil
}

// address returns the address and token of a device at a voice server with accounts.
func (c *Client) address(ctx context.Context, t *talk, refused string) (url, token string, err error) {
	var a addressAnswer
	err = c.ask(ctx, Question{Name: askAddress, Repeat: true}, addressRequest{t.pass, refused}, &a)
	switch {
	case err != nil:
		return "", "", voice.Failed(fleet.EndedNoLeader, err)
	case a.End != "":
		return "", "", voice.Failed(a.End, errors.New(a.Cause))
	}
	return a.URL, a.Token, nil
}

var errNoPass = fleet.Refuse(fleet.ErrForbidden, "voice_no_pass")

// talkOf returns the conversation of a principal.
func (c *Client) talkOf(p fleet.Principal) (*talk, error) {
	id, err := uuid.Parse(p.ID)
	if err == nil {
		if t, ok := c.talks.Get(id); ok {
			return t, nil
		}
	}
	return nil, errNoPass
}

// spoken returns an error as the model of a voice server may say it.
func spoken(err error) error {
	e, ok := errors.AsType[*fleet.Error](err)
	switch {
	case err == nil:
		return nil
	case ok && e.Code == CodeUnknown:
		return fleet.Refuse(fleet.ErrUnavailable, "voice_outcome_unknown")
	case errors.Is(err, fleet.ErrUnavailable) && ok && e.Code != "voice_no_pass":
		return fleet.Refuse(fleet.ErrUnavailable, "voice_no_leader")
	}
	return err
}

// Offered implements [voice.Caller].
func (c *Client) Offered(ctx context.Context, p fleet.Principal, id fleet.DeviceID) (fleet.Device, []fleet.Tool,
	error) {
	t, err := c.talkOf(p)
	if err != nil {
		return fleet.Device{}, nil, err
	}
	var a toolsAnswer
	if err := c.ask(ctx, Question{Name: askTools, Repeat: true}, toolsRequest{t.pass, id}, &a); err != nil {
		return fleet.Device{}, nil, spoken(err)
	}
	return fleet.Device{ID: id, Board: a.Board, Version: a.Version, InventoryID: a.Inventory}, a.Tools, nil
}

// OfferedToVoice implements [voice.Programs].
func (c *Client) OfferedToVoice(ctx context.Context, p fleet.Principal) ([]fleet.DeviceID, error) {
	t, err := c.talkOf(p)
	if err != nil {
		return nil, err
	}
	var a programsAnswer
	err = c.ask(ctx, Question{Name: askPrograms, Repeat: true}, programsRequest{t.pass}, &a)
	return a.Devices, err
}

// OffersToVoice implements [voice.Programs]. The core decides when the call is made.
func (c *Client) OffersToVoice(fleet.DeviceID) bool { return true }

// Make implements [voice.Caller]. The call waits while no core leads, and is sent once.
func (c *Client) Make(ctx context.Context, r call.Request) (fleet.Call, error) {
	t, err := c.talkOf(r.Actor)
	if err != nil {
		return fleet.Call{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var a callAnswer
	err = c.ask(ctx, Question{Name: askCall, HoldFor: c.o.HoldFor}, callRequest{Pass: t.pass, Of: r.Device, Tool: r.Tool,
		Arguments: r.Arguments, TimeoutMs: r.Timeout.Milliseconds(), Vision: t.vision.Load()}, &a)
	if err != nil {
		return fleet.Call{}, spoken(err)
	}
	return fleet.Call{Device: r.Device, Tool: r.Tool, State: a.State, Result: a.Result, Error: a.Error}, nil
}

// OnVision records where the upstream of a conversation wants pictures. See [voice.Options.OnVision].
func (c *Client) OnVision(conversation uuid.UUID, v voice.Vision) {
	if t, ok := c.talks.Get(conversation); ok {
		t.vision.Store(&v)
	}
}

// SaveConversations implements [voice.Records].
func (c *Client) SaveConversations(ctx context.Context, list []fleet.Conversation) error {
	var q recordsRequest
	for _, v := range list {
		t, ok := c.talks.Get(v.ID)
		if !ok {
			c.o.Log.Error("conversation not recorded: its pass is lost", "device", v.Device, "conversation", v.ID)
			continue
		}
		q.Records = append(q.Records, record{Pass: t.pass, Begin: v.Begin, End: v.End, Ended: v.Ended, Calls: v.Calls,
			HelloIn: v.HelloIn, Audio: v.Audio})
	}
	if err := c.ask(ctx, Question{Name: askRecords, Repeat: true}, q, &nothing{}); err != nil {
		return err
	}
	for _, v := range list {
		if v.End != nil {
			c.talks.Remove(v.ID)
		}
	}
	return nil
}
