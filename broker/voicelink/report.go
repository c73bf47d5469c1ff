package voicelink

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/voice"
	"fleetd/fleet"
)

// Begin implements [voice.OpenConversations].
func (c *Client) Begin(v fleet.Conversation) {
	c.mu.Lock()
	c.open[v.ID] = v
	c.begun = append(c.begun, v.ID)
	c.mu.Unlock()
	c.signal()
}

// End implements [voice.OpenConversations].
func (c *Client) End(_ fleet.DeviceID, id uuid.UUID) {
	c.mu.Lock()
	_, open := c.open[id]
	delete(c.open, id)
	if open {
		c.ended = append(c.ended, id)
	}
	c.mu.Unlock()
	if open {
		c.signal()
	}
}

// Health sets the source of the health of voice servers. Call it before [Client.Run].
func (c *Client) Health(of func() []voice.HealthReport) { c.health = of }

// ReportAll makes the next report, which follows at once, contain all open conversations: another core
// leads.
func (c *Client) ReportAll() {
	c.mu.Lock()
	c.all = true
	c.mu.Unlock()
	c.signal()
}

func (c *Client) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

const (
	reportTimeout     = 10 * time.Second
	lastReportTimeout = 2 * time.Second
	reportPause       = 500 * time.Millisecond // after a failure
)

// Run reports which conversations are open, until ctx ends: at once when one begins or ends, and every
// few seconds, so that a core notices that it does not know them.
func (c *Client) Run(ctx context.Context) error {
	for {
		wait := c.o.ReportEvery
		if !c.report(ctx) {
			wait = reportPause
		}
		timer := time.NewTimer(wait)
		select {
		case <-c.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReportTimeout)
			defer cancel()
			c.report(last)
			return nil
		}
		timer.Stop()
	}
}

// report sends one report. It returns false if another must follow soon.
func (c *Client) report(ctx context.Context) bool {
	q := c.nextReport()
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var a reportAnswer
	err := c.ask(ctx, Question{Name: askReport, Repeat: true}, q, &a)
	if err == nil && !a.Again {
		return true
	}
	c.mu.Lock()
	c.all = true // what the core knows is not certain
	c.mu.Unlock()
	if err != nil {
		c.o.Log.Debug("open conversations not reported", "err", err)
		return false
	}
	c.signal()
	return true
}

func (c *Client) nextReport() reportRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	q := reportRequest{Incarnation: c.incarnation, Number: c.number, All: c.all, Ended: c.ended}
	if c.all {
		q.Ended = nil
		for _, v := range c.open {
			c.appendBegun(&q, v)
		}
	} else {
		for _, id := range c.begun {
			if v, open := c.open[id]; open {
				c.appendBegun(&q, v)
			}
		}
	}
	c.all, c.begun, c.ended = false, nil, nil
	if c.health != nil {
		for _, h := range c.health() {
			q.Health = append(q.Health, healthReport{h.ID, h.Changed, h.Health})
		}
	}
	return q
}

func (c *Client) appendBegun(q *reportRequest, v fleet.Conversation) {
	if t, ok := c.talks.Get(v.ID); ok {
		q.Begun = append(q.Begun, begun{t.pass, v.Begin})
	}
}
