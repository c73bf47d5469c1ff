package feed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	mqtt "github.com/mochi-mqtt/server/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/call"
	"fleetd/fleet/record"
	"fleetd/internal/bounded"
)

const (
	maxByToken = 16 // connections of one token
	maxClients = 500
	maxSockets = maxClients + 100 // including those that have not sent their CONNECT
	maxFilters = 4096             // of one client; Home Assistant subscribes once for each device

	maxPacket        = 64 << 10 // bytes that a client may send
	maxFilter        = 256      // bytes of a filter
	maxClientID      = 128
	connectTimeout   = 10 * time.Second // from accept to an accepted CONNECT, TLS included
	writeTimeout     = 10 * time.Second // until a socket that accepts no bytes is closed
	actTimeout       = 15 * time.Second // reading rights or devices, or making the record of a call
	stopTimeout      = 5 * time.Second
	defaultKeepalive = 120   // seconds
	maxKeepalive     = 43690 // mochi multiplies by 1.5 in 16 bits

	failuresPerMinute = 30 // wrong tokens from one address
)

// A Log is the sealed record.
type Log interface {
	Status() record.Status
	Read(ctx context.Context, first, end int64) ([]record.Entry, error)
}

// Devices reads devices, narrowed to the scope of the context.
type Devices interface {
	Devices(ctx context.Context, f fleet.DeviceFilter) (fleet.Page[fleet.Device], error)
	DevicesByID(ctx context.Context, ids []fleet.DeviceID) ([]fleet.Device, error)
	Device(ctx context.Context, id fleet.DeviceID) (fleet.Device, error)
	Inventory(ctx context.Context, id string) (*fleet.Inventory, error)
}

// Options configures a [Service]. An address and all fields below it are required, but for Log.
type Options struct {
	Addr      string      // plain MQTT; "" for none
	TLSAddr   string      // MQTT over TLS; "" for none
	TLSConfig *tls.Config // required with TLSAddr

	// HomeAssistant also serves Home Assistant: discovery, states and commands.
	HomeAssistant      bool
	Version, PublicURL string // of fleetd, for Home Assistant

	// Authenticate returns the principal of a token, and counts one request against its limit.
	Authenticate func(ctx context.Context, token string) (fleet.Principal, error)
	// Follow returns a context that ends soon after p lost its access or has another; its cause
	// matches [fleet.ErrActorGone] in the first case.
	Follow    func(ctx context.Context, p fleet.Principal) (context.Context, context.CancelFunc)
	Authority fleet.Authority
	Record    Log
	Devices   Devices
	// Campaign returns [fleet.ErrNotFound] if the campaign does not exist for the context.
	Campaign func(ctx context.Context, id uuid.UUID) error
	Audit    audit.Store
	// Call makes a call and returns when it is on record.
	Call   func(ctx context.Context, r call.Request) (fleet.Call, error)
	Events *fleet.Events
	Log    *slog.Logger
}

// A Service is the broker.
type Service struct {
	o        Options
	log      *slog.Logger
	server   *mqtt.Server
	tcp, tls *listener                             // nil if off
	failures *bounded.Cache[string, *rate.Limiter] // by address
	changes  changes
	stats    counters

	mu      sync.Mutex
	clients map[string]*client // by mochi's name
	byToken map[string]int
}

type counters struct {
	published, slow, tooLong, refused, commands atomic.Int64
}

// Stats are the numbers of a service since its start.
type Stats struct {
	Connections int64
	Published   int64 // messages written to clients
	Slow        int64 // clients that lost their connection because they did not keep up
	TooLong     int64 // messages that were longer than their client accepts
	Refused     int64 // refused CONNECTs
	Commands    int64 // commands of Home Assistant that became a call
}

// Stats returns the numbers now.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.stats
	return Stats{Connections: int64(len(s.clients)), Published: c.published.Load(), Slow: c.slow.Load(),
		TooLong: c.tooLong.Load(), Refused: c.refused.Load(), Commands: c.commands.Load()}
}

