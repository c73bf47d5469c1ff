package feed

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/origin"
)

const (
	maxHomes       = 16  // clients that subscribe for Home Assistant
	maxHomeDevices = 500 // announced to one of them

	announceEvery = 500 * time.Millisecond // shortest interval between two announcements of changes
)

// statusTopic is where Home Assistant says that it has started.
const statusTopic = discoveryPrefix + "status"

// changes collects the devices that may have changed.
type changes struct {
	mu  sync.Mutex
	ids map[fleet.DeviceID]struct{}
}

func (c *changes) note(ids ...fleet.DeviceID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		c.ids = map[fleet.DeviceID]struct{}{}
	}
	for _, id := range ids {
		if id != "" {
			c.ids[id] = struct{}{}
		}
	}
}

func (c *changes) take() (ids []fleet.DeviceID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.ids {
		ids = append(ids, id)
	}
	c.ids = nil
	return ids
}

// news is what the writer of a client has to announce.
type news struct {
	filters []string                         // subscribed since the last announcement
	devices map[fleet.DeviceID]*fleet.Device // that may have changed; nil for one that has gone
	again   bool                             // everything, since Home Assistant started
}

// A home is the devices of a client's Home Assistant, as they were last announced or would have been with a filter
// for them.
type home struct {
	loaded bool
	known  map[fleet.DeviceID]announced
}

// announced are the payloads of a device.
type announced struct{ config, state string }

// announceChanges passes on changed devices to the clients of Home Assistant.
func (s *Service) announceChanges(ctx context.Context) {
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ids := s.changes.take()
		homes := slices.DeleteFunc(s.connected(), func(c *client) bool { return !c.isHome.Load() })
		if len(homes) == 0 {
			continue // a home reads all devices first
		}
		for part := range slices.Chunk(ids, readChunk) {
			found, err := s.o.Devices.DevicesByID(ctx, part)
			if err != nil {
				if ctx.Err() == nil {
					s.log.Warn("devices not read for Home Assistant; trying again", "err", err)
				}
				s.changes.note(part...)
				continue
			}
			for _, c := range homes {
				c.changed(part, found)
			}
		}
	}
}

func (c *client) changed(ids []fleet.DeviceID, found []fleet.Device) {
	c.mu.Lock()
	if c.news.devices == nil {
		c.news.devices = map[fleet.DeviceID]*fleet.Device{}
	}
	for _, id := range ids {
		c.news.devices[id] = nil
	}
	for i := range found {
		c.news.devices[found[i].ID] = &found[i]
	}
	c.mu.Unlock()
	signal(c.wake)
}

// mayBeHome reports whether the client may subscribe for Home Assistant.
func (c *client) mayBeHome() bool {
	if c.isHome.Load() {
		return true
	}
	homes := 0
	for _, other := range c.all.connected() {
		if other.isHome.Load() {
			homes++
		}
	}
	if homes >= maxHomes {
		return false
	}
	c.isHome.Store(true)
	return true
}

// announce sends what is new. It returns false if the connection has ended.
func (c *client) announce() bool {
	c.mu.Lock()
	n := c.news
	c.news = news{}
	c.mu.Unlock()
	if len(n.filters) == 0 && len(n.devices) == 0 && !n.again {
		return true
	}
	if !c.home.loaded && len(n.filters) == 0 && !n.again {
		return true // the first subscription reads all devices
	}
	ctx, cancel := context.WithTimeout(c.life, actTimeout)
	defer cancel()
	a := &announcement{c: c, news: n, fresh: mqtt.NewTopicsIndex(), inventories: map[string]*fleet.Inventory{}}
	for _, f := range n.filters {
		a.fresh.Subscribe(self, packets.Subscription{Filter: f})
	}
	open, err := a.send(ctx)
	if err != nil && c.life.Err() == nil {
		c.all.log.Warn("devices not announced to Home Assistant; trying again", "client", c.id, "err", err)
		c.mu.Lock()
		c.news.filters, c.news.again = append(n.filters, c.news.filters...), true
		c.mu.Unlock()
		time.AfterFunc(retryAfter, func() { signal(c.wake) })
	}
	return open
}

// An announcement sends to one client.
type announcement struct {
	c           *client
	news        news
	fresh       *mqtt.TopicsIndex // of the new filters
	inventories map[string]*fleet.Inventory
}

func (a *announcement) send(ctx context.Context) (open bool, err error) {
	h := &a.c.home
	if !h.loaded || a.news.again {
		return a.load(ctx)
	}
	for id, d := range a.news.devices {
		if open, err = a.device(ctx, id, d); !open || err != nil {
			return open, err
		}
	}
	if len(a.news.filters) == 0 {
		return true, nil
	}
	for id, known := range h.known {
		if _, done := a.news.devices[id]; !done && !a.publish(id, known, known) {
			return false, nil
		}
	}
	return true, nil
}

// load reads all devices and announces them.
func (a *announcement) load(ctx context.Context) (open bool, err error) {
	h, seen, count := &a.c.home, map[fleet.DeviceID]bool{}, 0
	f := fleet.DeviceFilter{Limit: fleet.MaxLimit}
	for {
		page, err := a.c.all.o.Devices.Devices(fleet.WithScope(ctx, a.c.by), f)
		if err != nil {
			return true, err
		}
		for _, d := range page.Items {
			if count++; count > maxHomeDevices {
				break
			}
			seen[d.ID] = true
			if open, err := a.device(ctx, d.ID, &d); !open || err != nil {
				return open, err
			}
		}
		if f.Cursor = page.Next; f.Cursor == "" || count > maxHomeDevices {
			break
		}
	}
	if count > maxHomeDevices {
		a.c.all.log.Warn("more devices than Home Assistant gets; use a token with a scope", "client", a.c.id,
			"limit", maxHomeDevices)
	}
	for id := range h.known {
		if !seen[id] {
			if open, err := a.device(ctx, id, nil); !open || err != nil {
				return open, err
			}
		}
	}
	h.loaded = true
	return true, nil
}

