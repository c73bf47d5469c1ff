package fleet

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Limits of a call.
const (
	DefaultCallTimeout = 10 * time.Second
	MaxCallTimeout     = 5 * time.Minute
	MaxArgumentBytes   = 3 << 10 // stock firmware handles requests below about 4 KB (protocol 4.9)
	queueTimeout       = time.Minute
	recordTimeout      = 5 * time.Second // a device that acts long after the button was pressed surprises who pressed it
	stopGrace          = 2 * time.Second
)

// A CallRequest asks for one tool call.
type CallRequest struct {
	Actor     Actor
	Device    DeviceID
	Tool      string
	Arguments json.RawMessage // a JSON object; nil is {}
	Timeout   time.Duration   // 0 takes the tool's default
	FanOut    uuid.UUID
	// UnlessOffline makes the request fail with [ErrOffline], and leave no
	// record, while the device is not connected.
	UnlessOffline bool
	Picture       string         // [ToolPreviewImage]: blob key of the picture to show
	Firmware      *FirmwareOrder // [ToolUpgradeFirmware]: only campaigns have one

	now time.Time
	// stalled, if set, sees each failure to store the outcome that is tried again.
	stalled func(error)
}

// A FirmwareOrder makes an upgrade call of a campaign. The call's outcome is
// that of the attempt, by evidence: succeeded when a boot poll names the build,
// tool_error when the device refused or came back without it.
type FirmwareOrder struct {
	URL       string // one-time link of the attempt
	ELFSHA256 string // of the image
	// What follows goes to devices whose tool has a property of that name.
	SHA256    string // of the bytes, hex
	Size      int64  // bytes
	Job       string // as [UpgradeJobName] names it; the device reports on it
	Manifest  string // signed statement about the image; "" if there is none
	Signature string // of the manifest, base64
	// Told sees that the call was sent, answered or not sent, as it happens; it
	// must not block. Kinds: sent, answer, job (the device took the order for the
	// named job), refused, late_answer, not_sent. Every
	// order gets sent or not_sent, also if [Calls.Call] fails; the detail of
	// not_sent and refused is "code: message".
	Told func(Evidence)
	// Patience is how long the call waits for its evidence.
	Patience time.Duration
	// Done ends the call when the attempt was judged otherwise; may be nil.
	Done <-chan struct{}
}

func (r CallRequest) isFanOut() bool { return r.FanOut != uuid.Nil }

// URLMaker makes one-time addresses for the url arguments of calls.
type URLMaker interface {
	UploadURL(ctx context.Context, device DeviceID, call uuid.UUID, ttl time.Duration) (string, error)
	PreviewURL(ctx context.Context, device DeviceID, call uuid.UUID, picture string, ttl time.Duration) (string, error)
	CoreDumpURL(ctx context.Context, device DeviceID, call uuid.UUID, ttl time.Duration) (string, error)
}

// A Watcher reports what is observed about a device, in order, until stop.
type Watcher interface {
	Watch(id DeviceID) (seen <-chan Evidence, stop func())
}

// CallsOptions configures [Calls]. All but Log, Now and Observe are required.
type CallsOptions struct {
	Store   CallStore
	Targets *Targets
	Link    Link
	Watcher Watcher
	URLs    URLMaker
	Events  *Events
	Log     *slog.Logger
	Now     func() time.Time
	Observe func(*Call) // sees every outcome, for metrics
}

// Calls makes tool calls and keeps the record of each: the one gate through
// which people, programs, models and campaigns reach devices.
//
// A call is made at most once. What fleetd cannot know it calls unknown or
// timed_out, and never sends again by itself.
type Calls struct {
	CallStore
	o       CallsOptions
	gate    gate
	settler *settler // completes records whose writes failed

	running sync.WaitGroup
	mu      sync.Mutex
	first   uuid.UUID // strays of an earlier process have lower ids
	stopped bool
	stop    context.CancelCauseFunc
	life    context.Context // ends when Shutdown gives up waiting
}

