package feed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/logstream"
	"fleetd/fleet/record"
)

const (
	sizeInterval = 200 * time.Millisecond // between looks at the size of the record
	retryAfter   = time.Second
	readChunk    = 64 // entries read at a time: at most a quarter of a client's queue

	busyLoad = 0.5                   // of a client's queue, at which reading pauses
	busyWait = 25 * time.Millisecond // at most, for each chunk
)

// An entry is an entry of the record, and what decides who sees it.
type entry struct {
	message
	record.Entry
	device fleet.DeviceID // that it is about; "" if none
	line   fields
}

type fields struct {
	Device    string              `json:"device_id"`
	Subject   string              `json:"subject"`
	Action    string              `json:"action"`
	ActorKind fleet.PrincipalKind `json:"actor_kind"`
	ActorID   string              `json:"actor_id"`
	Detail    struct {
		Successor fleet.DeviceID `json:"successor"`
	} `json:"detail"`
}

// newEntry returns an entry whose row is still there.
func newEntry(source string, e record.Entry) (*entry, error) {
	x := &entry{Entry: e}
	_ = json.Unmarshal(e.Line, &x.line) // without fields, it is about no device
	x.device = fleet.DeviceID(cmp.Or(x.line.Device, e.Device))
	if e.Kind == record.Action.String() && ofDevice(x.line.Action) {
		x.device = fleet.DeviceID(x.line.Subject)
	}
	level := "-"
	if id, err := fleet.ParseDeviceID(string(x.device)); err == nil && id == x.device {
		level = string(id)
	} else {
		x.device = ""
	}
	var err error
	x.topic = eventsPrefix + e.Kind + "/" + level
	x.payload, err = logstream.CloudEvent(source, e)
	return x, err
}

// ofDevice reports whether the subject of an action is a device.
func ofDevice(action string) bool {
	return strings.HasPrefix(action, "device.") || strings.HasPrefix(action, "quarantine.")
}

