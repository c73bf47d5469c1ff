package fleet

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// MaxBulkDevices is the maximum number of devices that one act changes. The devices stay
// locked until all of them have changed.
const MaxBulkDevices = 50_000

// BulkPage is how many devices are read and written at a time.
const BulkPage = 5000

// A BulkAct is an action on many devices at once.
type BulkAct string

const (
	BulkTag     BulkAct = "tag"
	BulkUntag   BulkAct = "untag"
	BulkHold    BulkAct = "hold"
	BulkRelease BulkAct = "release"
	BulkRetire  BulkAct = "retire"
)

// BulkActs lists every act.
var BulkActs = []BulkAct{BulkTag, BulkUntag, BulkHold, BulkRelease, BulkRetire}

// bulkActs maps each act to the role that it needs on each device, to its code in errors, and to the
// act that takes it back.
var bulkActs = map[BulkAct]struct {
	need Role
	act  string
	undo BulkAct
}{
	BulkTag:     {RoleOperator, "change_device", BulkUntag},
	BulkUntag:   {RoleOperator, "change_device", BulkTag},
	BulkHold:    {RoleOperator, "hold_device", BulkRelease},
	BulkRelease: {RoleOperator, "release_device", ""},
	BulkRetire:  {RoleAdmin, "retire_device", ""},
}

// Role returns the lowest role that may do the act to a device.
func (a BulkAct) Role() Role { return bulkActs[a].need }

// MustType reports whether an operator must type the number of devices to confirm the act,
// because it cannot be undone.
func (a BulkAct) MustType() bool { return a == BulkRetire }

// Codes of the reasons for which an act skips a device.
const (
	LeftOutUnknown   = "unknown_device" // no device with this id exists for the actor
	LeftOutRetired   = "device_retired"
	LeftOutRole      = "not_yours"   // the actor's role on it does not suffice
	LeftOutHeld      = "device_held" // another principal holds it
	LeftOutUnchanged = "unchanged"   // it already is as requested
	LeftOutTags      = "too_many_tags"
	LeftOutProgram   = "program"      // a plug-in or an endpoint, which is not retired
	LeftOutScope     = "leaves_scope" // the change would move it into or out of the actor's scope
)

// LeftOutCodes lists every such code.
var LeftOutCodes = []string{LeftOutUnknown, LeftOutRetired, LeftOutRole, LeftOutHeld, LeftOutUnchanged, LeftOutTags,
	LeftOutProgram, LeftOutScope}

// A BulkRequest is a request for one act, on the devices of a query or on a list of devices.
type BulkRequest struct {
	Actor   Principal
	Query   string
	Devices []DeviceID // instead of Query
	Act     BulkAct
	Tags    []string   // for tag and untag
	Reason  string     // for hold
	Until   *time.Time // for hold; nil holds until released
	// Confirm is the number of devices that a preview returned; the act is refused if the
	// number differs. 0 skips the check, which acts that cannot be undone do not allow.
	Confirm int
}

// A BulkResult is the outcome or the preview of an act.
type BulkResult struct {
	Matched int
	Targets int              // devices that the act changes
	Skipped []SkippedDevices // by reason, most first

	// Undo has the requests that take the act back on exactly the devices that it changed. They lack the
	// Actor. Without any, it cannot be taken back.
	Undo []BulkRequest
}

// A DeviceChange is the change of one device.
type DeviceChange struct {
	ID    DeviceID
	Patch DevicePatch // tags, names and notes
}

// DeviceChanges are changes of one kind, made together.
type DeviceChanges struct {
	Act     BulkAct
	Bulk    uuid.UUID // groups the audit entries
	Changes []DeviceChange
	Hold    *Hold // for [BulkHold]
	At      time.Time
}

// A BulkPlan returns the changes of a page of devices. ids are the ids of the page, including
// those of devices that do not exist. first is true for the first page; a retried transaction
// starts with it again.
type BulkPlan func(first bool, ids []DeviceID, devices []Device) (DeviceChanges, error)

// BulkStore changes many devices at once.
type BulkStore interface {
	// ChangeDevices reads and locks the existing devices among ids, page by page, and applies
	// the changes that plan returns. It runs in one transaction and writes an audit entry for
	// each changed device. It calls last before it commits. An error of plan or last rolls
	// everything back.
	ChangeDevices(ctx context.Context, by Principal, ids []DeviceID, plan BulkPlan, last func() error) error
}

