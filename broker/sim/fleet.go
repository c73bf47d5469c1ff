package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// DefaultBoards are the boards of a fleet whose options name none.
var DefaultBoards = []string{"bread-compact-wifi", "esp-box-3", "xmini-c3"}

// Options configures a [Fleet]. OTAURL is required; the rest has defaults.
type Options struct {
	// OTAURL is the URL of the devices' boot polls, as set in a device's Wi-Fi page.
	OTAURL string
	// Devices is the number of devices. Default: 1.
	Devices int
	// Boards are assigned in turn; see [BoardNames]. Default: [DefaultBoards].
	Boards []string
	// Seed determines addresses, versions and the devices with faults.
	Seed uint64
	// Faults are assigned by their rates; see [ParseFaults].
	Faults []Fault
	// ConnectRate is how many devices are switched on per second. Default: 500.
	ConnectRate float64
	// Booting limits the devices that are switched on and have not yet connected for the first time, for
	// a large fleet on the machine of its server. Default: no limit.
	Booting int
	// Endpoints are the addresses (host:port) behind the MQTT endpoint that the server sends, as of a
	// name with several addresses. A device dials one by its index, and the next ones after a failure.
	// Default: the endpoint itself.
	Endpoints []string
	// Keepalive, if set, replaces the keepalive that the server sends.
	Keepalive time.Duration
	// BootDelay is the time from a restart to the boot poll. Default: 3s.
	BootDelay time.Duration
	// TimeScale multiplies every wait built into the firmware: 1 is real time,
	// 0.01 a hundred times as fast. It does not change network timeouts and the
	// keepalive. Default: 1.
	TimeScale float64
	// FirstMAC is the address of device 0; the others count up from it.
	// Default: a locally administered one that depends on the seed.
	FirstMAC string
	// TalkEvery is how often somebody talks to a program that simulates a board, or to a device
	// on a WebSocket, for half of that time. Default: only when [Device.Talk] is called.
	TalkEvery time.Duration
	// Reports makes the devices report on upgrades, as the included firmware does.
	Reports bool
	// LocalAddrs are source addresses to connect from, in turn, such as
	// 127.0.0.2: one has only about 28,000 ports. Default: the system's choice.
	LocalAddrs []string
	// RecordCalls is how many executed calls each device remembers. Default: 0.
	RecordCalls int
	// Speech returns the sound of the device with the MAC address in the nth frame of a
	// conversation, from 0; nil after the last. Default: no audio is sent.
	Speech func(mac string, n int) []byte
	// Hear is called with the sound of each frame that a device receives. The bytes are valid
	// until it returns.
	Hear func(mac string, sound []byte)
	// Logger receives crashes, activation codes and upgrades. Default: none.
	Logger *slog.Logger
}

// A Fleet is the devices of one process.
type Fleet struct {
	options Options
	log     *slog.Logger
	http    *http.Client
	local   []*net.TCPAddr
	faults  map[FaultKind]Fault
	builds  map[*board][]*build
	devices []*Device
	stats   counters

	mu        sync.Mutex
	installed map[build]*build
}

// New creates a fleet. Its devices are switched on by [Fleet.Run].
func New(o Options) (*Fleet, error) {
	o.setDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("simulated fleet: %w", err)
	}
	f := &Fleet{options: o, log: o.Logger, faults: map[FaultKind]Fault{}, builds: map[*board][]*build{},
		installed: map[build]*build{}}
	f.http = newClient(f.dialHTTP)
	for _, fault := range o.Faults {
		if fault.Delay == 0 { // a fault that ParseFaults did not create
			fault.Delay = faultDefaults[faultIndex(fault.Kind)].Delay
		}
		f.faults[fault.Kind] = fault
	}
	for _, addr := range o.LocalAddrs {
		f.local = append(f.local, &net.TCPAddr{IP: net.ParseIP(addr)})
	}
	return f, f.build()
}

func (o *Options) setDefaults() {
	if o.Devices == 0 {
		o.Devices = 1
	}
	if len(o.Boards) == 0 {
		o.Boards = DefaultBoards
	}
	if o.ConnectRate == 0 {
		o.ConnectRate = 500
	}
	if o.BootDelay == 0 {
		o.BootDelay = 3 * time.Second
	}
	if o.TimeScale == 0 {
		o.TimeScale = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) check() error {
	u, err := url.Parse(o.OTAURL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "":
		return fmt.Errorf("OTA URL %q: want http://host/path without a query, such as http://127.0.0.1:8080/xiaozhi/ota/",
			o.OTAURL)
	case o.Devices < 0 || o.Devices > 1<<24:
		return fmt.Errorf("%d devices: want 1 to %d", o.Devices, 1<<24)
	case o.ConnectRate < 0 || o.TimeScale < 0 || o.BootDelay < 0 || o.Keepalive < 0 || o.TalkEvery < 0 || o.Booting < 0:
		return errors.New("rates and times must be above zero")
	case len(o.LocalAddrs) > 100:
		return errors.New("more than 100 local addresses")
	}
	for _, addr := range o.Endpoints {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("MQTT endpoint %q: %w", addr, err)
		}
	}
	for _, addr := range o.LocalAddrs {
		if ip := net.ParseIP(addr); ip == nil || ip.To4() == nil {
			return fmt.Errorf("local address %q: want an IPv4 address such as 127.0.0.2", addr)
		}
	}
	return checkFaults(o.Faults)
}

// build creates the devices and assigns the boards in turn.
func (f *Fleet) build() error {
	var dealt []*board
	for _, name := range f.options.Boards {
		b, err := boardByName(name)
		if err != nil {
			return err
		}
		dealt = append(dealt, b)
		f.builds[b] = b.releases()
	}
	first, err := firstMAC(f.options.FirstMAC, f.options.Seed)
	if err != nil {
		return err
	}
	for i := range f.options.Devices {
		f.devices = append(f.devices, newDevice(f, dealt[i%len(dealt)], macAt(first, i), i))
	}
	return nil
}

// Device returns the device with this index, 0 to Devices-1.
func (f *Fleet) Device(i int) *Device { return f.devices[i] }

// Len returns the number of devices.
func (f *Fleet) Len() int { return len(f.devices) }

// Run switches the devices on, at the rate of the options, and runs them until ctx ends. Each
// then sends DISCONNECT. All goroutines have ended when Run returns. A fleet runs once.
func (f *Fleet) Run(ctx context.Context) error {
	var alive sync.WaitGroup
	begin := time.Now()
	for i, d := range f.devices {
		due := begin.Add(time.Duration(float64(i) / f.options.ConnectRate * float64(time.Second)))
		if wait := time.Until(due); wait > 0 && !sleepFor(ctx, wait) {
			break
		}
		for limit := int64(f.options.Booting); limit > 0 && int64(i)-f.stats.connects.Load() >= limit; {
			if !sleepFor(ctx, 5*time.Millisecond) {
				break
			}
		}
		alive.Go(func() { d.live(ctx) })
	}
	alive.Wait()
	f.http.CloseIdleConnections()
	return nil
}

func sleepFor(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *Fleet) scaled(wait time.Duration) time.Duration {
	return time.Duration(float64(wait) * f.options.TimeScale)
}

func (f *Fleet) fault(kind FaultKind) Fault { return f.faults[kind] }

// shared returns the single copy of an installed build, so a fleet on one image stores one
// description of it.
func (f *Fleet) shared(b *build) *build {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known, ok := f.installed[*b]; ok {
		return known
	}
	f.installed[*b] = b
	return b
}
