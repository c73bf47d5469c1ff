package voice

import (
	"context"
	"net"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
	"fleetd/fleet/upstream"
)

// A Vision is the address where an upstream answers questions about pictures.
type Vision struct {
	URL   string `json:"url"`
	Token string `json:"token"`

	dial outbound.DialFunc
}

// maxVisionToken limits the token, which is sent in a header.
const maxVisionToken = 4000

// From returns the address as one that the upstream at the address written handed out.
func (v Vision) From(guard *outbound.Guard, written string) Vision {
	v.dial = guard.DialFrom(written)
	return v
}

// Check returns nil if pictures can be sent to the address.
func (v *Vision) Check() error {
	if err := upstream.CheckURL(v.URL, "http", "https"); err != nil {
		return err
	}
	if !plainToken(v.Token, maxVisionToken) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_upstream_secret.form", "limit", maxVisionToken)
	}
	return nil
}

// plainToken reports whether the text can be part of a header.
func plainToken(token string, limit int) bool {
	return len(token) <= limit && fleet.CleanText(token, limit) == token
}

// Dial connects to the address under the rules for addresses handed out by a voice server.
func (v *Vision) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return v.dial(ctx, network, addr)
}

// setVision stores the upstream's address for pictures, if pictures can be sent there.
func (c *conversation) setVision(v Vision) {
	if v.URL == "" {
		return
	}
	if err := v.Check(); err != nil {
		c.relay.log.Warn("the voice server's address for pictures cannot be used", "device", c.device.ID, "upstream",
			c.server.Name, "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v = v.From(c.server.Guard, c.server.Written())
	c.vision = v
	if on := c.relay.o.OnVision; on != nil {
		on(c.id, v)
	}
}

// Vision returns the address for pictures taken by calls of an open conversation's upstream.
// conversation is the id of the calling principal.
func (r *Relay) Vision(conversation string, id fleet.DeviceID) (Vision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		if c.device.ID == id && c.id.String() == conversation {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.vision, c.vision.URL != ""
		}
	}
	return Vision{}, false
}
