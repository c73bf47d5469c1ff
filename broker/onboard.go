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
	changed bool                  // the device's list of tools has changed since it was last requested
	server  *mcp.InitializeResult // of the latest initialize; nil before
	retry   *time.Timer           // nil unless a retry is scheduled
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

// listAgain lists the tools of a device that reported a change of the list.
func (c *connection) listAgain() {
	c.mu.Lock()
	if c.cause == nil {
		c.onboarding.changed, c.onboarding.done, c.onboarding.tries = true, false, 0
	}
	c.mu.Unlock()
	if !c.dialect.Opening().Initialize || c.initialized() { // otherwise the first listing is still to come
		c.startOnboarding(0)
	}
}

// initialized reports whether the device answered initialize on this connection.
func (c *connection) initialized() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.onboarding.server != nil
}

// resumeOnboarding retries with a device that answers again.
func (c *connection) resumeOnboarding() { c.startOnboarding(0) }

func (c *connection) onboard() {
	err := c.introduce(c.broker.life)
	c.mu.Lock()
	delay, log := c.onboarding.end(err, c.broker.o.onboardingDelays)
	again := err == nil && c.onboarding.changed && c.cause == nil
	if again {
		c.onboarding.done = false
	}
	if c.line.held && c.onboarding.server != nil {
		c.line.open()
	}
	c.mu.Unlock()
	if again {
		c.startOnboarding(0)
	}
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
	c.mu.Lock()
	changed, hello := c.onboarding.changed, c.onboarding.server
	c.onboarding.changed = false
	c.mu.Unlock()
	err := c.introduceNow(ctx, hello, changed)
	if err != nil && changed {
		c.mu.Lock()
		c.onboarding.changed = true
		c.mu.Unlock()
	}
	return err
}

// introduceNow initializes the device if its dialect or the listing requires it, and lists its
// tools if they have changed or are not on record. hello is the answer to an earlier initialize on
// this connection, or nil.
func (c *connection) introduceNow(ctx context.Context, hello *mcp.InitializeResult, changed bool) error {
	opening, params := c.dialect.Opening(), c.initializeParams()
	if params.VisionURL == "" && !opening.Initialize && !changed && !c.broker.devices.NeedsListing(c.Device) {
		return nil // nothing to send or request: a returning fleet is admitted without requests
	}
	if hello == nil || !opening.Initialize {
		err := c.inTurn(ctx, func(ctx context.Context) (err error) {
			hello, err = c.session.Initialize(ctx, params)
			if no, ok := errors.AsType[*mcp.Error](err); ok && no.Supported != "" && no.Supported != params.ProtocolVersion {
				params.ProtocolVersion = no.Supported
				hello, err = c.session.Initialize(ctx, params)
			}
			return c.judge("initialize", err)
		})
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.onboarding.server = hello
		c.mu.Unlock()
	}
	if !changed && !opening.Initialize && !c.broker.devices.NeedsListing(c.Device) {
		return nil
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
	opening := c.dialect.Opening()
	p.ProtocolVersion = opening.Revision
	if c.broker.o.VisionURL != nil && !opening.Standard && !c.adopted { // an adopted device knows the address
		p.VisionURL, p.VisionToken = c.broker.o.VisionURL(string(c.Device))
	}
	return p
}

// inTurn runs f at the connection's next turn in the device's line.
func (c *connection) inTurn(ctx context.Context, f func(context.Context) error) error {
	t, err := c.join(&turn{introduces: true}, maxWaiting+1) // in addition to the calls, not instead of one
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