var errStopping = errors.New("fleetd is stopping")

// NewCalls returns the service. Call [Calls.Shutdown] before closing its store.
func NewCalls(o CallsOptions) *Calls {
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(*Call) {}
	}
	life, stop := context.WithCancelCause(context.Background())
	s := &Calls{CallStore: o.Store, o: o, life: life, stop: stop, first: uuid.Must(uuid.NewV7())}
	s.settler = newSettler(o.Store, o.Log, s.announce)
	return s
}

// Call makes a call and waits for its outcome. A refusal, a device that is
// offline, or one that does not answer is an outcome, not an error: an error
// means that there is no record of the call, or none of its outcome yet: then
// fleetd completes the record as soon as the database allows. The call goes on
// if ctx ends meanwhile.
func (s *Calls) Call(ctx context.Context, r CallRequest) (Call, error) {
	a, err := s.begin(ctx, r)
	if err != nil {
		return Call{}, err
	}
	defer s.running.Done()
	err = a.run()
	return *a.call, err
}

// Start makes a call and returns its record at once, final only if it was not
// sent. The outcome comes as an [EventCall] and in the record.
func (s *Calls) Start(ctx context.Context, r CallRequest) (Call, error) {
	a, err := s.begin(ctx, r)
	if err != nil {
		return Call{}, err
	}
	record := *a.call
	go func() {
		defer s.running.Done()
		if err := a.run(); err != nil {
			s.o.Log.Error("outcome of a call not stored", "call", record.ID, "device", record.Device, "err", err)
		}
	}()
	return record, nil
}

// Shutdown refuses new calls, gives those in flight a moment to end, and
// closes the rest as canceled or unknown. It returns when all are on record, or
// after [settleGrace] without a database.
func (s *Calls) Shutdown() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	grace := time.AfterFunc(stopGrace, func() { s.stop(errStopping) })
	defer grace.Stop()
	s.running.Wait()
	s.settler.close()
}

// enter counts a call as running, unless fleetd is stopping.
func (s *Calls) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return Refuse(ErrUnavailable, "stopping")
	}
	if s.settler.full() {
		return Refuse(ErrUnavailable, "database_unavailable")
	}
	s.running.Add(1)
	return nil
}

// begin judges a request and puts the call on record: final if it cannot be
// made, sent if the device is idle, else pending. On success the caller owes
// run and running.Done.
func (s *Calls) begin(ctx context.Context, r CallRequest) (*attempt, error) {
	a, err := s.record(ctx, r)
	if err != nil {
		r.Firmware.tell(Evidence{At: s.o.Now(), Kind: EvidenceNotSent, Detail: CleanText("not_recorded: "+err.Error(),
			maxToldDetail)})
	}
	return a, err
}

func (s *Calls) record(ctx context.Context, r CallRequest) (*attempt, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	a, err := s.prepare(ctx, r)
	if err == nil {
		if err = s.o.Store.InsertCall(context.WithoutCancel(ctx), a.call); err != nil {
			err = a.notInserted(err)
		}
	}
	if err != nil {
		if a != nil && a.turn != nil {
			a.turn.Done()
		}
		s.running.Done()
		return nil, err
	}
	s.announce(a.call)
	return a, nil
}

func (s *Calls) prepare(ctx context.Context, r CallRequest) (*attempt, error) {
	if err := checkRequest(r); err != nil {
		return nil, err
	}
	r.now = s.o.Now()
	t, err := s.o.Targets.get(ctx, r.Device, r.now)
	if err != nil {
		return nil, err
	}
	a := &attempt{calls: s, call: s.newCall(r), wire: r.Arguments, order: r.Firmware, stalled: r.stalled}
	if no := s.admit(ctx, a, t, r); no != nil {
		a.close(no.state, &no.err)
		return a, nil
	}
	if err := a.queue(r.UnlessOffline); err != nil {
		return nil, err
	}
	return a, nil
}

