package sim

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	language   = "en-US"
	maxMessage = 120 // characters of an alert that the screen stores
)

// A Device is one virtual board. Its methods may be called at any time.
type Device struct {
	fleet  *Fleet
	board  *board
	id     identity
	link   link
	faults faultSet
	local  int8 // index into Options.LocalAddrs
	index  int  // in the fleet

	talk chan struct{} // somebody talks to a program; nil on boards

	nvs nvs // survives restarts; used by one goroutine at a time, see powerCycle

	mu       sync.Mutex // guards all below
	state    State
	flash    flash
	conn     serverConn // nil while the device is not connected
	main     *mainTask  // of the running power cycle
	restarts context.CancelFunc
	onSocket *socketSettings // of the running power cycle; nil: MQTT
	setup    chan struct{}   // made when the device leaves the network; closed when its Wi-Fi is set up
	session  conversation
	vision   vision
	code     string // on the screen while the device waits to be claimed
	calls    []Call
	job      upgradeJob // survives restarts
}

// A State is the part of a device that tools can read and change.
type State struct {
	Volume      int
	Brightness  int
	Theme       string
	Lamp        bool
	RGB         [3]uint8
	StripLevel  int
	Battery     int
	Temperature float32 // of the chip, in degrees Celsius
	Message     string  // last alert or text shown
}

// A Firmware is the firmware that a device runs.
type Firmware struct {
	Version   string
	ElfSHA256 string
	Slot      string
	Pending   bool // not yet confirmed by an OTA check; a reset rolls it back
}

// A Call is a tool call that a device has executed. See [Options.RecordCalls].
type Call struct {
	ID        int
	Tool      string
	Arguments string // JSON as received, or ""
	At        time.Time
}

// vision is the address for the camera's pictures; only initialize sets it, and a restart clears
// it.
type vision struct{ url, token string }

func newDevice(f *Fleet, b *board, mac string, index int) *Device {
	o := f.options
	d := &Device{fleet: f, board: b, index: index, id: newIdentity(mac, o.Seed, b.serial),
		faults: faultsOf(o.Faults, o.Seed, mac)}
	d.link = newLink(b.network, o.Seed, mac, index, d.faults.has(FaultBadJSON))
	if b.software {
		d.talk = make(chan struct{}, 1)
	}
	if n := len(o.LocalAddrs); n > 0 {
		d.local = int8(index % n)
	}
	builds := f.builds[b]
	d.flash = newFlash(b, builds[int(chance(o.Seed, "version", mac)*float64(len(builds)))])
	random := digest(o.Seed, "state", mac)
	d.state = State{
		Volume: 70, Brightness: 75, Theme: "light", StripLevel: 4,
		Battery: 15 + int(random[0])%86, Temperature: 36 + float32(random[1]%40)/4,
	}
	return d
}

// ID returns the MAC address as the device writes it: a0:85:e3:11:22:33.
func (d *Device) ID() string { return d.id.mac }

// ClientID returns the UUID in the Client-Id header of its polls.
func (d *Device) ClientID() string { return d.id.uuid }

// Board returns the name of its board.
func (d *Device) Board() string { return d.board.name }

// State returns the device's current state.
func (d *Device) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Firmware returns the firmware that the device runs now.
func (d *Device) Firmware() Firmware {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.flash.slots[d.flash.current]
	return Firmware{Version: s.build.version, ElfSHA256: s.build.elf, Slot: s.label, Pending: d.flash.trial != confirmed}
}

// Connected reports whether the device has an MQTT session, or a WebSocket.
func (d *Device) Connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conn != nil
}

// Code returns the activation code on the screen, or "".
func (d *Device) Code() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.code
}

// Calls returns the latest executed calls, oldest first, if they are recorded.
func (d *Device) Calls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

func (d *Device) record(c Call) {
	limit := d.fleet.options.RecordCalls
	if limit <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.calls) == limit {
		d.calls = slices.Delete(d.calls, 0, 1)
	}
	d.calls = append(d.calls, c)
}

func (d *Device) change(set func(*State)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	set(&d.state)
}

func (d *Device) setCode(code string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.code = code
}

func (d *Device) stats() *counters  { return &d.fleet.stats }
func (d *Device) log() *slog.Logger { return d.fleet.log.With("device", d.id.mac) }

// sleep waits as the firmware would, shortened by the fleet's time scale. It reports false if ctx
// ended first.
func (d *Device) sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(d.fleet.scaled(wait))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// clip cuts s to at most n runes.
func clip(s string, n int) string {
	count := 0
	for i := range s {
		if count == n {
			return s[:i]
		}
		count++
	}
	return s
}
