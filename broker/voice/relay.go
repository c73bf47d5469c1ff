package voice

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Options configures a [Relay]. Upstream or Choose, Endpoint, Calls and Texts are required.
type Options struct {
	// Choose returns the voice server of a device, or false if it has none. It is called for each
	// conversation, and may wait for ChooseTimeout. After an error the conversation ends with
	// [fleet.EndedNoLeader].
	Choose func(ctx context.Context, h Hello) (u Upstream, ok bool, err error)
	// Upstream is the voice server of all devices if Choose is nil.
	Upstream Upstream

	Addr     string // UDP address for all conversations. Default: ":8884"
	Endpoint string // host:port at which devices reach Addr; port 0 means Addr's port

	Calls Caller
	// Programs are offered to the models of all upstreams that get tools. Nil: none are.
	Programs Programs
	Store    Records           // if nil, conversations are not recorded
	Open     OpenConversations // if nil, open conversations are not shown
	Texts    Texts

	// OnVision is called when an upstream of a conversation names its address for pictures. May be
	// nil.
	OnVision func(conversation uuid.UUID, v Vision)

	// MaxConversations limits open conversations. Default: 10,000.
	MaxConversations int
	// HelloTimeout limits connecting to the upstream and its hello; a device waits 10s in total.
	// Default: 9s.
	HelloTimeout time.Duration
	// CallTimeout limits how long the upstream waits for a tools/call. Default: 29s, since the
	// upstream gives up after 30s.
	CallTimeout time.Duration
	// ChooseTimeout limits Choose; the device's connection waits meanwhile. Default: 1s.
	ChooseTimeout time.Duration
	// OfferTimeout limits reading which tools a model may call. Default: 5s.
	OfferTimeout time.Duration
	// KeepRecords repeats to store a record for as long as Store is unavailable. By default records
	// are lost after some seconds.
	KeepRecords bool

	Log *slog.Logger
	Now func() time.Time // default: time.Now, in UTC
}

// A Hello is a device's request for a conversation.
type Hello struct {
	Device       fleet.DeviceID
	ClientID     string
	Conversation uuid.UUID // id of the conversation that would begin
}

// Records stores the records of conversations; [fleet.ConversationStore] implements it.
type Records interface {
	SaveConversations(ctx context.Context, list []fleet.Conversation) error
}

// OpenConversations is notified which devices are in a conversation now;
// [fleet.OpenConversations] implements it. Its methods do not wait.
type OpenConversations interface {
	Begin(c fleet.Conversation)
	End(device fleet.DeviceID, id uuid.UUID)
}

// A Caller makes calls; [call.Service] implements it.
type Caller interface {
	Make(ctx context.Context, r call.Request) (fleet.Call, error)
	Offered(ctx context.Context, p fleet.Principal, id fleet.DeviceID) (fleet.Device, []fleet.Tool, error)
}

// Texts returns the texts of codes, in the language of the people at the devices.
type Texts interface {
	// Ended returns the title and the text that a device shows after a failed conversation.
	Ended(how fleet.ConversationEnd) (title, text string)
	// Call returns the reason why a call has no result, for a model to speak.
	Call(c fleet.Call) string
	// Error returns the reason why no call was made.
	Error(err error) string
}

// A Relay relays conversations between devices and their upstreams.
type Relay struct {
	o      Options
	log    *slog.Logger
	socket *socket
	host   string // of the endpoint
	port   int

	lines  lines
	record recorder
	stats  counters

	life context.Context // ends when the relay stops
	end  context.CancelCauseFunc

	mu      sync.Mutex
	open    map[*conversation]struct{}
	stopped bool
	leftOut string         // the first tool of a program that the latest list left out
	running sync.WaitGroup // conversations
}

var _ edge.Voice = (*Relay)(nil)