// checkRequest refuses what is not worth a record: it cannot be stored.
func checkRequest(r CallRequest) error {
	switch {
	case r.Tool == "" || len(r.Tool) > 200:
		return Refuse(ErrInvalid, "invalid_tool.length", "limit", 200)
	case len(r.Arguments) > MaxArgumentBytes:
		return Refuse(ErrInvalid, "arguments_too_large", "size", len(r.Arguments), "limit", MaxArgumentBytes)
	case len(r.Arguments) > 0 && !json.Valid(r.Arguments):
		return Refuse(ErrInvalid, "invalid_arguments.not_json")
	case r.Firmware != nil && (r.Tool != ToolUpgradeFirmware || r.Firmware.URL == "" || r.Firmware.Patience <= 0):
		return Refuse(ErrInvalid, "invalid_order", "tool", ToolUpgradeFirmware)
	case r.Timeout < 0 || r.Timeout > MaxCallTimeout:
		return Refuse(ErrInvalid, "invalid_timeout", "limit_ms", MaxCallTimeout)
	}
	return nil
}

// admit fills in the url argument that fleetd owns and asks the gate.
func (s *Calls) admit(ctx context.Context, a *attempt, t *target, r CallRequest) *refusal {
	if r.Firmware != nil {
		tool, _ := t.inventory.Tool(r.Tool)
		r.Arguments = a.fillOrder(tool.InputSchema)
	}
	if _, offered := t.inventory.Tool(r.Tool); offered && OwnsURL(r.Tool) {
		given, err := decodeObject(r.Arguments)
		if err != nil {
			return invalid(notAnObject(err))
		}
		if _, set := given["url"]; set {
			return invalid(NewCallError("url_is_ours"))
		}
		given["url"] = "http://fleetd.invalid/"
		r.Arguments, _ = json.Marshal(given)
	}
	if no := s.gate.check(t, r); no != nil {
		return no
	}
	if !OwnsURL(r.Tool) {
		return nil
	}
	if err := a.fillURL(ctx, r); err != nil {
		s.o.Log.Error("no one-time link", "device", r.Device, "tool", r.Tool, "err", err)
		return refuse(NewCallError("link_failed"))
	}
	return nil
}

func (s *Calls) newCall(r CallRequest) *Call {
	c := &Call{ID: s.newCallID(r.now), Device: r.Device, Tool: r.Tool, Arguments: r.Arguments, Actor: r.Actor,
		FanOut: r.FanOut, State: CallPending, Timeout: r.Timeout, CreatedAt: r.now}
	if len(c.Arguments) == 0 {
		c.Arguments = json.RawMessage("{}")
	}
	if r.Firmware != nil {
		c.Timeout = r.Firmware.Patience
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout(r.Tool)
	}
	return c
}

// callIDSlack is how far the time in a call's id may lie from its creation.
const callIDSlack = time.Minute

// newCallID makes the id of a call made now. [uuid.NewV7] never goes back: once
// the clock was set back, its ids carry a time that lies ahead, for as long as
// the clock was wrong, and the store finds a call's partition by that time.
func (s *Calls) newCallID(now time.Time) uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	if seconds, nanoseconds := id.Time().UnixTime(); now.Sub(time.Unix(seconds, nanoseconds)).Abs() > callIDSlack {
		var at [8]byte
		binary.BigEndian.PutUint64(at[:], uint64(now.UnixMilli())<<16)
		copy(id[:6], at[:])
		s.mu.Lock()
		defer s.mu.Unlock()
		if bytes.Compare(id[:], s.first[:]) < 0 {
			s.first = id
		}
	}
	return id
}

// announce tells live views of a call. The record is copied: views read it
// while the call goes on.
func (s *Calls) announce(c *Call) {
	if s.o.Events.Idle() {
		return
	}
	record := *c
	s.o.Events.Publish(Event{Kind: EventCall, At: s.o.Now(), Device: c.Device, Call: &record})
}