// follow sends new entries to the clients that have subscribed to them. Each entry is read once.
func (s *Service) follow(ctx context.Context) {
	next := s.o.Record.Status().Latest.Size
	for {
		status := s.o.Record.Status()
		end := min(status.Latest.Size, next+readChunk)
		switch err := s.pass(ctx, status.Origin, next, end); {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.Warn("entries not read for the feed; trying again", "first", next, "err", err)
			pause(ctx, retryAfter)
			continue
		}
		if next = end; next == status.Latest.Size {
			pause(ctx, sizeInterval)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// pass sends the entries from next, before end.
func (s *Service) pass(ctx context.Context, source string, next, end int64) error {
	clients := slices.DeleteFunc(s.connected(), func(c *client) bool { return !c.readsEvents.Load() })
	if next >= end || len(clients) == 0 {
		return nil
	}
	list, err := s.read(ctx, source, next, end)
	if err != nil {
		return err
	}
	var devices map[fleet.DeviceID]fleet.Device
	if slices.ContainsFunc(clients, func(c *client) bool { return c.by.Hides() }) {
		if devices, err = s.devicesOf(ctx, list); err != nil {
			return err
		}
	}
	seen := map[*client][]queued{}
	for _, c := range clients {
		wishes := wishesOf(c, list)
		if len(wishes) == 0 {
			continue
		}
		if seen[c], err = s.visible(ctx, c, wishes, devices); err != nil {
			return err // before anything is sent, so that nothing is sent twice
		}
	}
	for c, list := range seen {
		c.enqueue(list)
	}
	for begun := time.Now(); time.Since(begun) < busyWait && slices.ContainsFunc(clients, busy); {
		pause(ctx, busyWait/5)
	}
	return nil
}

func busy(c *client) bool { return c.life.Err() == nil && c.load() > busyLoad }

func (s *Service) read(ctx context.Context, source string, first, end int64) (list []*entry, err error) {
	all, err := s.o.Record.Read(ctx, first, end)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if e.Line == nil {
			continue // its row was removed
		}
		x, err := newEntry(source, e)
		if err != nil {
			s.log.Error("entry left out of the feed", "entry", e.Number, "err", err)
			continue
		}
		list = append(list, x)
	}
	return list, nil
}

// devicesOf returns the devices of entries as they are now.
func (s *Service) devicesOf(ctx context.Context, list []*entry) (map[fleet.DeviceID]fleet.Device, error) {
	var ids []fleet.DeviceID
	for _, e := range list {
		for _, id := range []fleet.DeviceID{e.device, e.line.Detail.Successor} {
			if id != "" {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	devices := map[fleet.DeviceID]fleet.Device{}
	if len(ids) == 0 {
		return devices, nil
	}
	found, err := s.o.Devices.DevicesByID(ctx, slices.Compact(ids))
	for _, d := range found {
		devices[d.ID] = d
	}
	return devices, err
}

// A wish is an entry to which a client has subscribed.
type wish struct {
	*entry
	qos byte
}

func wishesOf(c *client, list []*entry) (wishes []wish) {
	for _, e := range list {
		if qos, ok := c.wants(e.topic); ok {
			wishes = append(wishes, wish{e, qos})
		}
	}
	return wishes
}

// visible returns the entries that the client's principal may read now.
func (s *Service) visible(ctx context.Context, c *client, list []wish, devices map[fleet.DeviceID]fleet.Device) (
	seen []queued, err error) {
	now, err := s.o.Authority.PrincipalNow(ctx, c.by)
	switch {
	case errors.Is(err, fleet.ErrActorGone), err == nil && !now.SameAccess(c.by):
		c.lostAccess(err)
		return nil, nil
	case err != nil:
		return nil, err
	}
	campaigns := map[string]bool{}
	for _, e := range list {
		ok, err := s.sees(ctx, now, e.entry, devices, campaigns)
		if err != nil {
			return nil, err
		}
		if ok {
			seen = append(seen, queued{&e.message, e.qos})
		}
	}
	return seen, nil
}

// sees reports whether the audit log of a principal has the entry. campaigns caches which ones exist for it.
func (s *Service) sees(ctx context.Context, by fleet.Principal, e *entry, devices map[fleet.DeviceID]fleet.Device,
	campaigns map[string]bool) (bool, error) {
	switch e.Kind {
	case record.Dropped.String(), record.Forgotten.String(), record.Started.String():
		return by.FleetRole().Allows(fleet.RoleAdmin), nil // only the log has them, which admins read
	}
	if !by.Hides() {
		return true, nil
	}
	for _, id := range []fleet.DeviceID{e.device, e.line.Detail.Successor} {
		if d, found := devices[id]; id != "" && (!found || !by.Sees(d)) {
			return false, nil
		}
	}
	switch {
	case e.device == "":
		return false, nil
	case e.Kind == record.Step.String():
		return s.seesStep(ctx, by, e)
	case e.line.ActorKind == fleet.KindCampaign:
		return s.seesCampaign(ctx, by, e.line.ActorID, campaigns)
	}
	return true, nil
}

// seesStep looks for the step in the principal's audit log, which has only steps of campaigns that
// exist for it. The line does not name the campaign.
func (s *Service) seesStep(ctx context.Context, by fleet.Principal, e *entry) (bool, error) {
	page, err := s.o.Audit.AuditEntries(fleet.WithScope(ctx, by), audit.Filter{Kinds: []audit.Kind{audit.Step},
		Subject: string(e.device), Since: e.At, Until: e.At.Add(time.Microsecond), Limit: fleet.MaxLimit})
	_, id, _ := strings.Cut(e.Subject, "/") // deployment, event
	return slices.ContainsFunc(page.Items, func(a audit.Entry) bool { return a.ID.String() == id }), err
}

// seesCampaign reports whether the campaign exists for the principal. The line of a call names the campaign that
// made it.
func (s *Service) seesCampaign(ctx context.Context, by fleet.Principal, id string, known map[string]bool) (bool,
	error) {
	if ok, found := known[id]; found {
		return ok, nil
	}
	campaign, err := uuid.Parse(id)
	if err != nil {
		return false, nil
	}
	err = s.o.Campaign(fleet.WithScope(ctx, by), campaign)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return false, err
	}
	known[id] = err == nil
	return err == nil, nil
}
