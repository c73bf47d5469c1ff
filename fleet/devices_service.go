package fleet

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of the fields that operators set; lengths are in characters.
const (
	MaxNameLength   = 120
	maxNotesBytes   = 8 << 10
	maxTags         = 32
	maxZoneBytes    = 40
	maxTagLength    = 40
	MaxReasonLength = 300
)

// Devices is the register of devices that operators read and change. Any signed-in operator
// may read. Each write checks the rights of the principal.
type Devices struct {
	store       DeviceStore
	bulk        BulkStore
	inventories InventoryStore
	timeline    TimelineStore
	presence    *Presences // nil returns presence as stored
	targets     *Targets
	events      *Events
	kick        func(DeviceID, Cause) // ends the device's connection
	retiring    func(DeviceID)        // set by enrolment: revokes the device's credentials
	transport   func(DeviceID, Transport)
	approve     func(ctx context.Context, by Principal, id DeviceID, code string) error
	busy        func(ctx context.Context, device DeviceID) ([]CampaignPart, error)
	log         *slog.Logger
	now         func() time.Time
}

// DevicesOptions configures [Devices]. Presence, Busy and Log may be nil.
type DevicesOptions struct {
	Store interface {
		DeviceStore
		BulkStore
		InventoryStore
		TimelineStore
	}
	Targets  *Targets
	Presence *Presences // nil returns presence as stored
	Events   *Events
	Kick     func(id DeviceID, cause Cause)
	Retiring func(id DeviceID)
	// Transport is called with the transport that an operator chose for a device; enrolment
	// uses it in the answer to the next boot poll. May be nil.
	Transport func(id DeviceID, t Transport)
	// Approve enrols a unit that waits and replaces another; enrolment provides it.
	Approve func(ctx context.Context, by Principal, id DeviceID, code string) error
	// Busy returns the parts that a device has in open campaigns. If it is nil, devices have
	// none.
	Busy func(ctx context.Context, device DeviceID) ([]CampaignPart, error)
	Log  *slog.Logger
}

// NewDevices returns the register of devices.
func NewDevices(o DevicesOptions) *Devices {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Devices{store: o.Store, bulk: o.Store, inventories: o.Store, timeline: o.Store, presence: o.Presence,
		targets: o.Targets, events: o.Events, kick: o.Kick, retiring: o.Retiring, transport: o.Transport,
		approve: o.Approve, busy: o.Busy,
		log: o.Log,
		now: func() time.Time { return time.Now().UTC() }}
}

// settle stores the current presence of one device, or of all if id is "", before a read.
// Then rows, filters, order and counts come from the store and agree; newer presence in
// memory is never mixed in.
func (s *Devices) settle(ctx context.Context, id DeviceID) {
	if s.presence != nil {
		s.presence.Settle(ctx, id)
	}
}

// Device returns one device, including a retired one.
func (s *Devices) Device(ctx context.Context, id DeviceID) (Device, error) {
	s.settle(ctx, id)
	return s.store.Device(ctx, id)
}

// Known returns the device that calls are judged by, from memory if possible; see
// [Targets.Device].
func (s *Devices) Known(ctx context.Context, id DeviceID) (Device, error) {
	return s.targets.Device(ctx, id)
}

// Devices returns a page of the devices that match the filter.
func (s *Devices) Devices(ctx context.Context, f DeviceFilter) (Page[Device], error) {
	s.settle(ctx, "")
	return s.store.Devices(ctx, f)
}

// DevicesByID returns the existing devices among ids, in no particular order.
func (s *Devices) DevicesByID(ctx context.Context, ids []DeviceID) ([]Device, error) {
	s.settle(ctx, "")
	return s.store.DevicesByID(ctx, ids)
}

// DeviceIDs returns the ids of all matching devices in id order.
func (s *Devices) DeviceIDs(ctx context.Context, q Query) ([]DeviceID, error) {
	s.settle(ctx, "")
	return s.store.DeviceIDs(ctx, q)
}

// CountDevices returns how many devices match.
func (s *Devices) CountDevices(ctx context.Context, q Query) (int, error) {
	s.settle(ctx, "")
	return s.store.CountDevices(ctx, q)
}

// CountBy breaks matching devices down by "board", "version", "presence", "chip" or "kind", largest first.
func (s *Devices) CountBy(ctx context.Context, q Query, field string) ([]DeviceCount, error) {
	counts, err := s.CountByFields(ctx, q, field)
	if err != nil {
		return nil, err
	}
	return counts[0], nil
}

// CountByFields breaks matching devices down by each of several fields, in one pass.
func (s *Devices) CountByFields(ctx context.Context, q Query, fields ...string) ([][]DeviceCount, error) {
	s.settle(ctx, "")
	return s.store.CountBy(ctx, q, fields...)
}

// CountPresence counts the devices in service by presence, for pages, REST and alerts
// alike.
func (s *Devices) CountPresence(ctx context.Context) (p PresenceSample, err error) {
	counts, err := s.CountBy(ctx, Query{}, "presence")
	return PresenceOf(counts), err
}

