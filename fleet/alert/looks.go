package alert

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Facts reads the records about the fleet as a whole. Each condition uses one query.
type Facts interface {
	// PresenceSince lists the samples since a time, oldest first. If start is set, it also
	// lists at least those of the span before the last sample before start.
	PresenceSince(ctx context.Context, since, start time.Time, span time.Duration) ([]fleet.PresenceSample, error)
	// Share counts the devices of a group in service that match the query, and all of the group that
	// were ever online. An empty group is the whole fleet.
	Share(ctx context.Context, group, q fleet.Query) (devices, all int, err error)
	// Crashing lists the devices in service that restarted at least the given number of times
	// since a time, or are in safe mode.
	Crashing(ctx context.Context, restarts int, since time.Time) ([]fleet.DeviceID, error)
	RolledBack(ctx context.Context, since time.Time) ([]fleet.DeviceID, error)
	ToolsChanged(ctx context.Context, since time.Time) ([]fleet.DeviceID, error)
	CampaignsStopped(ctx context.Context, since time.Time) ([]Campaign, error)
	CampaignsStuck(ctx context.Context, since time.Time) ([]Campaign, error)
}

// A Campaign is the subject of an alert about a campaign.
type Campaign struct {
	ID      uuid.UUID
	Name    string
	Devices int    // unfinished devices
	Why     string // case of the message about a stopped campaign; "" for a stuck one
}

// A Certificate is a certificate that fleetd presents to devices, or that of a node of the cluster.
type Certificate struct {
	Name string // name of its file, or of the node
	Ends time.Time
}

// A Disk is a disk that fleetd writes to.
type Disk struct {
	Name        string // name of the directory
	Free, Total int64  // bytes
}

// An Upstream is a voice server.
type Upstream struct {
	Name string
	Down time.Time // since when it is unreachable; zero if it is reachable
}

// A Plugin is a plug-in.
type Plugin struct {
	Name    string
	Down    time.Time    // since when it ends again and again or cannot run; zero if it runs
	Why     fleet.Reason // of its latest end, or what is wrong with its definition
	Invalid bool         // its definition is wrong
}

// A Receiver gets the sealed record: a log stream, a place for checkpoints, or a witness.
type Receiver struct {
	Name     string
	Down     time.Time // since when it fails; zero if it does not
	Replaced bool      // it is a witness that knows another log, or a longer one
}

// Quarantined are the tools of one program in quarantine.
type Quarantined struct {
	Device fleet.DeviceID
	Tools  []string
	Since  time.Time // of the first of them
}

// figures returns the parameters of an alert's text.
func figures(params ...any) fleet.Params {
	var r fleet.Reason
	for i := 0; i+1 < len(params); i += 2 {
		r = r.With(params[i].(string), params[i+1])
	}
	return r.Params
}

func paramOf(a Alert, name string) int64 {
	n, _ := a.Params[name].(int64)
	return n
}

// devicesOffline uses the same query as the alert's link, so both have the same count. It
// excludes devices on a WebSocket, which connect only for conversations and may be silent for
// days. The alert is bad if Percent of the fleet is away.
func (s *Service) devicesOffline(ctx context.Context, v view) ([]finding, bool, error) {
	text := "presence:offline -transport:ws seen>" + age(v.threshold.Span)
	q, err := fleet.ParseQuery(text)
	if err != nil {
		return nil, false, err
	}
	n, all, err := s.o.Facts.Share(ctx, fleet.Query{}, q)
	if err != nil || n < v.threshold.Count {
		return nil, err == nil, err
	}
	f := finding{severity: Warning, devices: n, query: text,
		params: figures("n", n, "span_ms", v.threshold.Span)}
	if 100*n >= v.threshold.Percent*all {
		f.severity = Bad
	}
	return []finding{f}, true, nil
}

