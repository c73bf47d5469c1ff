package feed

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/fleet"
)

const (
	maxQueued      = 16384    // messages that wait for a client
	maxQueuedBytes = 16 << 20 // of their payloads
	maxUnconfirmed = 64       // messages of QoS 1 that a client has not acknowledged

	confirmTimeout  = 30 * time.Second // for the oldest of them, if there are that many
	farewellTimeout = time.Second      // for a DISCONNECT
)

// Prefixes of topics.
const (
	eventsPrefix    = "fleet/events/"
	statePrefix     = "fleet/state/"
	commandPrefix   = "fleet/command/"
	discoveryPrefix = "homeassistant/"
)

// self is the only name in the index of a client.
const self = "self"

// A message is sent to clients, which share it.
type message struct {
	topic   string
	payload []byte
}

// A client is one connection. Its writer sends all its messages.
type client struct {
	all     *Service
	mqtt    *mqtt.Client
	by      fleet.Principal
	id      string // of MQTT, as the client said it
	address string
	token   string
	index   *mqtt.TopicsIndex // of the client's own filters
	window  int               // unconfirmed messages that it accepts

	life    context.Context
	end     context.CancelFunc
	wake    chan struct{} // something is queued, or to be announced
	room    chan struct{} // a message was confirmed
	leaving atomic.Bool
	isHome  atomic.Bool // it has subscribed for Home Assistant

	readsEvents atomic.Bool // it has subscribed to entries
	work        sync.WaitGroup

	mu      sync.Mutex
	queue   []queued
	bytes   int
	pending map[uint16]struct{} // unconfirmed
	lastID  uint16
	news    news // for Home Assistant

	home home // belongs to the writer
}

type queued struct {
	*message
	qos byte
}

func newClient(s *Service, cl *mqtt.Client, by fleet.Principal, id, address, token string) *client {
	c := &client{all: s, mqtt: cl, by: by, id: id, address: address, token: token, index: mqtt.NewTopicsIndex(),
		window: maxUnconfirmed, wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
		pending: map[uint16]struct{}{}, home: home{known: map[fleet.DeviceID]announced{}}}
	if most := int(cl.Properties.Props.ReceiveMaximum); most > 0 {
		c.window = min(c.window, most)
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// start begins to send to the client. ended follows.
func (c *client) start() {
	c.all.join(c)
	c.all.log.Info("client of the feed connected", "token", c.by.Name, "client", c.id, "remote", c.address)
	c.work.Go(c.watch)
	c.work.Go(c.write)
}

// ended cleans up after the connection.
func (c *client) ended(started bool) {
	c.end()
	c.work.Wait()
	c.all.server.UnsubscribeClient(c.mqtt)
	if now, ok := c.all.server.Clients.Get(c.mqtt.ID); ok && now == c.mqtt { // after a panic
		c.all.server.Clients.Delete(c.mqtt.ID)
	}
	if started {
		c.all.leave(c)
		c.all.log.Info("client of the feed disconnected", "token", c.by.Name, "client", c.id)
	}
}

// watch ends the connection when the token no longer has the access with which it connected.
func (c *client) watch() {
	ctx, cancel := c.all.o.Follow(c.life, c.by)
	defer cancel()
	<-ctx.Done()
	if c.life.Err() != nil {
		return
	}
	c.lostAccess(context.Cause(ctx))
}

// lostAccess ends the connection of a client whose token is gone or has other rights.
func (c *client) lostAccess(cause error) {
	if errors.Is(cause, fleet.ErrActorGone) {
		c.leave(packets.ErrNotAuthorized)
	} else {
		c.leave(packets.ErrAdministrativeAction) // it may connect again
	}
}

// leave ends the connection. It does not wait for a socket that is stuck.
func (c *client) leave(why packets.Code) {
	if c.leaving.Swap(true) {
		return
	}
	c.end()
	go func() {
		stop := time.AfterFunc(farewellTimeout, func() { c.mqtt.Stop(why) })
		defer stop.Stop()
		c.say(why)
		c.mqtt.Stop(why)
	}()
}

// say sends a DISCONNECT. Versions before MQTT 5 define none from the server.
func (c *client) say(why packets.Code) {
	if c.mqtt.Properties.ProtocolVersion >= 5 {
		_ = c.mqtt.WritePacket(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect},
			ReasonCode: why.Code}) // it ends anyway
	}
}

// reject ends the connection from within its reader.
func (c *client) reject(why packets.Code) error {
	c.leave(why)
	return packets.ErrRejectPacket
}