// PresenceOf adds up counts by presence.
func PresenceOf(counts []DeviceCount) (p PresenceSample) {
	for _, c := range counts {
		p.Add(Presence(c.Value), c.Count)
	}
	return p
}

// CountEach counts the devices that match each of the queries, in one pass.
func (s *Devices) CountEach(ctx context.Context, queries []Query) ([]int, error) {
	if len(queries) == 0 {
		return nil, nil
	}
	s.settle(ctx, "")
	return s.store.CountEach(ctx, queries)
}

// CountPictured counts the matching devices that have a stored picture.
func (s *Devices) CountPictured(ctx context.Context, q Query) (int, error) {
	s.settle(ctx, "")
	return s.store.CountPictured(ctx, q)
}

// CountValues breaks matching devices down by a field of the query language, largest first,
// and returns the values that contain the text. It returns nothing for a field whose values
// are not counted, for example names.
func (s *Devices) CountValues(ctx context.Context, q Query, field, text string, limit int) ([]DeviceCount, error) {
	s.settle(ctx, "")
	return s.store.CountValues(ctx, q, field, text, limit)
}

// Facts returns the body of the device's latest boot poll.
func (s *Devices) Facts(ctx context.Context, id DeviceID) (Facts, error) {
	return s.store.Facts(ctx, id)
}

// FirmwareHistory returns the builds that the device has run, newest first.
func (s *Devices) FirmwareHistory(ctx context.Context, id DeviceID) ([]FirmwareRecord, error) {
	return s.store.FirmwareHistory(ctx, id)
}

// Inventory returns the inventory with the id.
func (s *Devices) Inventory(ctx context.Context, id string) (*Inventory, error) {
	return s.inventories.Inventory(ctx, id)
}

// DeviceInventories returns the inventories that the device has listed, newest first.
func (s *Devices) DeviceInventories(ctx context.Context, id DeviceID) ([]InventoryRecord, error) {
	return s.inventories.DeviceInventories(ctx, id)
}

// InventoriesInUse counts the devices that match a query by inventory.
func (s *Devices) InventoriesInUse(ctx context.Context, q Query) ([]InventoryUse, error) {
	return s.inventories.InventoriesInUse(ctx, q)
}

// InventoryChanges counts the devices whose inventory changed although their firmware did
// not.
func (s *Devices) InventoryChanges(ctx context.Context) ([]InventoryChange, error) {
	return s.inventories.InventoryChanges(ctx)
}

// Update changes a device's name, notes, tags, time zone or transport.
func (s *Devices) Update(ctx context.Context, by Principal, id DeviceID, p DevicePatch) (Device, error) {
	if err := s.targets.MayOn(ctx, by, id, RoleOperator, "change_device"); err != nil {
		return Device{}, err
	}
	if err := p.clean(); err != nil {
		return Device{}, err
	}
	if p.Transport != nil {
		if d, err := s.Device(ctx, id); err != nil {
			return Device{}, err
		} else if !d.IsBoard() {
			return Device{}, Refuse(ErrConflict, "program_transport", "device", id).At("transport")
		}
	}
	if err := s.staysInScope(ctx, by, id, p); err != nil {
		return Device{}, err
	}
	err := s.store.UpdateDevice(ctx, by, id, p)
	if err == nil && p.Transport != nil && s.transport != nil {
		s.transport(id, *p.Transport)
	}
	return s.changed(ctx, id, "", err)
}

// staysInScope refuses a change of name or tags that would move the device into or out of a
// principal's scope. Otherwise a principal could give itself devices.
func (s *Devices) staysInScope(ctx context.Context, by Principal, id DeviceID, p DevicePatch) error {
	if by.Scope == nil || by.Scope.Filter.Empty() || p.Name == nil && p.Tags == nil {
		return nil
	}
	d, err := s.targets.Device(ctx, id)
	if err != nil {
		return err
	}
	before := by.RoleOn(d)
	if p.Name != nil {
		d.Name = *p.Name
	}
	if p.Tags != nil {
		d.Tags = *p.Tags
	}
	if after := by.RoleOn(d); after != before {
		return Refuse(ErrForbidden, "leaves_scope", "device", id, "actor", by.Name)
	}
	return nil
}

// Hold prevents every principal but its owner from acting on the device until the given time
// or, if until is nil, until the hold is released.
func (s *Devices) Hold(ctx context.Context, by Principal, id DeviceID, reason string, until *time.Time) (Device,
	error) {
	if err := s.targets.MayOn(ctx, by, id, RoleOperator, "hold_device"); err != nil {
		return Device{}, err
	}
	reason, err := CleanLine("reason", reason, MaxReasonLength)
	if err != nil {
		return Device{}, err
	}
	now := s.now()
	if reason == "" {
		return Device{}, Refuse(ErrInvalid, "invalid_reason.hold").At("reason")
	}
	if until != nil && !until.After(now) {
		return Device{}, Refuse(ErrInvalid, "invalid_until.past").At("until")
	}
	return s.changed(ctx, id, HoldBegan,
		s.store.SetHold(ctx, by, id, &Hold{Reason: reason, By: by, Since: now, Until: until}))
}

