package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/internal/bounded"
)

const (
	maxByToken = 16 // connections of one token
	maxAgents  = 1000

	failuresPerMinute = 30 // wrong tokens from one address

	actTimeout = 15 * time.Second // reading rights, or opening a session
)

// Servers are the MCP servers of the fleet.
type Servers interface {
	// Open opens a session with the server of a device, or of the whole fleet for "".
	Open(ctx context.Context, by fleet.Principal, device fleet.DeviceID, t mcp.Transport) (Session, error)
	// Online returns the devices that the principal sees and that are connected, at most limit.
	Online(ctx context.Context, by fleet.Principal, limit int) ([]Server, error)
}

// A Session is open with one server.
type Session interface {
	// Received records the rights of the sender of the message that is about to be read.
	Received(by fleet.Principal)
	Close()
}

// A Server is a device as an MCP server.
type Server struct {
	ID          fleet.DeviceID
	Kind        fleet.DeviceKind
	Name, Board string
}

// Options configures a [Service]. All fields but Log are required.
type Options struct {
	// Authenticate returns the principal of a token, and counts one request against its limit.
	Authenticate func(ctx context.Context, token string) (fleet.Principal, error)
	// Follow returns a context that ends soon after p lost its access or has another; its cause
	// matches [fleet.ErrActorGone] in the first case.
	Follow  func(ctx context.Context, p fleet.Principal) (context.Context, context.CancelFunc)
	Servers Servers
	Events  *fleet.Events
	Text    func(err error) string // of an error, for a model
	Log     *slog.Logger
}

// A Service admits agents. It implements [edge.Agents].
type Service struct {
	o        Options
	log      *slog.Logger
	failures *bounded.Cache[string, *rate.Limiter] // by address
	changed  atomic.Bool                           // a device's presence may have changed

	mu      sync.Mutex
	clients map[*client]struct{}
	byToken map[string]int
}

var _ edge.Agents = (*Service)(nil)

// New returns a service. [Service.Run] announces changes of presence.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{o: o, log: o.Log, failures: bounded.New[string, *rate.Limiter](4096),
		clients: map[*client]struct{}{}, byToken: map[string]int{}}
}

// announceEvery is the shortest interval between two announcements of changes.
const announceEvery = 500 * time.Millisecond

// Run announces changes of presence to agents until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	sub := s.o.Events.Subscribe(1, func(e *fleet.Event) bool {
		if e.Device != "" {
			s.changed.Store(true)
		}
		return false // an event is only a hint
	}, fleet.EventPresence, fleet.EventDevice)
	defer sub.Close()
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s.changed.Swap(false) {
			for _, c := range s.connected() {
				c.announceSoon()
			}
		}
	}
}

func (s *Service) connected() (all []*client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		all = append(all, c)
	}
	return all
}

// Admit implements [edge.Agents].
func (s *Service) Admit(said edge.AgentConnect) (edge.Agent, error) {
	failures, known := s.failures.Get(said.RemoteAddr)
	if known && failures.Tokens() < 1 {
		return nil, fleet.Refuse(fleet.ErrTooMany, "too_many_attempts.token")
	}
	ctx, cancel := context.WithTimeout(context.Background(), actTimeout)
	defer cancel()
	by, err := s.o.Authenticate(ctx, said.Token)
	if errors.Is(err, fleet.ErrForbidden) {
		if !known {
			failures = rate.NewLimiter(rate.Every(time.Minute/failuresPerMinute), failuresPerMinute)
			s.failures.Add(said.RemoteAddr, failures)
		}
		failures.Allow()
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byToken[by.ID] >= maxByToken || len(s.clients) >= maxAgents {
		return nil, fleet.Refuse(fleet.ErrTooMany, "too_many_agents", "limit", maxByToken)
	}
	return newClient(s, said, by), nil
}

// join counts a client that is connected.
func (s *Service) join(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[c] = struct{}{}
	s.byToken[c.by.ID]++
}

func (s *Service) leave(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c)
	if s.byToken[c.by.ID]--; s.byToken[c.by.ID] == 0 {
		delete(s.byToken, c.by.ID)
	}
}
