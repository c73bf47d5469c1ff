package broker

import (
	"math"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/answer"
	"fleetd/mcp"
)

// maxSent is how many abandoned calls of a device are remembered. A device answers in order, so
// an older call is not expected to be answered.
const maxSent = 16

// A sentCall is a call that was sent. It is recorded before the call is sent and removed at its
// answer, so an answer always finds it.
type sentCall struct {
	id   int32
	tool string
	late func(fleet.Answer)

	// Under device.mu.
	givenUp bool
	answer  *mcp.Answer // arrived after the session gave up and before giveUp
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

// settle removes a call that was answered in time or not sent.
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

// giveUp leaves the call waiting for a late answer. If the answer has already arrived, giveUp
// returns it.
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

// answerTo finds the call that a answers and returns it if the call was given up.
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

// unmatched handles an answer that matches no pending request of this connection.
func (c *connection) unmatched(a mcp.Answer) {
	c.answered()
	b := c.broker
	switch s := c.device.answerTo(a); {
	case s != nil:
		b.stats.late.Add(1)
		if s.late != nil {
			b.late.Go(func() { s.late(answer.Of(s.tool, a.Result, a.Err)) })
		}
	case c.device.mayAnswerEarlier(a.ID, time.Since(b.began)):
		b.late.Go(func() {
			as := func(tool string) fleet.Answer { return answer.Of(tool, a.Result, a.Err) }
			if b.devices.AnsweredLate(c.Device, int32(a.ID), as) {
				b.stats.late.Add(1)
			} else {
				b.stats.unmatched.Add(1)
			}
		})
	default:
		b.stats.unmatched.Add(1)
	}
}

// earlierFor is how long after the start of this process a device may answer a call of an earlier
// one. It is longer than any call may take.
const earlierFor = 10 * time.Minute

// mayAnswerEarlier reports whether an answer may belong to a call of an earlier process. The domain
// is asked for few answers of each device, because a hostile device could send many.
func (d *device) mayAnswerEarlier(id int64, age time.Duration) bool {
	if id <= 0 || id > math.MaxInt32 || age > earlierFor {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.earlier++
	return d.earlier <= maxSent
}