// New creates a relay and binds its UDP address. [Relay.Run] starts it.
func New(o Options) (*Relay, error) {
	if o.Choose == nil {
		if err := o.Upstream.Check(); err != nil {
			return nil, fmt.Errorf("voice: %w", err)
		}
		o.Choose = func(context.Context, Hello) (Upstream, bool, error) { return o.Upstream, true, nil }
	}
	if o.Calls == nil || o.Texts == nil {
		return nil, errors.New("voice: Calls and Texts are required")
	}
	o.Addr = cmp.Or(o.Addr, ":8884")
	o.MaxConversations = cmp.Or(o.MaxConversations, 10_000)
	o.HelloTimeout = cmp.Or(o.HelloTimeout, 9*time.Second)
	o.CallTimeout = cmp.Or(o.CallTimeout, 29*time.Second)
	o.ChooseTimeout = cmp.Or(o.ChooseTimeout, time.Second) // the device waits 10s for its hello
	o.OfferTimeout = cmp.Or(o.OfferTimeout, recordTimeout)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	r := &Relay{o: o, log: o.Log, open: make(map[*conversation]struct{})}
	r.life, r.end = context.WithCancelCause(context.Background())
	r.record.init(o.Store, o.KeepRecords, o.Log)
	host, port, err := net.SplitHostPort(o.Endpoint)
	if err != nil || host == "" {
		return nil, fmt.Errorf("voice: %q is not an address for devices; use host:port", o.Endpoint)
	}
	if r.port, err = strconv.Atoi(port); err != nil || r.port < 0 || r.port > 65535 {
		return nil, fmt.Errorf("voice: %q has no port for devices; use host:port", o.Endpoint)
	}
	r.host = host
	if r.socket, err = listenUDP(o.Addr); err != nil {
		return nil, err
	}
	if r.port == 0 {
		r.port = r.Addr().(*net.UDPAddr).Port
	}
	return r, nil
}

// Addr returns the UDP address on which the relay receives audio.
func (r *Relay) Addr() net.Addr { return r.socket.conn.LocalAddr() }

const drainTimeout = 5 * time.Second

// Run relays until ctx ends. Then it ends the conversations, notifies their
// devices, and stores the records within a few seconds.
func (r *Relay) Run(ctx context.Context) error {
	reading := make(chan error, 1)
	go func() { reading <- r.socket.run() }()
	recording := make(chan struct{})
	go func() { defer close(recording); r.record.run() }()

	<-ctx.Done()
	r.mu.Lock()
	r.stopped = true
	for c := range r.open {
		go c.end(fleet.EndedByStop)
	}
	r.mu.Unlock()
	ended := make(chan struct{})
	go func() { defer close(ended); r.running.Wait() }()
	select {
	case <-ended:
	case <-time.After(drainTimeout):
		r.log.Warn("conversations did not end in time", "waited", drainTimeout)
	}
	r.end(errors.New("the relay stopped"))
	r.socket.close()
	err := <-reading
	r.record.close()
	<-recording
	return err
}

// choose asks for the voice server of a device, which may disconnect meanwhile.
func (r *Relay) choose(h Hello, lost <-chan struct{}) (Upstream, bool, error) {
	ctx, cancel := context.WithTimeout(r.life, r.o.ChooseTimeout)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-lost:
			cancel()
		case <-done:
		}
	}()
	return r.o.Choose(ctx, h)
}

// Begin implements [edge.Voice].
func (r *Relay) Begin(d edge.VoiceDevice, hello []byte) edge.Conversation {
	begin, id := time.Now(), uuid.Must(uuid.NewV7())
	server, ok, err := r.choose(Hello{d.ID, d.ClientID, id}, d.Lost)
	if !ok && err == nil {
		return nil
	}
	var asked struct {
		Audio json.RawMessage `json:"audio_params"`
	}
	_ = json.Unmarshal(hello, &asked) // features missing here are not offered to the upstream
	c := newConversation(r, d, server, id)
	c.helloAt = begin
	if c.audioOf(asked.Audio) != nil {
		asked.Audio = nil
	}
	up, _ := json.Marshal(struct { // these values came from JSON, so marshalling cannot fail
		Type      string          `json:"type"`
		Version   int             `json:"version"`
		Transport string          `json:"transport"`
		Audio     json.RawMessage `json:"audio_params,omitempty"`
	}{"hello", 1, "websocket", asked.Audio})
	up = withMembers(up, otherMembers(hello, "type", "version", "transport", "session_id", "audio_params"))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return nil
	}
	var refused fleet.ConversationEnd
	switch {
	case err != nil:
		refused = fleet.EndedNoLeader
	case len(r.open) >= r.o.MaxConversations:
		refused = fleet.EndedFull
	default:
		r.open[c] = struct{}{}
		if r.o.Open != nil {
			r.o.Open.Begin(c.summary())
		}
	}
	r.running.Add(1)
	c.line.open.Add(1)
	go c.run(up, refused)
	return c
}

