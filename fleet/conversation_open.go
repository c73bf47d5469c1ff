package fleet

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// An OpenConversation is a conversation in progress.
type OpenConversation struct {
	ID    uuid.UUID
	Since time.Time
	Ended <-chan struct{} // closed when the conversation has ended
}

// OpenConversations tracks the devices that are in a conversation now. The relay of
// conversations fills it. Calls that would interrupt a conversation check it, and pages mark
// the devices. It is in memory only, since no conversation outlives the process.
type OpenConversations struct {
	o  OpenConversationsOptions
	mu sync.RWMutex
	of map[DeviceID]openConversation
}

type openConversation struct {
	OpenConversation
	ended chan struct{}
}

// OpenConversationsOptions configures [OpenConversations]. The zero value is ready
// to use.
type OpenConversationsOptions struct {
	Events *Events        // nil publishes no events
	Free   func(DeviceID) // called when a device's conversation has ended; must not block
}

// NewOpenConversations returns an empty OpenConversations.
func NewOpenConversations(o OpenConversationsOptions) *OpenConversations {
	return &OpenConversations{o: o, of: make(map[DeviceID]openConversation)}
}

// Begin records the start of a conversation. It ends the device's previous conversation.
func (o *OpenConversations) Begin(c Conversation) {
	ended := make(chan struct{})
	o.mu.Lock()
	before, replaced := o.of[c.Device]
	o.of[c.Device] = openConversation{OpenConversation{ID: c.ID, Since: c.Begin, Ended: ended}, ended}
	o.mu.Unlock()
	if replaced {
		close(before.ended)
	}
	o.publish(c.Device, c.ID, c.Begin)
}

// End records the end of a conversation. It does nothing if the conversation is not open.
func (o *OpenConversations) End(device DeviceID, id uuid.UUID) {
	o.mu.Lock()
	c, open := o.of[device]
	if open = open && c.ID == id; open {
		delete(o.of, device)
	}
	o.mu.Unlock()
	if !open {
		return
	}
	close(c.ended)
	if o.o.Free != nil {
		o.o.Free(device)
	}
	o.publish(device, id, time.Now().UTC())
}

func (o *OpenConversations) publish(device DeviceID, id uuid.UUID, at time.Time) {
	if o.o.Events != nil {
		o.o.Events.Publish(Event{Kind: EventConversation, At: at, Device: device, Subject: id.String()})
	}
}

// Of returns the device's open conversation, if there is one.
func (o *OpenConversations) Of(device DeviceID) (OpenConversation, bool) {
	if o == nil {
		return OpenConversation{}, false
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	c, ok := o.of[device]
	return c.OpenConversation, ok
}

// Count returns the number of open conversations.
func (o *OpenConversations) Count() int {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return len(o.of)
}
