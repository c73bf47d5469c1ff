package fleet

import (
	"context"
	"fmt"
	"slices"
)

// unboundClientID is the Client-Id of an enrolled device that no unit is bound
// to. No unit can have it: see [cleanClientID].
const unboundClientID = "!"

// Connected notes a connection of a device.
func (e *Enrolments) Connected(c Connection) { e.duplicates.connected(c) }

// Heard notes a packet on the connection of a device.
func (e *Enrolments) Heard(id DeviceID) {
	if !e.duplicates.quiet() {
		e.duplicates.heard(id, e.o.Now())
	}
}

// Conflicts returns how many devices two units seem to use.
func (e *Enrolments) Conflicts() int { return e.duplicates.count(e.o.Now()) }

// Conflict returns the conflict of a device, if one stands. The store has it a
// moment later.
func (e *Enrolments) Conflict(id DeviceID) *DeviceConflict {
	c, ok := e.duplicates.conflict(id)
	if !ok || !c.Active(e.o.Now()) {
		return nil
	}
	c.Sides = slices.Clone(c.Sides)
	return &c
}

func (e *Enrolments) loadConflicts(ctx context.Context) error {
	if e.o.Conflicts == nil {
		return nil
	}
	list, err := e.o.Conflicts.DeviceConflicts(ctx, e.o.Now().Add(-ConflictTTL).UTC())
	if err != nil {
		return fmt.Errorf("loading conflicts of devices: %w", err)
	}
	for _, r := range list {
		e.duplicates.restore(r)
	}
	return nil
}

func (e *Enrolments) foundConflict(id DeviceID) {
	e.o.Log.Warn("two units seem to use one Device-Id", "device", id)
	if e.o.Conflicts != nil {
		e.conflicts.put(id, struct{}{})
	}
}

// saveConflicts stores the conflicts as they are now: one that was ended
// meanwhile is not.
func (e *Enrolments) saveConflicts(ctx context.Context, batch map[DeviceID]struct{}) error {
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

// StoredConflicts returns when the conflicts found so far are in the store.
func (e *Enrolments) StoredConflicts(ctx context.Context) error { return e.conflicts.flush(ctx) }

// ResolveConflict ends a device's conflict. What the units do afterwards counts
// again, but for polls of the unit that was not kept.
func (e *Enrolments) ResolveConflict(ctx context.Context, by Actor, id DeviceID, r ConflictResolution) error {
	if err := by.May(RoleOperator, "resolving a conflict"); err != nil {
		return err
	}
	if e.Conflict(id) == nil || e.o.Conflicts == nil {
		if _, ok := e.admission(id); !ok {
			return Errorf(ErrNotFound, "unknown_device", "there is no device %s", id)
		}
		return Errorf(ErrConflict, "no_conflict", "the device %s has no conflict", id)
	}
	if err := e.conflicts.lock(ctx); err != nil {
		return fmt.Errorf("device %s: %w", id, err)
	}
	defer e.conflicts.unlock()
	refused := ""
	err := e.decideBy(ctx, id, func(a *Admission) (err error) {
		refused, err = e.resolve(r, a)
		return err
	}, func(a Admission) error {
		return e.o.Conflicts.ResolveConflict(ctx, by, r, a, e.o.Now().UTC())
	})
	if err != nil {
		return err
	}
	e.duplicates.forget(id)
	if r.Act == ConflictKeep {
		e.with(id, func(st *standing) { st.refused = refused })
	}
	return nil
}

// resolve changes the standing as the act says, and returns the Client-Id that
// is refused from now on.
func (e *Enrolments) resolve(r ConflictResolution, a *Admission) (refused string, err error) {
	if a.Enrolment != EnrolmentEnrolled {
		return "", errNotEnrolled(a.Device)
	}
	switch r.Act {
	case ConflictDismiss:
		return "", nil
	case ConflictReenrol:
		a.ClientID, a.NewClientID, a.ClaimCode, a.Challenge = unboundClientID, "", "", ""
		a.Serial = int32(credentialSerial(a.Serial).revoked())
		return "", nil
	case ConflictKeep:
	default:
		e := Errorf(ErrInvalid, "invalid_act", "a conflict is ended by keep, reenrol or dismiss, not %.20q", r.Act)
		e.Field = "act"
		return "", e
	}
	known := append(e.duplicates.clientIDs(a.Device), a.ClientID, a.NewClientID)
	c, _ := e.duplicates.conflict(a.Device)
	i := slices.IndexFunc(c.Sides, func(s ConflictSide) bool { return s.Client == r.Client })
	if i < 0 {
		e := Errorf(ErrInvalid, "unknown_side", "no unit of the conflict is named %.20q; look at it again", r.Client)
		e.Field = "client"
		return "", e
	}
	if !slices.ContainsFunc(c.Sides, func(s ConflictSide) bool { return s.Client != r.Client }) {
		return "", Errorf(ErrConflict, "sides_share_client",
			"both units have one Client-Id: erase the flash of one of them, then decide")
	}
	keep := slices.IndexFunc(known, func(id string) bool { return id != "" && ClientTag(id) == r.Client })
	if keep < 0 {
		return "", Errorf(ErrConflict, "side_silent",
			"the unit %s has not been heard since fleetd started; restart it, then decide", r.Client)
	}
	for _, s := range c.Sides {
		for _, id := range known {
			if s.Client != r.Client && ClientTag(id) == s.Client {
				refused = id
			}
		}
	}
	if kept := known[keep]; kept != a.ClientID {
		a.ClientID = kept
		a.Serial = int32(credentialSerial(a.Serial).revoked())
	}
	a.NewClientID, a.ClaimCode, a.Challenge = "", "", ""
	return refused, nil
}