// PreviewBulk returns what the act would do. It changes nothing.
func (s *Devices) PreviewBulk(ctx context.Context, r BulkRequest) (BulkResult, error) {
	ids, err := s.prepareBulk(ctx, &r)
	if err != nil {
		return BulkResult{}, err
	}
	ctx = WithScope(ctx, r.Actor)
	t := bulkTally{now: s.now()}
	for page := range slices.Chunk(ids, BulkPage) {
		devices, err := s.store.DevicesByID(ctx, page)
		if err != nil {
			return BulkResult{}, err
		}
		t.judge(r, page, devices)
	}
	return t.result(r.Act), nil
}

// Bulk applies one act to every device that it does not skip or, if it fails, to none.
func (s *Devices) Bulk(ctx context.Context, r BulkRequest) (BulkResult, error) {
	ids, err := s.prepareBulk(ctx, &r)
	if err != nil {
		return BulkResult{}, err
	}
	bulk := uuid.Must(uuid.NewV7())
	var t bulkTally
	plan := func(first bool, ids []DeviceID, devices []Device) (DeviceChanges, error) {
		if first {
			t = bulkTally{now: s.now()}
		}
		c := DeviceChanges{Act: r.Act, Bulk: bulk, At: t.now, Changes: t.judge(r, ids, devices)}
		if r.Act == BulkHold {
			c.Hold = &Hold{Reason: r.Reason, By: r.Actor, Since: t.now, Until: r.Until}
		}
		return c, nil
	}
	last := func() error {
		if n := len(t.changed); r.Confirm != n && (r.Confirm != 0 || r.Act.MustType()) {
			return Refuse(ErrConflict, "bulk_count_differs", "n", n, "confirm", r.Confirm).At("confirm")
		}
		return nil
	}
	if err := s.bulk.ChangeDevices(WithScope(ctx, r.Actor), r.Actor, ids, plan, last); err != nil {
		return BulkResult{}, err
	}
	s.changedMany(t.changed, r.Act)
	return t.result(r.Act), nil
}

// prepareBulk checks the request and finds its devices.
func (s *Devices) prepareBulk(ctx context.Context, r *BulkRequest) ([]DeviceID, error) {
	act, ok := bulkActs[r.Act]
	if !ok {
		return nil, Refuse(ErrInvalid, "invalid_act", "value", string(r.Act)).At("act")
	}
	if err := r.Actor.MaySomewhere(act.need, act.act); err != nil {
		return nil, err
	}
	if err := r.clean(s.now()); err != nil {
		return nil, err
	}
	ids := slices.Clone(r.Devices)
	if len(ids) == 0 {
		q, err := ParseQuery(r.Query)
		if err != nil {
			return nil, err
		}
		if ids, err = s.DeviceIDs(WithScope(ctx, r.Actor), q); err != nil {
			return nil, err
		}
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) > MaxBulkDevices {
		return nil, Refuse(ErrInvalid, "audience_too_large.bulk", "matched", len(ids), "limit", MaxBulkDevices)
	}
	return ids, nil
}

func (r *BulkRequest) clean(now time.Time) (err error) {
	switch r.Act {
	case BulkTag, BulkUntag:
		if r.Tags, err = CleanTags(r.Tags); err == nil && len(r.Tags) == 0 {
			err = Refuse(ErrInvalid, "invalid_tag.none").At("tags")
		}
	case BulkHold:
		if r.Reason, err = CleanLine("reason", r.Reason, MaxReasonLength); err == nil && r.Reason == "" {
			err = Refuse(ErrInvalid, "invalid_reason.hold").At("reason")
		}
		if err == nil && r.Until != nil && !r.Until.After(now) {
			err = Refuse(ErrInvalid, "invalid_until.past").At("until")
		}
	}
	return err
}

