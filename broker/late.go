package broker

import (
	"slices"

	"fleetd/fleet"
	"fleetd/mcp"
)

// maxSent is how many given-up calls of a device are remembered. A device
// answers in order, so an answer to an older one is not to be expected.
const maxSent = 16

// A sentCall is a call that was sent. It is remembered from before the sending
// until its answer, so that an answer finds it at any moment.
type sentCall struct {
	id   int32
	tool string
	late func(fleet.Answer)

	// Under device.mu.
	givenUp bool
	answer  *mcp.Answer // came between the session's giving up and giveUp
}

func (d *device) remember(s *sentCall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.sent) >= maxSent {
		if i := slices.IndexFunc(d.sent, func(s *sentCall) bool { return s.givenUp }); i >= 0 {
			d.sent = slices.Delete(d.sent, i, i+1)
		}
	}
	d.sent = append(d.sent, s)
}

// settle forgets a call that was answered in time or not sent.
func (d *device) settle(s *sentCall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(s)
}

func (d *device) drop(s *sentCall) {
	if i := slices.Index(d.sent, s); i >= 0 {
		d.sent = slices.Delete(d.sent, i, i+1)
	}
}

// giveUp leaves the call to its late answer, unless that has just come.
func (d *device) giveUp(s *sentCall) (mcp.Answer, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.answer != nil {
		d.drop(s)
		return *s.answer, true
	}
	s.givenUp = true
	return mcp.Answer{}, false
}

// answerTo finds the call that a answers and returns it if it was given up.
func (d *device) answerTo(a mcp.Answer) *sentCall {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.sent, func(s *sentCall) bool { return int64(s.id) == a.ID })
	if i < 0 {
		return nil
	}
	s := d.sent[i]
	if !s.givenUp {
		s.answer = &a
		return nil
	}
	d.sent = slices.Delete(d.sent, i, i+1)
	return s
}

// unmatched takes an answer that no request of this connection waits for.
func (c *connection) unmatched(a mcp.Answer) {
	c.answered()
	s := c.device.answerTo(a)
	if s == nil {
		c.broker.stats.unmatched.Add(1)
		return
	}
	c.broker.stats.late.Add(1)
	if s.late != nil {
		c.broker.late.Go(func() { s.late(toAnswer(s.tool, a.Result, a.Err)) })
	}
}
