package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleetd/fleet"
	"fleetd/mcp"
)

const (
	turnTimeout    = 30 * time.Second // for a turn in the line, behind calls
	listingTimeout = 2 * time.Minute  // for all pages, and for storing them
)

// An onboarding is the state of the first requests on a new connection. They send the device its
// vision URL and, if its tools must be listed, request its identity and its tools.
type onboarding struct { // under connection.mu
	running bool
	done    bool // no more requests to send
	logged  bool // a failure has been logged
	tries   int
	retry   *time.Timer // nil unless a retry is scheduled
}

func (o *onboarding) stop() {
	o.done = true
	if o.retry != nil {
		o.retry.Stop()
		o.retry = nil
	}
}

// startOnboarding starts the onboarding, at once or after the delay.
func (c *connection) startOnboarding(delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.onboarding
	if o.done || o.running {
		return
	}
	if delay > 0 {
		o.retry = time.AfterFunc(delay, func() { c.startOnboarding(0) })
		return
	}
	if o.retry != nil {
		o.retry.Stop()
		o.retry = nil
	}
	o.running = true
	c.broker.pool.submit(c.onboard)
}

// resumeOnboarding retries with a device that answers again.
func (c *connection) resumeOnboarding() { c.startOnboarding(0) }

func (c *connection) onboard() {
	err := c.introduce(c.broker.life)
	c.mu.Lock()
	delay, log := c.onboarding.end(err, c.broker.o.onboardingDelays)
	c.mu.Unlock()
	if err == nil || c.hasEnded() {
		return
	}
	if log {
		c.broker.stats.listingsFailed.Add(1)
		c.broker.log.Warn("tools not listed", "device", c.Device, "err", err)
	}
	if delay > 0 {
		c.broker.log.Debug("listing tools failed, trying again", "device", c.Device, "err", err)
		c.startOnboarding(delay)
	}
}

// end records the end of a try. delay is the time until the next try, 0 for never; log reports
// whether the failure must be logged now.
func (o *onboarding) end(err error, delays []time.Duration) (delay time.Duration, log bool) {
	o.running = false
	if err == nil {
		o.done = true
		return 0, false
	}
	if o.tries < len(delays) {
		o.tries++
		return delays[o.tries-1], false
	}
	log, o.logged = !o.logged, true
	return 0, log
}

var errListedOften = errors.New(
	"the device's tools were listed several times in the last minutes; they will be again later")

// introduce makes one try. Each request waits for a separate turn, so calls can run between them.
func (c *connection) introduce(ctx context.Context) error {
	params := c.initializeParams()
	if params.VisionURL == "" && !c.dialect.Opening().Initialize && !c.broker.devices.NeedsListing(c.Device) {
		return nil // nothing to send or request: a returning fleet is admitted without requests
	}
	var hello *mcp.InitializeResult
	err := c.inTurn(ctx, func(ctx context.Context) (err error) {
		hello, err = c.session.Initialize(ctx, params)
		return c.judge("initialize", err)
	})
	if err != nil || !c.broker.devices.NeedsListing(c.Device) {
		return err
	}
	if !c.device.mayList(time.Now()) {
		return errListedOften
	}
	tools, partial, err := c.listTools(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, listingTimeout)
	defer cancel()
	l := fleet.ToolListing{
		Device: c.Device, ServerName: hello.ServerName, ServerVersion: hello.ServerVersion, Partial: partial,
		At: time.Now().UTC(), Inventory: c.broker.inventories.of(tools),
	}
	if err := c.broker.devices.SaveListing(ctx, l); err != nil {
		return fmt.Errorf("storing %d tools: %w", len(tools), err)
	}
	c.broker.stats.listings.Add(1)
	return nil
}

func (c *connection) initializeParams() mcp.InitializeParams {
	p := mcp.InitializeParams{ClientName: "fleetd", ClientVersion: c.broker.o.Version}
	if c.broker.o.VisionURL != nil {
		p.VisionURL, p.VisionToken = c.broker.o.VisionURL(string(c.Device))
	}
	return p
}

// inTurn runs f at the connection's next turn in the device's line.
func (c *connection) inTurn(ctx context.Context, f func(context.Context) error) error {
	t, err := c.join(false, maxWaiting+1) // in addition to the calls, not instead of one
	if err != nil {
		return err
	}
	defer t.Done()
	wait := time.NewTimer(turnTimeout)
	defer wait.Stop()
	select {
	case <-t.ready:
	case <-c.lost:
		return fleet.ErrLost
	case <-ctx.Done():
		return ctx.Err()
	case <-wait.C:
		return fmt.Errorf("%w: calls kept it busy for %v", fleet.ErrBusy, turnTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, listingTimeout)
	defer cancel()
	return f(ctx)
}

// judge returns err after recording what it shows about the device's health.
func (c *connection) judge(what string, err error) error {
	_, refused := errors.AsType[*mcp.Error](err)
	switch {
	case err == nil || refused:
		c.answered()
	case errors.Is(err, mcp.ErrTimeout) && !errors.Is(err, mcp.ErrNotSent):
		c.unanswered(what)
	}
	return err
}
