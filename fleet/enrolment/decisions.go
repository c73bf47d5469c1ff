package enrolment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/attempts"
)

// codeTries bounds the wrong codes of one operator or token: a code has six digits.
var codeTries = attempts.Bound{Name: "claim code", Burst: 10, Each: 6 * time.Second}

// Claim lets in the device that shows the code, and returns it.
func (e *Service) Claim(ctx context.Context, by fleet.Principal, code string) (fleet.DeviceID, error) {
	id, err := e.ByCode(ctx, by, code)
	if err != nil {
		return "", err
	}
	digits, _ := cleanCode(code)
	return id, e.decide(ctx, by, "device.claim", id, func(a *Admission) error {
		if a.ClaimCode != digits {
			return errNoSuchCode() // the device polled with another Client-Id meanwhile
		}
		return letIn(a)
	})
}

// ByCode returns the device that shows the code and decides nothing. Wrong codes count as for
// [Service.Claim].
func (e *Service) ByCode(ctx context.Context, by fleet.Principal, code string) (fleet.DeviceID, error) {
	if err := by.MaySomewhere(fleet.RoleOperator, "claim_device"); err != nil {
		return "", err
	}
	digits, ok := cleanCode(code)
	if !ok {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_code")
	}
	try := attempts.Key{Bound: &codeTries, Subject: string(by.Kind) + " " + cmp.Or(by.ID, by.Name)}
	if !e.o.Attempts.Begin(try) {
		return "", fleet.Refuse(fleet.ErrTooMany, "too_many_attempts")
	}
	id, ok := e.codes.device(digits)
	err := error(nil)
	if ok {
		err = e.mayOn(ctx, by, id, "claim_device")
	}
	if !ok || errors.Is(err, fleet.ErrNotFound) {
		if err := e.o.Attempts.Failed(ctx, try); err != nil {
			return "", err
		}
		return "", errNoSuchCode()
	}
	e.o.Attempts.Succeeded(try)
	return id, err
}

// mayOn returns nil if the principal is an operator of the device.
func (e *Service) mayOn(ctx context.Context, by fleet.Principal, id fleet.DeviceID, act string) error {
	return by.MayOnDevice(ctx, e.device, id, fleet.RoleOperator, act)
}

// device returns a device, even if its first poll is not in the store yet.
func (e *Service) device(ctx context.Context, id fleet.DeviceID) (fleet.Device, error) {
	if e.o.Device == nil {
		return fleet.Device{}, fleet.Refuse(fleet.ErrNotFound, "unknown_device", "device", id)
	}
	d, err := e.o.Device(ctx, id)
	if errors.Is(err, fleet.ErrNotFound) {
		e.with(id, func(st *standing) {
			if d, err = (fleet.Device{ID: id}), nil; st.request != nil {
				d.Board = st.request.board
			}
		})
	}
	if errors.Is(err, fleet.ErrNotFound) {
		err = fleet.Refuse(fleet.ErrNotFound, "unknown_device", "device", id)
	}
	return d, err
}

// Approve lets in a device that waits, that polls with a new Client-Id, or that was rejected.
// code is the code that the operator saw on the device; it prevents letting in another unit
// that has polled under the same id meanwhile. With "" Approve lets in the current request.
func (e *Service) Approve(ctx context.Context, by fleet.Principal, id fleet.DeviceID, code string) error {
	return e.decide(ctx, by, "device.approve", id, func(a *Admission) error {
		if code != "" && code != a.ClaimCode {
			return fleet.Refuse(fleet.ErrConflict, "request_changed", "device", id)
		}
		return letIn(a)
	})
}

// Reject refuses the request of a device that waits, or of a new Client-Id; in the second case
// the device keeps its present Client-Id. A device without a request is removed from the fleet.
func (e *Service) Reject(ctx context.Context, by fleet.Principal, id fleet.DeviceID) error {
	return e.decide(ctx, by, "device.reject", id, func(a *Admission) error {
		switch {
		case a.Enrolment == fleet.EnrolmentRejected:
			return fleet.Refuse(fleet.ErrConflict, "already_rejected", "device", id)
		case a.Enrolment == fleet.EnrolmentEnrolled && a.NewClientID != "":
			a.Refused = a.NewClientID
		default:
			a.Enrolment = fleet.EnrolmentRejected
			a.Serial = int32(credentialSerial(a.Serial).revoked())
		}
		a.NewClientID, a.ClaimCode, a.Challenge = "", "", ""
		return nil
	})
}