// device announces a device; nil, or one that the principal does not see, is removed.
func (a *announcement) device(ctx context.Context, id fleet.DeviceID, d *fleet.Device) (open bool, err error) {
	h := &a.c.home
	before, known := h.known[id]
	if d == nil || !a.c.by.Sees(*d) || d.RetiredAt != nil || d.Enrolment != fleet.EnrolmentEnrolled {
		delete(h.known, id)
		return !known || a.publish(id, before, announced{state: before.state}), nil
	}
	if !known && len(h.known) >= maxHomeDevices {
		return true, nil
	}
	inventory, found := a.inventories[d.InventoryID]
	if !found && d.InventoryID != "" {
		inventory, err = a.c.all.o.Devices.Inventory(ctx, d.InventoryID)
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return true, err
		}
		a.inventories[d.InventoryID] = inventory
	}
	now := announced{config: a.c.all.config(a.c.by, *d, inventory), state: stateOf(*d)}
	h.known[id] = now
	return a.publish(id, before, now), nil
}

// publish sends the payloads that changed, or that a new filter selects. Home Assistant needs the configuration
// before the state.
func (a *announcement) publish(id fleet.DeviceID, before, now announced) (open bool) {
	for _, m := range []struct{ topic, before, now string }{
		{configTopic(id), before.config, now.config}, {statePrefix + string(id), before.state, now.state}} {
		_, fresh := a.fresh.Subscribers(m.topic).Subscriptions[self]
		fresh = (fresh || a.news.again) && m.now != ""
		if m.before == m.now && !fresh {
			continue
		}
		qos, wanted := a.c.wants(m.topic)
		if wanted && !a.c.send(&message{m.topic, []byte(m.now)}, qos, fresh) {
			return false
		}
	}
	return true
}

// stateOf returns the state of a device for Home Assistant.
func stateOf(d fleet.Device) string {
	connected := "offline"
	if d.Presence == fleet.PresenceOnline {
		connected = "online"
	}
	data, _ := json.Marshal(struct { // strings
		Connected string         `json:"connected"`
		Presence  fleet.Presence `json:"presence"`
		Version   string         `json:"version"`
	}{connected, d.Presence, d.Version})
	return string(data)
}

// mayPublish allows what Home Assistant publishes: that it has started, and commands of tokens that may call.
func (c *client) mayPublish(topic string) bool {
	if !c.all.o.HomeAssistant {
		return false
	}
	_, _, command := parseCommand(topic)
	return topic == statusTopic || command && c.by.Role.Allows(fleet.RoleOperator)
}

func parseCommand(topic string) (id fleet.DeviceID, tool string, ok bool) {
	rest, ok := strings.CutPrefix(topic, commandPrefix)
	device, tool, more := strings.Cut(rest, "/")
	id, err := fleet.ParseDeviceID(device)
	return id, tool, ok && more && err == nil && string(id) == device && toolName.MatchString(tool)
}

// received handles a message to a permitted topic.
func (c *client) received(topic, payload string) {
	if topic == statusTopic {
		if payload == "online" && c.isHome.Load() {
			c.mu.Lock()
			c.news.again = true
			c.mu.Unlock()
			signal(c.wake)
		}
		return
	}
	id, tool, _ := parseCommand(topic)
	made, err := c.command(id, tool, payload)
	switch {
	case errors.Is(err, fleet.ErrActorGone):
		c.lostAccess(err)
	case err != nil:
		c.all.log.Warn("command of Home Assistant not carried out", "token", c.by.Name, "device", id, "tool", tool, "err", err)
	default:
		c.all.stats.commands.Add(1)
		c.all.log.Debug("command of Home Assistant", "token", c.by.Name, "call", made.ID)
	}
}

var errNoCommand = errors.New("the tool has no such command for this token")

// command makes a call with the rights that the token has now. Only what was, or would be, announced can be called.
func (c *client) command(id fleet.DeviceID, tool, payload string) (fleet.Call, error) {
	ctx, cancel := context.WithTimeout(c.life, actTimeout)
	defer cancel()
	by, err := c.all.o.Authenticate(ctx, c.token)
	if err != nil {
		if errors.Is(err, fleet.ErrForbidden) {
			err = errors.Join(err, fleet.ErrActorGone)
		}
		return fleet.Call{}, err
	}
	ctx = origin.With(fleet.WithScope(ctx, by), origin.Origin{Address: c.address,
		Client: origin.CleanClient("MQTT " + c.id)})
	d, err := c.all.o.Devices.Device(ctx, id)
	if err != nil {
		return fleet.Call{}, err
	}
	inventory, err := c.all.o.Devices.Inventory(ctx, d.InventoryID)
	if err != nil {
		return fleet.Call{}, err
	}
	t, found := inventory.Tool(tool)
	e, simple := entityOf(t)
	if !found || !simple || !mayCall(by, d, t) {
		return fleet.Call{}, errNoCommand
	}
	arguments, ok := e.arguments(payload)
	if !ok {
		return fleet.Call{}, errNoCommand
	}
	return c.all.o.Call(ctx, call.Request{Actor: by, Device: id, Tool: tool, Arguments: arguments})
}

// mayCall reports whether the principal gets a command for the tool. The gate judges each call.
func mayCall(by fleet.Principal, d fleet.Device, t fleet.Tool) bool {
	return by.RoleOn(d).Allows(fleet.RoleOperator) && by.SeesTool(t)
}
