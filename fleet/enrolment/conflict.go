package enrolment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fleetd/fleet"
)

// unboundClientID is the Client-Id of an enrolled device that no unit is bound to.
// [cleanClientID] rejects it, so no unit can have it.
const unboundClientID = "!"

// Connected records a connection of a device.
func (e *Service) Connected(c fleet.Connection) {
	e.Settled(c.Device)
	e.duplicates.connected(c)
}

// Heard records a packet on the connection of a device.
func (e *Service) Heard(id fleet.DeviceID) {
	if !e.duplicates.quiet() {
		e.duplicates.heard(id, e.o.Now())
	}
}

// Conflicts returns the number of devices that two units seem to use.
func (e *Service) Conflicts() int { return e.duplicates.count(e.o.Now()) }

// Conflict returns the open conflict of a device, or nil. The store has it a moment later.
func (e *Service) Conflict(id fleet.DeviceID) *fleet.DeviceConflict {
	c, ok := e.duplicates.conflict(id)
	if !ok || !c.Active(e.o.Now()) {
		return nil
	}
	c.Sides = slices.Clone(c.Sides)
	return &c
}

func (e *Service) loadConflicts(ctx context.Context) error {
	if e.o.Conflicts == nil {
		return nil
	}
	list, err := e.o.Conflicts.DeviceConflicts(ctx, e.o.Now().Add(-fleet.ConflictTTL).UTC())
	if err != nil {
		return fmt.Errorf("loading conflicts of devices: %w", err)
	}
	for _, r := range list {
		e.duplicates.restore(r)
	}
	return nil
}

func (e *Service) foundConflict(id fleet.DeviceID) {
	e.o.Log.Warn("two units seem to use one Device-Id", "device", id)
	if e.o.Conflicts != nil {
		e.conflicts.Put(id, struct{}{})
	}
}

// saveConflicts stores the current conflicts. It skips those that ended meanwhile.
func (e *Service) saveConflicts(ctx context.Context, batch map[fleet.DeviceID]struct{}) error {
	var records []ConflictRecord
	for id := range batch {
		if c, ok := e.duplicates.conflict(id); ok {
			records = append(records, ConflictRecord{id, c})
		}
	}
	if err := e.o.Conflicts.SaveConflicts(ctx, records); err != nil {
		return err
	}
	for _, r := range records {
		e.changed(r.Device)
	}
	return nil
}

// StoredConflicts returns once all conflicts found so far are in the store.
func (e *Service) StoredConflicts(ctx context.Context) error { return e.conflicts.Settle(ctx) }

// ResolveConflict ends a device's conflict. Later signs of the units count again, except polls
// of the unit that lost.
func (e *Service) ResolveConflict(ctx context.Context, by fleet.Principal, id fleet.DeviceID,
	r ConflictResolution) error {
	if err := e.mayOn(ctx, by, id, "resolve_conflict"); err != nil {
		return err
	}
	if r.Act == ConflictClearKey {
		return e.ClearKey(ctx, by, id)
	}
	if r.Act == ConflictAcceptHardware || r.Act == ConflictKeepHardware {
		return e.resolveHardware(ctx, by, id, r.Act == ConflictAcceptHardware)
	}
	if e.Conflict(id) == nil || e.o.Conflicts == nil {
		if _, ok := e.admission(id); !ok {
			return fleet.Refuse(fleet.ErrNotFound, "unknown_device", "device", id)
		}
		return fleet.Refuse(fleet.ErrConflict, "no_conflict", "device", id)
	}
	if err := e.conflicts.Lock(ctx); err != nil {
		return fmt.Errorf("device %s: %w", id, err)
	}
	defer e.conflicts.Unlock()
	err := e.decideBy(ctx, id, func(a *Admission) error { return e.resolve(r, a) }, func(a Admission) error {
		return e.o.Conflicts.ResolveConflict(ctx, by, r, a, e.o.Now().UTC())
	})
	if err != nil {
		return err
	}
	e.duplicates.forget(id)
	e.with(id, func(st *standing) { st.last, st.before = pollOrigin{}, pollOrigin{} })
	return nil
}

