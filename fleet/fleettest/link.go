package fleettest

import (
	"context"
	"encoding/json"
	"sync"

	"fleetd/fleet"
)

// A Script answers one call like a device. It may wait for ctx.
type Script func(ctx context.Context, tool string, arguments json.RawMessage) (fleet.Answer, error)

// A Link connects scripted devices. A device executes one call at a time.
type Link struct {
	Sending func(fleet.Invocation) // called with each invocation sent; may be nil. Set it before use.

	mu      sync.Mutex
	devices map[fleet.DeviceID]*device
}

type device struct {
	script Script
	lost   chan struct{}
	next   int32
	line   []*turn // the first turn is active
}

// maxLine is how many calls can wait for a scripted device before it is busy.
const maxLine = 4

// Connect connects a device and replaces its earlier connection.
func (l *Link) Connect(id fleet.DeviceID, script Script) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.devices == nil {
		l.devices = make(map[fleet.DeviceID]*device)
	}
	l.devices[id] = &device{script: script, lost: make(chan struct{})}
}

// Disconnect ends a device's connection.
func (l *Link) Disconnect(id fleet.DeviceID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.devices[id]; d != nil {
		close(d.lost)
		delete(l.devices, id)
	}
}

// Queue implements [fleet.Link].
func (l *Link) Queue(id fleet.DeviceID, _ fleet.PrincipalKind) (fleet.Turn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.devices[id]
	if d == nil {
		return nil, fleet.ErrOffline
	}
	if len(d.line) >= maxLine {
		return nil, fleet.ErrBusy
	}
	d.next++
	t := &turn{link: l, device: d, id: d.next, ready: make(chan struct{})}
	if d.line = append(d.line, t); len(d.line) == 1 {
		close(t.ready)
	}
	return t, nil
}

// Introduced implements [fleet.Link]. Scripted devices are introduced as soon as they
// connect.
func (l *Link) Introduced(id fleet.DeviceID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.devices[id] != nil
}

type turn struct {
	link   *Link
	device *device
	id     int32
	ready  chan struct{}
}

func (t *turn) Ready() <-chan struct{} { return t.ready }
func (t *turn) Lost() <-chan struct{}  { return t.device.lost }
func (t *turn) RPCID() int32           { return t.id }

// Send runs the script. If ctx ends first, the script's answer is late.
func (t *turn) Send(ctx context.Context, inv fleet.Invocation, late func(fleet.Answer)) (fleet.Answer, error) {
	if t.link.Sending != nil {
		t.link.Sending(inv)
	}
	if inv.OnWritten != nil {
		inv.OnWritten()
	}
	type reply struct {
		answer fleet.Answer
		err    error
	}
	replied := make(chan reply, 1)
	gaveUp := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx) // the script ends with Send, even if the caller's context does not
	defer cancel()
	go func() {
		answer, err := t.device.script(ctx, inv.Tool, inv.Arguments)
		select {
		case <-gaveUp:
			if err == nil {
				late(answer)
			}
		default:
			replied <- reply{answer, err}
		}
	}()
	select {
	case r := <-replied:
		return r.answer, r.err
	case <-t.device.lost:
		close(gaveUp)
		return fleet.Answer{}, fleet.ErrLost
	case <-ctx.Done():
		close(gaveUp)
		return fleet.Answer{}, fleet.ErrNoAnswer
	}
}

// Done implements [fleet.Turn].
func (t *turn) Done() {
	t.link.mu.Lock()
	defer t.link.mu.Unlock()
	for i, other := range t.device.line {
		if other == t {
			t.device.line = append(t.device.line[:i:i], t.device.line[i+1:]...)
			if i == 0 && len(t.device.line) > 0 {
				close(t.device.line[0].ready)
			}
			return
		}
	}
}
