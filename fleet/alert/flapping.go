package alert

import (
	"context"
	"sync"
	"time"

	"fleetd/fleet"
)

// Reconnects counts the connections of each device since the process started. The counts need
// not be stored because the alerts about them are. The zero value is ready to use, and its
// methods are safe for concurrent use.
type Reconnects struct {
	mu      sync.Mutex
	devices map[fleet.DeviceID][]time.Time // latest connections of each device, oldest first
}

// flappingEvery is how often flapping is checked while a device flaps.
const flappingEvery = 5 * time.Second

// maxConnections is the number of connections remembered per device: one more than the
// highest threshold of reconnects.
const maxConnections = maxReconnects + 1

// Connected records a connection of the device.
func (r *Reconnects) Connected(id fleet.DeviceID, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.devices == nil {
		r.devices = make(map[fleet.DeviceID][]time.Time)
	}
	all := append(r.devices[id], at)
	if len(all) > maxConnections {
		all = append(all[:0], all[1:]...)
	}
	r.devices[id] = all
}

// Flapping lists the devices that have reconnected at least the given number of times since
// the given time. It drops devices without a connection since then.
func (r *Reconnects) Flapping(times int, since time.Time) (flapping []fleet.DeviceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, all := range r.devices {
		if all[len(all)-1].Before(since) {
			delete(r.devices, id)
		} else if i := len(all) - 1 - times; i >= 0 && !all[i].Before(since) {
			flapping = append(flapping, id)
		}
	}
	return flapping
}

// flappingDue reports whether flapping must be checked before its interval is over.
func (s *Service) flappingDue(now time.Time) bool {
	s.mu.Lock()
	t, open, looked := s.settings.Thresholds[Flapping], s.counts[Flapping] > 0, s.looked[Flapping]
	s.mu.Unlock()
	if s.o.Reconnects == nil || now.Sub(looked) < flappingEvery {
		return false
	}
	return open || t.Enabled && len(s.o.Reconnects.Flapping(t.Count, now.Add(-t.Span))) > 0
}

// flapping lists devices that reconnect repeatedly. It excludes devices that connect only for
// conversations, which reconnect by design.
func (s *Service) flapping(ctx context.Context, v view) ([]finding, bool, error) {
	if s.o.Reconnects == nil {
		return nil, false, nil
	}
	devices := s.o.Reconnects.Flapping(v.threshold.Count, v.now.Add(-v.threshold.Span))
	a, open := v.open[""]
	if len(devices) == 0 {
		if !open {
			return nil, true, nil
		}
		most := paramOf(a, "most")
		return []finding{{over: true, devices: int(most), params: over(a, v.now, false, "n", most, "most", most)}}, true, nil
	}
	f := ofDevices(v, devices, 1, "times", v.threshold.Count, "span_ms", v.threshold.Span, "most",
		max(len(devices), int(paramOf(a, "most"))))
	if s.o.Presence != nil {
		all, err := s.o.Presence(ctx)
		if err != nil {
			return nil, false, err
		}
		if 100*len(devices) >= v.threshold.Percent*all.Joined() {
			f[0].severity = Bad
		}
	}
	return f, true, nil
}