func (c *client) maySubscribe(filter string) bool {
	if len(filter) > maxFilter || c.mqtt.State.Subscriptions.Len() >= maxFilters {
		return false
	}
	if strings.HasPrefix(filter, eventsPrefix) {
		return true
	}
	forHome := strings.HasPrefix(filter, discoveryPrefix) || strings.HasPrefix(filter, statePrefix)
	return forHome && c.all.o.HomeAssistant && c.mayBeHome()
}

func (c *client) subscribed(sub packets.Subscription) {
	isNew := c.index.Subscribe(self, packets.Subscription{Filter: sub.Filter, Qos: min(sub.Qos, 1)})
	if strings.HasPrefix(sub.Filter, eventsPrefix) {
		c.readsEvents.Store(true)
		return
	}
	if sub.RetainHandling == 2 || sub.RetainHandling == 1 && !isNew {
		return
	}
	c.mu.Lock()
	c.news.filters = append(c.news.filters, sub.Filter)
	c.mu.Unlock()
	signal(c.wake)
}

// wants reports whether the client has subscribed to the topic, and the QoS.
func (c *client) wants(topic string) (qos byte, ok bool) {
	sub, ok := c.index.Subscribers(topic).Subscriptions[self]
	return sub.Qos, ok
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// enqueue queues messages for the writer. A client that does not keep up loses its connection: it would not notice
// that a single message is missing.
func (c *client) enqueue(list []queued) {
	c.mu.Lock()
	for _, m := range list {
		c.bytes += len(m.payload)
	}
	c.queue = append(c.queue, list...)
	slow := len(c.queue) > maxQueued || c.bytes > maxQueuedBytes
	if slow {
		c.queue, c.bytes = nil, 0
	}
	c.mu.Unlock()
	if slow {
		c.tooSlow()
		return
	}
	signal(c.wake)
}

func (c *client) tooSlow() {
	if c.leaving.Load() {
		return
	}
	c.all.stats.slow.Add(1)
	c.all.log.Warn("connection ended: the client does not keep up with the feed", "token", c.by.Name, "client", c.id)
	c.leave(packets.ErrQuotaExceeded)
}

// load returns the share of the queue that is in use.
func (c *client) load() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(float64(len(c.queue))/maxQueued, float64(c.bytes)/maxQueuedBytes)
}

// write sends what is queued, and announces devices, until the connection ends.
func (c *client) write() {
	for {
		select {
		case <-c.life.Done():
			return
		case <-c.wake:
		}
		for c.life.Err() == nil {
			c.mu.Lock()
			list := c.queue
			c.queue, c.bytes = nil, 0
			c.mu.Unlock()
			if len(list) == 0 {
				break
			}
			for _, m := range list {
				if !c.send(m.message, m.qos, false) {
					return
				}
			}
		}
		if c.all.o.HomeAssistant && !c.announce() {
			return
		}
	}
}

// send writes one message. It returns false if the connection has ended.
func (c *client) send(m *message, qos byte, retain bool) bool {
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: qos, Retain: retain},
		TopicName: m.topic, Payload: m.payload}
	if qos > 0 {
		var ok bool
		if pk.PacketID, ok = c.reserve(); !ok {
			return false
		}
	}
	err := c.mqtt.WritePacket(pk)
	switch {
	case errors.Is(err, packets.ErrPacketTooLarge): // MQTT 5, 3.1.2.11.4: it counts as sent
		c.all.stats.tooLong.Add(1)
		c.confirmed(pk.PacketID)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.tooSlow()
		return false
	case err != nil:
		c.mqtt.Stop(err)
		return false
	default:
		c.all.stats.published.Add(1)
	}
	return c.life.Err() == nil
}

// reserve returns the packet identifier of a message of QoS 1, when the client accepts one more.
func (c *client) reserve() (uint16, bool) {
	timeout := time.NewTimer(confirmTimeout)
	defer timeout.Stop()
	for {
		c.mu.Lock()
		if len(c.pending) < c.window {
			id := c.lastID
			for used := true; used || id == 0; {
				id++
				_, used = c.pending[id]
			}
			c.lastID, c.pending[id] = id, struct{}{}
			c.mu.Unlock()
			return id, true
		}
		c.mu.Unlock()
		select {
		case <-c.room:
		case <-c.life.Done():
			return 0, false
		case <-timeout.C:
			c.tooSlow()
			return 0, false
		}
	}
}

// confirmed notes that the client has acknowledged a message.
func (c *client) confirmed(id uint16) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
	signal(c.room)
}