// New returns a service and binds its addresses. [Service.Run] starts it.
func New(o Options) (*Service, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.TLSAddr != "" && o.TLSConfig == nil {
		return nil, errors.New("feed: MQTT over TLS needs a certificate")
	}
	s := &Service{o: o, log: o.Log, failures: bounded.New[string, *rate.Limiter](4096), server: newServer(),
		clients: map[string]*client{}, byToken: map[string]int{}}
	if err := s.server.AddHook(&hook{all: s}, nil); err != nil {
		return nil, fmt.Errorf("feed: %w", err)
	}
	return s, s.listen()
}

// newServer returns mochi's server without what the feed does not offer. Its records contain
// packets, so it has no logger.
func newServer() *mqtt.Server {
	c := mqtt.NewDefaultServerCapabilities()
	c.MaximumClients = math.MaxInt64 // admit limits them
	c.MaximumClientWritesPending = 1 // clients have writers of their own
	c.MaximumPacketSize = maxPacket
	c.MaximumSessionExpiryInterval = 0
	c.MaximumInflight = 32
	c.ReceiveMaximum = 32
	c.MaximumQos = 1
	c.TopicAliasMaximum = 0
	c.RetainAvailable = 0
	c.SharedSubAvailable = 0
	c.SubIDAvailable = 0
	c.Compatibilities.NoInheritedPropertiesOnAck = true
	return mqtt.New(&mqtt.Options{Capabilities: c, ClientNetReadBufferSize: 1024, Logger: slog.New(slog.DiscardHandler)})
}

// Run serves clients until ctx ends, then closes their connections within a few seconds.
func (s *Service) Run(ctx context.Context) error {
	if s.o.HomeAssistant {
		sub := s.o.Events.Subscribe(1, func(e *fleet.Event) bool {
			s.changes.note(e.Device)
			return false // an event is only a hint
		}, fleet.EventPresence, fleet.EventDevice, fleet.EventInventory)
		defer sub.Close()
	}
	// Mochi's Serve would also publish topics about itself.
	s.server.Listeners.ServeAll(s.server.EstablishConnection)
	var parts errgroup.Group
	parts.Go(func() error { s.follow(ctx); return nil })
	parts.Go(func() error { s.announceChanges(ctx); return nil })
	_ = parts.Wait() // they end with ctx
	return s.shutdown()
}

// connected returns the clients of now.
func (s *Service) connected() []*client {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*client, 0, len(s.clients))
	for _, c := range s.clients {
		all = append(all, c)
	}
	return all
}

// join counts a client that is connected.
func (s *Service) join(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[c.mqtt.ID] = c
	s.byToken[c.by.ID]++
}

func (s *Service) leave(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[c.mqtt.ID] == c {
		delete(s.clients, c.mqtt.ID)
	}
	if s.byToken[c.by.ID]--; s.byToken[c.by.ID] == 0 {
		delete(s.byToken, c.by.ID)
	}
}

// authenticate returns the principal of a token, and limits wrong tokens from one address.
func (s *Service) authenticate(address, token string) (fleet.Principal, error) {
	failures, known := s.failures.Get(address)
	if known && failures.Tokens() < 1 {
		return fleet.Principal{}, fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.token")
	}
	ctx, cancel := context.WithTimeout(context.Background(), actTimeout)
	defer cancel()
	by, err := s.o.Authenticate(ctx, token)
	if errors.Is(err, fleet.ErrForbidden) {
		if !known {
			failures = rate.NewLimiter(rate.Every(time.Minute/failuresPerMinute), failuresPerMinute)
			s.failures.Add(address, failures)
		}
		failures.Allow()
	}
	return by, err
}

// full reports whether the principal, or all together, have as many connections as they may.
func (s *Service) full(by fleet.Principal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byToken[by.ID] >= maxByToken || len(s.clients) >= maxClients
}