// Release ends a hold; any operator may.
func (s *Devices) Release(ctx context.Context, by Principal, id DeviceID) (Device, error) {
	if err := s.targets.MayOn(ctx, by, id, RoleOperator, "release_device"); err != nil {
		return Device{}, err
	}
	return s.changed(ctx, id, HoldEnded, s.store.SetHold(ctx, by, id, nil))
}

// Retire takes a device out of service: it revokes the credentials and closes the connection.
// Records stay.
func (s *Devices) Retire(ctx context.Context, by Principal, id DeviceID) error {
	if err := s.targets.MayOn(ctx, by, id, RoleAdmin, "retire_device"); err != nil {
		return err
	}
	if id.IsProgram() {
		return Refuse(ErrConflict, "program_not_retired", "device", id)
	}
	if _, err := s.changed(ctx, id, "", s.store.RetireDevice(ctx, by, id, s.now())); err != nil {
		return err
	}
	s.end(id)
	return nil
}

func (s *Devices) end(id DeviceID) {
	s.retiring(id)
	s.kick(id, Cause{Because(CauseRetired), "retired"})
	s.events.Publish(Event{Kind: EventDevice, At: s.now(), Device: id})
}

// Listed stores the tools that a device listed.
func (s *Devices) Listed(ctx context.Context, l ToolListing) error {
	if err := s.inventories.SaveListing(ctx, l); err != nil {
		return err
	}
	s.targets.Forget(l.Device)
	s.events.Publish(Event{Kind: EventInventory, At: l.At, Device: l.Device})
	return nil
}

// changed completes a write: it drops the device from the cache, publishes an event for live
// pages, and reads the device back. hold is the change of a hold, "" for another change.
func (s *Devices) changed(ctx context.Context, id DeviceID, hold HoldChange, err error) (Device, error) {
	if err != nil {
		return Device{}, err
	}
	s.targets.Forget(id)
	s.events.Publish(Event{Kind: EventDevice, At: s.now(), Device: id, Hold: hold})
	return s.Device(ctx, id)
}

// Tools returns the device's current inventory, nil before the first listing.
func (s *Devices) Tools(ctx context.Context, id DeviceID) (*Inventory, error) {
	d, err := s.Device(ctx, id)
	if err != nil || d.InventoryID == "" {
		return nil, err
	}
	return s.Inventory(ctx, d.InventoryID)
}

// Diff compares two inventories by tool name.
func (s *Devices) Diff(ctx context.Context, from, to string) (InventoryDiff, error) {
	before, err := s.Inventory(ctx, from)
	if err != nil {
		return InventoryDiff{}, err
	}
	after, err := s.Inventory(ctx, to)
	if err != nil {
		return InventoryDiff{}, err
	}
	return DiffInventories(before, after), nil
}

func (p *DevicePatch) clean() (err error) {
	if p.Name != nil {
		if *p.Name, err = CleanLine("name", *p.Name, MaxNameLength); err != nil {
			return err
		}
	}
	if p.Notes != nil && (len(*p.Notes) > maxNotesBytes || !utf8.ValidString(*p.Notes) || strings.ContainsRune(*p.Notes,
		0)) {
		return Refuse(ErrInvalid, "invalid_notes", "limit", 8).At("notes")
	}
	if p.Tags != nil {
		if *p.Tags, err = CleanTags(*p.Tags); err != nil {
			return err
		}
	}
	if p.Transport != nil && *p.Transport != TransportMQTT && *p.Transport != TransportWebSocket {
		return Refuse(ErrInvalid, "invalid_transport", "value", string(*p.Transport)).At("transport")
	}
	if p.TimeZone != nil {
		*p.TimeZone, err = cleanZone(*p.TimeZone)
	}
	return err
}

// cleanZone accepts names from the time zone database. It refuses "Local", which would mean
// the server's time zone.
func cleanZone(name string) (string, error) {
	name = strings.TrimSpace(name)
	if name == "" {
		return "", nil
	}
	if _, err := time.LoadLocation(name); err != nil || name == "Local" || len(name) > maxZoneBytes {
		return "", Refuse(ErrInvalid, "invalid_time_zone").At("time_zone")
	}
	return name, nil
}

// CleanTags lower-cases, sorts and deduplicates tags. A tag must be usable in a query, so it
// contains no blanks, commas, colons or quotes.
func CleanTags(tags []string) ([]string, error) {
	out := []string{}
	for _, t := range tags {
		t = strings.ToLower(strings.TrimSpace(t))
		if t == "" {
			continue
		}
		if _, err := CleanLine("tag", t, maxTagLength); err != nil || strings.ContainsAny(t, " ,:\"*<>") {
			return nil, Refuse(ErrInvalid, "invalid_tag.form").At("tags")
		}
		out = append(out, t)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > maxTags {
		return nil, Refuse(ErrInvalid, "invalid_tag.many", "limit", 32).At("tags")
	}
	return out, nil
}