// Revoke revokes the device's credentials at once and ends its connection. A board gets new ones when
// it next starts; a device of MCP over MQTT needs [Service.ReissueMQTT5].
func (e *Service) Revoke(ctx context.Context, by fleet.Principal, id fleet.DeviceID) error {
	return e.decide(ctx, by, "device.revoke", id, func(a *Admission) error {
		if a.Enrolment != fleet.EnrolmentEnrolled {
			return errNotEnrolled(id)
		}
		a.Serial = int32(credentialSerial(a.Serial).revoked())
		a.Revoked = a.MQTT5
		return nil
	})
}

// Rotate gives the device new credentials when it next starts. The present credentials remain
// valid until the device has used the new ones.
func (e *Service) Rotate(ctx context.Context, by fleet.Principal, id fleet.DeviceID) error {
	return e.decide(ctx, by, "device.rotate", id, func(a *Admission) error {
		serial := credentialSerial(a.Serial)
		switch {
		case a.MQTT5:
			return fleet.Refuse(fleet.ErrConflict, "only_by_hand", "device", id)
		case a.Enrolment != fleet.EnrolmentEnrolled:
			return errNotEnrolled(id)
		case serial.overlaps():
			return fleet.Refuse(fleet.ErrConflict, "rotation_pending", "device", id)
		}
		a.Serial = int32(serial.rotated())
		return nil
	})
}

// Retired records that the device has been retired. It is no longer let in.
func (e *Service) Retired(id fleet.DeviceID) {
	e.with(id, func(st *standing) {
		e.endRequest(st)
		st.retired, st.newClientID = true, ""
	})
	e.duplicates.forget(id)
}

// letIn grants a request.
func letIn(a *Admission) error {
	switch {
	case a.Enrolment == fleet.EnrolmentEnrolled && a.NewClientID != "":
		a.ClientID, a.NewClientID, a.Key = a.NewClientID, "", ""
		// Otherwise the old credentials would be valid again after a return to the old Client-Id.
		a.Serial = int32(credentialSerial(a.Serial).revoked())
	case a.Enrolment == fleet.EnrolmentEnrolled:
		return fleet.Refuse(fleet.ErrConflict, "already_enrolled", "device", a.Device)
	default:
		a.Enrolment = fleet.EnrolmentEnrolled
	}
	a.ClaimCode, a.Challenge = "", ""
	return nil
}

// decide changes a device's admission, first in the store with its audit entry and then in
// memory. No poll is written meanwhile, because it could undo the change.
func (e *Service) decide(ctx context.Context, by fleet.Principal, action string, id fleet.DeviceID,
	change func(*Admission) error) error {
	if err := e.mayOn(ctx, by, id, "decide_device"); err != nil {
		return err
	}
	if id.IsProgram() {
		return fleet.ErrNotABoard(id)
	}
	return e.decideBy(ctx, id, change, func(a Admission) error {
		return e.o.Store.SaveAdmission(ctx, by, action, a, e.o.Now().UTC())
	})
}

// decideBy is decide with a function that stores the change.
func (e *Service) decideBy(ctx context.Context, id fleet.DeviceID, change func(*Admission) error,
	save func(Admission) error) error {
	if err := e.polls.Lock(ctx); err != nil {
		return fmt.Errorf("device %s: %w", id, err)
	}
	defer e.polls.Unlock()
	before, ok := e.admission(id)
	switch {
	case !ok:
		return fleet.Refuse(fleet.ErrNotFound, "unknown_device", "device", id)
	case before.Retired:
		return fleet.Refuse(fleet.ErrConflict, "device_retired", "device", id)
	}
	after := before
	if err := change(&after); err != nil {
		return err
	}
	e.storeRequest(id)
	if err := e.polls.FlushKey(ctx, id); err != nil { // stores the row of a new device
		return fmt.Errorf("device %s: %w", id, err)
	}
	if err := save(after); err != nil {
		return fmt.Errorf("device %s: %w", id, err)
	}
	e.apply(before, after)
	return nil
}