// judge returns the patch that the act applies to a device, or the code for which it skips
// the device.
func (r *BulkRequest) judge(d Device, now time.Time) (p DevicePatch, leftOut string) {
	switch {
	case !r.Actor.RoleOn(d).Allows(r.Act.Role()):
		return p, LeftOutRole
	case d.RetiredAt != nil:
		return p, LeftOutRetired
	}
	held := d.Hold.Active(now)
	switch r.Act {
	case BulkTag, BulkUntag:
		tags := changedTags(d.Tags, r.Tags, r.Act == BulkTag)
		after := d
		after.Tags = tags
		switch {
		case slices.Equal(tags, d.Tags):
			return p, LeftOutUnchanged
		case len(tags) > maxTags:
			return p, LeftOutTags
		case r.Actor.RoleOn(after) != r.Actor.RoleOn(d):
			return p, LeftOutScope
		}
		p.Tags = &tags
	case BulkHold, BulkRetire:
		if r.Act == BulkRetire && d.ID.IsProgram() {
			return p, LeftOutProgram
		}
		if held && !d.Hold.By.Same(r.Actor) {
			return p, LeftOutHeld
		}
	case BulkRelease:
		if !held {
			return p, LeftOutUnchanged
		}
	}
	return p, ""
}

// changedTags returns the tags with some added (more) or removed.
func changedTags(tags, some []string, more bool) []string {
	has := func(t string) bool { return slices.Contains(tags, t) }
	if !more {
		return slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return slices.Contains(some, t) })
	}
	missing := slices.DeleteFunc(slices.Clone(some), has)
	if len(missing) == 0 {
		return tags
	}
	return slices.Sorted(slices.Values(slices.Concat(tags, missing)))
}

// A bulkTally counts what an act does, page by page.
type bulkTally struct {
	now     time.Time
	matched int
	changed []DeviceID
	skipped SkippedTally
	undo    map[string][]DeviceID // by tag gained or lost; "" for holds that began
}

// judge counts the devices of the ids and returns the changes of those that change.
func (t *bulkTally) judge(r BulkRequest, ids []DeviceID, devices []Device) []DeviceChange {
	byID := make(map[DeviceID]*Device, len(devices))
	for i := range devices {
		byID[devices[i].ID] = &devices[i]
	}
	var changes []DeviceChange
	for _, id := range ids {
		t.matched++
		d := byID[id]
		if d == nil {
			t.skipped.Add(LeftOutUnknown, id)
			continue
		}
		patch, why := r.judge(*d, t.now)
		if why != "" {
			t.skipped.Add(why, id)
			continue
		}
		t.changed = append(t.changed, id)
		t.noteUndo(r, *d)
		changes = append(changes, DeviceChange{id, patch})
	}
	return changes
}

func (t *bulkTally) result(act BulkAct) BulkResult {
	result := BulkResult{Matched: t.matched, Targets: len(t.changed), Skipped: t.skipped.Groups()}
	for _, tag := range slices.Sorted(maps.Keys(t.undo)) {
		undo := BulkRequest{Act: bulkActs[act].undo, Devices: t.undo[tag]}
		if tag != "" {
			undo.Tags = []string{tag}
		}
		result.Undo = append(result.Undo, undo)
	}
	return result
}

// noteUndo notes what the act changes of a device: a tag that it had before stays.
func (t *bulkTally) noteUndo(r BulkRequest, before Device) {
	if t.undo == nil {
		t.undo = make(map[string][]DeviceID)
	}
	switch r.Act {
	case BulkTag, BulkUntag:
		for _, tag := range r.Tags {
			if slices.Contains(before.Tags, tag) == (r.Act == BulkUntag) {
				t.undo[tag] = append(t.undo[tag], before.ID)
			}
		}
	case BulkHold:
		if !before.Hold.Active(t.now) {
			t.undo[""] = append(t.undo[""], before.ID)
		}
	}
}

var holdChanges = map[BulkAct]HoldChange{BulkHold: HoldBegan, BulkRelease: HoldEnded}

// changedMany drops many changed devices from the cache and publishes their events.
func (s *Devices) changedMany(ids []DeviceID, act BulkAct) {
	now := s.now()
	for _, id := range ids {
		s.targets.Forget(id)
		if act == BulkRetire {
			s.end(id)
			continue
		}
		s.events.Publish(Event{Kind: EventDevice, At: now, Device: id, Hold: holdChanges[act]})
	}
}