// resolveHardware pins the hardware that the device claims, or drops the claim.
func (e *Service) resolveHardware(ctx context.Context, by fleet.Principal, id fleet.DeviceID, accept bool) error {
	if _, ok := e.admission(id); !ok {
		return fleet.Refuse(fleet.ErrNotFound, "unknown_device", "device", id)
	}
	if e.o.Conflicts == nil {
		return fleet.Refuse(fleet.ErrConflict, "no_conflict", "device", id)
	}
	if err := e.Stored(ctx, id); err != nil {
		return fmt.Errorf("device %s: %w", id, err)
	}
	if err := e.o.Conflicts.ResolveHardware(ctx, by, id, accept); err != nil {
		return fmt.Errorf("device %s: %w", id, err)
	}
	e.changed(id)
	return nil
}

// resolve applies the act to the admission.
func (e *Service) resolve(r ConflictResolution, a *Admission) error {
	if a.Enrolment != fleet.EnrolmentEnrolled {
		return errNotEnrolled(a.Device)
	}
	switch r.Act {
	case ConflictDismiss:
		return nil
	case ConflictReenrol:
		a.ClientID, a.NewClientID, a.ClaimCode, a.Challenge, a.Key = unboundClientID, "", "", "", ""
		a.Refused = ""
		a.Serial = int32(credentialSerial(a.Serial).revoked())
		return nil
	case ConflictKeep:
	default:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_act.conflict", "value", string(r.Act)).At("act")
	}
	known := append(e.duplicates.clientIDs(a.Device), a.ClientID, a.NewClientID)
	c, _ := e.duplicates.conflict(a.Device)
	i := slices.IndexFunc(c.Sides, func(s fleet.ConflictSide) bool { return s.Client == r.Client })
	if i < 0 {
		return fleet.Refuse(fleet.ErrInvalid, "unknown_side", "value", r.Client).At("client")
	}
	if !slices.ContainsFunc(c.Sides, func(s fleet.ConflictSide) bool { return s.Client != r.Client }) {
		return fleet.Refuse(fleet.ErrConflict, "sides_share_client")
	}
	keep := slices.IndexFunc(known, func(id string) bool { return id != "" && fleet.ClientTag(id) == r.Client })
	if keep < 0 {
		return fleet.Refuse(fleet.ErrConflict, "side_silent", "client", r.Client)
	}
	a.Refused = ""
	for _, s := range c.Sides {
		for _, id := range known {
			if s.Client != r.Client && fleet.ClientTag(id) == s.Client {
				a.Refused = id
			}
		}
	}
	if kept := known[keep]; kept != a.ClientID {
		a.ClientID, a.Key = kept, ""
		a.Serial = int32(credentialSerial(a.Serial).revoked())
	}
	a.NewClientID, a.ClaimCode, a.Challenge = "", "", ""
	return nil
}

// A ConflictRecord is a conflict to store.
type ConflictRecord struct {
	Device   fleet.DeviceID
	Conflict fleet.DeviceConflict
}

// ConflictStore stores conflicts for pages, filters and the next start.
type ConflictStore interface {
	// DeviceConflicts returns the conflicts with evidence since the given time.
	DeviceConflicts(ctx context.Context, since time.Time) ([]ConflictRecord, error)
	SaveConflicts(ctx context.Context, conflicts []ConflictRecord) error
	// ResolveConflict removes a device's conflict and stores the resulting admission with its
	// audit entry.
	ResolveConflict(ctx context.Context, by fleet.Principal, r ConflictResolution, a Admission, at time.Time) error
	// ResolveHardware pins the board and chip that the device claims, or drops the claim, with
	// an audit entry. Without a claim it returns a [fleet.ErrConflict].
	ResolveHardware(ctx context.Context, by fleet.Principal, id fleet.DeviceID, accept bool) error
}

// A ConflictAct is the way an operator ends a conflict.
type ConflictAct string

// The conflict acts.
const (
	ConflictKeep    ConflictAct = "keep"    // one side keeps the device's credentials; the other is refused
	ConflictReenrol ConflictAct = "reenrol" // neither side keeps them: the unit that starts next asks to join
	ConflictDismiss ConflictAct = "dismiss" // only the mark is removed
	// The acts for a board or chip other than the pinned one.
	ConflictAcceptHardware ConflictAct = "accept_hardware" // pins what the device claims
	ConflictKeepHardware   ConflictAct = "keep_hardware"   // drops the claim
	ConflictClearKey       ConflictAct = "clear_key"       // the next key that the device proves is bound
)

// A ConflictResolution is an act and the side that it applies to.
type ConflictResolution struct {
	Act    ConflictAct
	Client string // the side's Client, for [ConflictKeep]
}