// apply copies a stored decision to memory.
func (e *Service) apply(before, after Admission) {
	e.with(after.Device, func(st *standing) {
		st.enrolment, st.clientID, st.newClientID = after.Enrolment, after.ClientID, after.NewClientID
		st.refused, st.key, st.revoked = after.Refused, after.Key, after.Revoked
		if after.Serial != before.Serial { // otherwise a rotation may have ended meanwhile
			st.serial = credentialSerial(after.Serial)
		}
		st.pending = nil
		if after.ClaimCode == "" {
			e.endRequest(st)
		}
	})
	dead := before.Enrolment == fleet.EnrolmentEnrolled &&
		credentialSerial(before.Serial).generation() != credentialSerial(after.Serial).generation() &&
		!credentialSerial(after.Serial).overlaps()
	if dead {
		e.o.Kick(after.Device, fleet.Cause{Reason: fleet.Because(fleet.CauseRevoked), Text: "credentials revoked"})
	}
	e.changed(after.Device)
}

// with calls f with the device's standing, if it has one, under its lock.
func (e *Service) with(id fleet.DeviceID, f func(*standing)) {
	s := e.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.devices[id]; st != nil {
		f(st)
	}
}

func errNoSuchCode() error {
	return fleet.Refuse(fleet.ErrNotFound, "unknown_code")
}

func errNotEnrolled(id fleet.DeviceID) error {
	return fleet.Refuse(fleet.ErrConflict, "not_enrolled", "device", id)
}

// A WaitingDevice is a device that waits to be let in.
type WaitingDevice struct {
	Device     fleet.DeviceID
	Code       string // as the device shows it
	ClientID   string // the Client-Id that it polls with
	Again      bool   // enrolled before, under another Client-Id: its memory was erased, or another device poses as it
	Board      string // as last polled; "" without a poll since the start of the process
	Version    string
	RemoteAddr string
	Since      time.Time // first poll; zero if before the start of the process
	LastPoll   time.Time
	Why        WaitReason // why it shows no code; "" if it shows Code

	Serial   string         // claimed by the device and on record; "" if none
	Proved   bool           // the device proved that it carries Serial
	Conflict fleet.DeviceID // the device that proved Serial before; "" if none did
}

// WaitingInScope returns the devices of [Service.Waiting] that are visible to the principal of
// the request in ctx.
func (e *Service) WaitingInScope(ctx context.Context) ([]WaitingDevice, error) {
	all := e.Waiting()
	scope, narrow := fleet.ScopeOf(ctx)
	if !narrow {
		return all, nil
	}
	var seen []WaitingDevice
	for _, w := range all {
		d, err := e.device(ctx, w.Device)
		switch {
		case errors.Is(err, fleet.ErrNotFound):
			continue // its request ended meanwhile
		case err != nil:
			return nil, err
		case scope.Covers(d):
			seen = append(seen, w)
		}
	}
	return seen, nil
}

// Waiting returns the devices that wait to be let in, longest first.
func (e *Service) Waiting() []WaitingDevice {
	var all []WaitingDevice
	for _, id := range e.codes.devices() {
		e.with(id, func(st *standing) {
			if r := st.request; r != nil {
				again := st.enrolment == fleet.EnrolmentEnrolled
				w := WaitingDevice{Device: id, Code: r.code, ClientID: st.clientID, Again: again, Board: r.board,
					Version: st.version.Value(), RemoteAddr: r.remoteAddr, Since: r.since, LastPoll: r.lastPoll, Why: r.why}
				if again {
					w.ClientID = st.newClientID
				}
				if c := r.claim; c != nil {
					w.Serial, w.Proved, w.Conflict = c.serial, c.proved, c.conflict
				}
				all = append(all, w)
			}
		})
	}
	slices.SortFunc(all, func(a, b WaitingDevice) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Device, b.Device))
	})
	return all
}
