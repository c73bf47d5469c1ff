package mqtt5

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options configures a [Fleet]. Credentials is required; the rest has defaults.
type Options struct {
	// Devices is the number of devices. Default: 1.
	Devices int
	// SDK is how many of them behave like the ESP-IDF SDK 0.0.1; the first ones do. Default: 0.
	SDK int
	// Prefix begins the ids of the devices, which a number from 1 follows. Default: "sim-".
	Prefix string
	// Credentials returns what the device with this id needs to connect. A device asks once, when
	// it is switched on, and again later if that failed.
	Credentials func(ctx context.Context, id string) (Credentials, error)
	// Parallel is how many devices ask for credentials at the same time. Default: 8.
	Parallel int
	// ConnectRate is how many devices are switched on per second. Default: 500.
	ConnectRate float64
	// Keepalive, if set, replaces the keepalive of the devices: 60s, and 10s with the SDK. A
	// keepalive that the broker demands takes precedence.
	Keepalive time.Duration
	// RetryDelay is the shortest time until a device tries again; it doubles up to a minute.
	// Default: 1s.
	RetryDelay time.Duration
	// LocalAddrs are source addresses to connect from, in turn, such as 127.0.0.2: one has only
	// about 28,000 ports. Default: the system's choice.
	LocalAddrs []string
	// Logger receives the first refusal, and each of them at level debug. Default: none.
	Logger *slog.Logger
}

// Credentials let one device connect.
type Credentials struct {
	Broker                       string // host:port; port 8883 means TLS
	ClientID, Username, Password string
}

// LogValue keeps the password out of logs.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.ClientID) }

// String keeps the password out of errors.
func (c Credentials) String() string { return c.ClientID }

// A Fleet is the devices of one process.
type Fleet struct {
	options  Options
	local    []*net.TCPAddr
	devices  []*Device
	stats    counters
	asking   chan struct{} // one element for each device that asks for credentials
	reported sync.Once     // of the first failure
}

// New creates a fleet. Its devices are switched on by [Fleet.Run].
func New(o Options) (*Fleet, error) {
	o.setDefaults()
	f := &Fleet{options: o, asking: make(chan struct{}, o.Parallel)}
	switch {
	case o.Credentials == nil:
		return nil, errors.New("simulated devices of MQTT 5: no source of credentials")
	case o.Devices < 0 || o.Devices > 1<<24:
		return nil, fmt.Errorf("%d devices of MQTT 5: want 1 to %d", o.Devices, 1<<24)
	case o.SDK < 0 || o.SDK > o.Devices:
		return nil, fmt.Errorf("%d of %d devices of MQTT 5 behave like the SDK: want 0 to %[2]d", o.SDK, o.Devices)
	case o.ConnectRate < 0 || o.Keepalive < 0 || o.RetryDelay < 0 || o.Parallel < 0:
		return nil, errors.New("rates and times must be above zero")
	}
	for _, addr := range o.LocalAddrs {
		ip := net.ParseIP(addr)
		if ip.To4() == nil {
			return nil, fmt.Errorf("local address %q: want an IPv4 address such as 127.0.0.2", addr)
		}
		f.local = append(f.local, &net.TCPAddr{IP: ip})
	}
	for i := range o.Devices {
		f.devices = append(f.devices, newDevice(f, i))
	}
	return f, nil
}

func (o *Options) setDefaults() {
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.Prefix == "" {
		o.Prefix = "sim-"
	}
	if o.Parallel == 0 {
		o.Parallel = 8
	}
	if o.ConnectRate == 0 {
		o.ConnectRate = 500
	}
	if o.RetryDelay == 0 {
		o.RetryDelay = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Device returns the device with this index, 0 to Devices-1.
func (f *Fleet) Device(i int) *Device { return f.devices[i] }

// Len returns the number of devices.
func (f *Fleet) Len() int { return len(f.devices) }

// Run switches the devices on, at the rate of the options, and runs them until ctx ends. Each
// then clears its presence, if it conforms to the protocol, and sends DISCONNECT. All devices
// have disconnected when Run returns. A fleet runs once.
//
// If the first device gets no credentials, Run returns the error: the others would get none either.
func (f *Fleet) Run(ctx context.Context) error {
	if err := f.devices[0].provision(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("credentials of device %s: %w", f.devices[0].id, err)
	}
	var alive sync.WaitGroup
	begin := time.Now()
	for i, d := range f.devices {
		due := begin.Add(time.Duration(float64(i) / f.options.ConnectRate * float64(time.Second)))
		if !sleep(ctx, time.Until(due)) {
			break
		}
		alive.Go(func() { d.live(ctx) })
	}
	alive.Wait()
	return nil
}

// sleep reports false if ctx ended first.
func sleep(ctx context.Context, wait time.Duration) bool {
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// failed counts a failure and logs the first one: the others often have the same cause.
func (f *Fleet) failed(counter *atomic.Int64, what, id string, err error) {
	counter.Add(1)
	f.options.Logger.Debug(what, "device", id, "err", err)
	f.reported.Do(func() {
		f.options.Logger.Warn(what+"; further failures are only counted", "device", id, "err", err)
	})
}

// Stats counts the events of a fleet since it started. Connected is a current value.
type Stats struct {
	Devices           int
	Connected         int64 // have published their presence
	Connects          int64
	ConnectFailures   int64
	CredentialsFailed int64 // requests for credentials that failed
	Initialized       int64 // requests initialize
	Listings          int64 // requests tools/list
	Calls             int64 // tools executed
	Refused           int64 // calls that were answered with an error
}

type counters struct {
	connected, connects, connectFailures, credentialsFailed atomic.Int64
	initialized, listings, calls, refused                   atomic.Int64
}

// Stats returns the current counts.
func (f *Fleet) Stats() Stats {
	c := &f.stats
	return Stats{Devices: len(f.devices), Connected: c.connected.Load(), Connects: c.connects.Load(),
		ConnectFailures: c.connectFailures.Load(), CredentialsFailed: c.credentialsFailed.Load(),
		Initialized: c.initialized.Load(), Listings: c.listings.Load(), Calls: c.calls.Load(), Refused: c.refused.Load()}
}

// String returns the counters as one line of text for a person.
func (s Stats) String() string {
	line := fmt.Sprintf("sim: %d devices of MQTT 5, %d connected, %d initialized, %d calls", s.Devices, s.Connected,
		s.Initialized, s.Calls)
	for _, extra := range []struct {
		n    int64
		what string
	}{
		{s.CredentialsFailed, "requests for credentials failed"}, {s.ConnectFailures, "connects failed"},
		{s.Refused, "calls refused"},
	} {
		if extra.n > 0 {
			line += fmt.Sprintf(", %d %s", extra.n, extra.what)
		}
	}
	return line
}