// age formats a duration for a query.
func age(d time.Duration) string {
	for _, unit := range []struct {
		d    time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d%unit.d == 0 {
			return strconv.FormatInt(int64(d/unit.d), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}

// crashLoops lists devices that restart repeatedly.
func (s *Service) crashLoops(ctx context.Context, v view) ([]finding, bool, error) {
	devices, err := s.o.Facts.Crashing(ctx, v.threshold.Count, v.now.Add(-v.threshold.Span))
	return ofDevices(v, devices, 1, "restarts", v.threshold.Count, "span_ms", v.threshold.Span), err == nil, err
}

func (s *Service) rollbacks(ctx context.Context, v view) ([]finding, bool, error) {
	devices, err := s.o.Facts.RolledBack(ctx, v.now.Add(-v.threshold.Span))
	return ofDevices(v, devices, v.threshold.Count, "span_ms", v.threshold.Span), err == nil, err
}

func (s *Service) toolsChanged(ctx context.Context, v view) ([]finding, bool, error) {
	devices, err := s.o.Facts.ToolsChanged(ctx, v.now.Add(-v.threshold.Span))
	return ofDevices(v, devices, v.threshold.Count, "span_ms", v.threshold.Span), err == nil, err
}

// ofDevices returns the finding that a condition holds for these devices, if there are at
// least least of them.
func ofDevices(v view, devices []fleet.DeviceID, least int, params ...any) []finding {
	if len(devices) == 0 || len(devices) < least {
		return nil
	}
	f := finding{severity: Warning, devices: len(devices), query: listing(devices), ids: devices,
		params: figures(append(params, "n", len(devices))...)}
	if v.badFrom > 0 && len(devices) >= v.badFrom {
		f.severity = Bad
	}
	return []finding{f}
}

// maxListed is the maximum length in bytes of a query that lists its devices, because queries
// are short.
const maxListed = 900

// listing returns a query that finds the devices, or only the first ones if there are many.
func listing(devices []fleet.DeviceID) string {
	devices = slices.Sorted(slices.Values(devices))
	var b strings.Builder
	b.WriteString("id:")
	for i, id := range devices {
		if b.Len()+len(id)+1 > maxListed {
			break
		}
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(string(id))
	}
	return b.String()
}

func (s *Service) campaignsStopped(ctx context.Context, v view) ([]finding, bool, error) {
	return ofCampaigns(Bad)(s.o.Facts.CampaignsStopped(ctx, v.now.Add(-v.threshold.Span)))
}

func (s *Service) campaignsStuck(ctx context.Context, v view) ([]finding, bool, error) {
	return ofCampaigns(Warning, "span_ms", v.threshold.Span)(
		s.o.Facts.CampaignsStuck(ctx, v.now.Add(-v.threshold.Span)))
}

func ofCampaigns(severity Severity, params ...any) func([]Campaign, error) ([]finding, bool, error) {
	return func(campaigns []Campaign, err error) (found []finding, ok bool, _ error) {
		for _, c := range campaigns {
			f := finding{subject: c.ID.String(), severity: severity, devices: c.Devices,
				params: figures(append(params, "name", c.Name, "n", c.Devices)...)}
			if c.Why != "" {
				f.params["case"] = c.Why
			}
			found = append(found, f)
		}
		return found, err == nil, err
	}
}

// badCertificate is the remaining lifetime at which a certificate becomes bad.
const badCertificate = 3 * day

func (s *Service) certificates(_ context.Context, v view) (found []finding, ok bool, err error) {
	if s.o.Certificates == nil {
		return nil, true, nil
	}
	for _, c := range s.o.Certificates() {
		left := c.Ends.Sub(v.now)
		if left > v.threshold.Span {
			continue
		}
		f := finding{subject: c.Name, severity: Warning,
			params: figures("name", c.Name, "ends_at", c.Ends)}
		if left <= badCertificate {
			f.severity = Bad
		}
		if left <= 0 {
			f.params["case"] = "over"
		}
		found = append(found, f)
	}
	return found, true, nil
}

// disks finds nearly full disks. An open alert ends when a fifth more than the threshold is
// free.
func (s *Service) disks(_ context.Context, v view) (found []finding, ok bool, err error) {
	if s.o.Disks == nil {
		return nil, true, nil
	}
	for _, d := range s.o.Disks() {
		free := 100 * float64(d.Free) / float64(max(1, d.Total))
		limit := float64(v.threshold.Percent)
		if _, open := v.open[d.Name]; open {
			limit *= 1.2
		}
		if free >= limit {
			continue
		}
		f := finding{subject: d.Name, severity: Warning, params: figures("name", d.Name,
			"free_bytes", d.Free>>28<<28, "percent", int(free))}
		if free < float64(v.threshold.Percent)/2 {
			f.severity = Bad
		}
		found = append(found, f)
	}
	return found, true, nil
}

func (s *Service) upstreams(ctx context.Context, v view) (found []finding, ok bool, err error) {
	if s.o.Upstreams == nil {
		return nil, true, nil
	}
	for _, u := range s.o.Upstreams(ctx) {
		_, open := v.open[u.Name]
		if !u.Down.IsZero() && (open || v.now.Sub(u.Down) >= v.threshold.Span) {
			found = append(found, finding{subject: u.Name, severity: Bad,
				params: figures("name", u.Name)})
		}
	}
	return found, true, nil
}

// plugins finds plug-ins that cannot run. An alert stays open until the plug-in runs.
func (s *Service) plugins(_ context.Context, v view) (found []finding, ok bool, err error) {
	if s.o.Plugins == nil {
		return nil, true, nil
	}
	for _, p := range s.o.Plugins() {
		_, open := v.open[p.Name]
		if p.Down.IsZero() || !open && v.now.Sub(p.Down) < v.threshold.Span {
			continue
		}
		f := finding{subject: p.Name, severity: Warning, since: p.Down,
			params: figures("name", p.Name, "since_at", p.Down, "why", p.Why)}
		if p.Invalid {
			f.params["case"] = "invalid"
		}
		found = append(found, f)
	}
	return found, true, nil
}

// receivers finds receivers of the record that fail. What a witness says about a replaced log does not wait.
func (s *Service) receivers(_ context.Context, v view) (found []finding, ok bool, err error) {
	if s.o.Receivers == nil {
		return nil, true, nil
	}
	for _, r := range s.o.Receivers() {
		_, open := v.open[r.Name]
		if r.Down.IsZero() || !open && !r.Replaced && v.now.Sub(r.Down) < v.threshold.Span {
			continue
		}
		f := finding{subject: r.Name, severity: Warning, since: r.Down, params: figures("name", r.Name, "since_at", r.Down)}
		if r.Replaced {
			f.severity, f.params["case"] = Bad, "replaced"
		}
		found = append(found, f)
	}
	return found, true, nil
}

// quarantinedTools finds programs with tools in quarantine. An alert stays open until all of them
// were released.
func (s *Service) quarantinedTools(context.Context, view) (found []finding, ok bool, err error) {
	if s.o.Quarantined == nil {
		return nil, true, nil
	}
	for _, q := range s.o.Quarantined() {
		found = append(found, finding{subject: string(q.Device), severity: Warning, since: q.Since,
			params: figures("name", string(q.Device), "n", len(q.Tools), "tool", fleet.CleanText(q.Tools[0], 80))})
	}
	return found, true, nil
}