func (r *Relay) leave(c *conversation) {
	if r.o.Open != nil {
		r.o.Open.End(c.device.ID, c.id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
	c.line.open.Add(-1)
	r.running.Done()
}

// A breaker refuses conversations at once while the upstream fails: after some failures in a row,
// only one conversation at a time tries the upstream again.
type breaker struct {
	mu       sync.Mutex
	failures int
	last     fleet.ConversationEnd
	retryAt  time.Time
}

const (
	breakAfter = 3
	retryAfter = 10 * time.Second
)

// allow returns "" if the upstream may be tried, otherwise the cause with which the conversation
// ends.
func (b *breaker) allow(now time.Time) fleet.ConversationEnd {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < breakAfter {
		return ""
	}
	if now.Before(b.retryAt) {
		return b.last
	}
	b.retryAt = now.Add(retryAfter)
	return ""
}

// note records the outcome of opening a conversation: "" is success.
func (b *breaker) note(how fleet.ConversationEnd, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch how {
	case "":
		b.failures = 0
	case fleet.EndedUnreachable, fleet.EndedNoHello, fleet.EndedNoWebSocket:
		b.failures++
		b.last, b.retryAt = how, now.Add(retryAfter)
	}
}

// Stats are the relay's counters since its start. A field marked "now" is a current value.
type Stats struct {
	Open        int                             // now
	Begun       int64                           // conversations
	Ended       map[fleet.ConversationEnd]int64 // conversations, by how they ended
	Hellos      [len(HelloBuckets) + 1]int64    // the upstream's answers to hello, by HelloBuckets
	HelloSum    time.Duration                   // total time of these answers
	Calls       int64                           // tools/call of the upstream's model
	AudioUp     int64                           // packets relayed to the upstream
	AudioDown   int64                           // packets sent to devices
	Lost        int64                           // packets from devices that did not arrive
	Refused     int64                           // packets of a conversation that were replayed, forged or damaged
	Late        int64                           // packets dropped because they waited too long
	Malformed   int64                           // datagrams that are not packets of audio
	Unknown     int64                           // datagrams that belong to no conversation
	Messages    int64                           // JSON messages relayed, in both directions
	NotRelayed  int64                           // JSON messages dropped: not understood, too long, or not allowed
	NotRecorded int64                           // records of conversations that were lost
	LeftOut     int64                           // now: tools of programs that the latest list left out
}

// HelloBuckets are the upper bounds of the buckets that count the time until the upstream's
// hello. A further bucket counts longer times.
var HelloBuckets = [...]time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond,
	300 * time.Millisecond, time.Second, 3 * time.Second}

type counters struct {
	begun, calls, audioUp, audioDown, late, messages, notRelayed, leftOut atomic.Int64

	mu       sync.Mutex
	ended    map[fleet.ConversationEnd]int64
	hellos   [len(HelloBuckets) + 1]int64
	helloSum time.Duration
	lost     int64 // of conversations that ended
	refused  int64
}

func (s *counters) hello(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := 0
	for i < len(HelloBuckets) && took > HelloBuckets[i] {
		i++
	}
	s.hellos[i]++
	s.helloSum += took
}

func (s *counters) end(how fleet.ConversationEnd, audio fleet.AudioCounts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = make(map[fleet.ConversationEnd]int64)
	}
	s.ended[how]++
	s.lost += audio.Lost
	s.refused += audio.Refused
}

// Stats returns the relay's counters.
func (r *Relay) Stats() Stats {
	s := &r.stats
	out := Stats{Begun: s.begun.Load(), Calls: s.calls.Load(), AudioUp: s.audioUp.Load(), AudioDown: s.audioDown.Load(),
		Late: s.late.Load(), Malformed: r.socket.malformed.Load(), Unknown: r.socket.unknown.Load(),
		Messages: s.messages.Load(), NotRelayed: s.notRelayed.Load(), NotRecorded: r.record.lost.Load(),
		LeftOut: s.leftOut.Load(), Ended: make(map[fleet.ConversationEnd]int64, len(fleet.ConversationEnds))}
	r.mu.Lock()
	out.Open = len(r.open)
	r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for how, n := range s.ended {
		out.Ended[how] = n
	}
	out.Hellos, out.HelloSum, out.Lost, out.Refused = s.hellos, s.helloSum, s.lost, s.refused
	return out
}
