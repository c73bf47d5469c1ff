package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// A Replacement is what happens when one unit takes over from another.
type Replacement struct {
	Old, New Device
	Lets     bool           // New waits, and is let in along the way
	Moves    []ReplacedFact // what New gets from Old
	// Leaves are the campaigns in which Old waits: they go on without it.
	Leaves []CampaignPart
	// Differs says that the boards are not the same: firmware and tools may not be.
	Differs bool
}

// A CampaignPart is a device's part in an open campaign.
type CampaignPart struct {
	Campaign uuid.UUID
	Name     string // of the campaign
	Active   bool   // the device works on it; otherwise it waits
}

// A ReplacedFact is one thing that the new unit gets. Field is "name", "tags",
// "notes", "time_zone", "transport" or "hold".
type ReplacedFact struct {
	Field    string
	From, To any // of the field's type; To is what the new unit has now
	Loses    bool
}

// PlanReplacement checks whether successor can take over from old, and says
// what would happen.
func (s *Devices) PlanReplacement(ctx context.Context, old, successor DeviceID) (Replacement, error) {
	if old == successor {
		return Replacement{}, Refuse(ErrInvalid, "invalid_successor.itself")
	}
	var r Replacement
	var err error
	if r.Old, err = s.Device(ctx, old); err != nil {
		return r, err
	}
	if r.New, err = s.Device(ctx, successor); err != nil {
		if errors.Is(err, ErrNotFound) {
			return r, Refuse(ErrInvalid, "unknown_successor", "device", successor)
		}
		return r, err
	}
	switch {
	case r.Old.ReplacedBy != "":
		return r, ErrReplaced(old, r.Old.ReplacedBy)
	case r.Old.RetiredAt != nil:
		return r, Refuse(ErrConflict, "device_retired", "device", old)
	case r.New.RetiredAt != nil:
		return r, Refuse(ErrConflict, "successor_retired", "device", successor)
	case r.New.Replaces != "":
		return r, ErrSuccessorTaken(successor, r.New.Replaces)
	case r.New.Enrolment == EnrolmentRejected:
		return r, Refuse(ErrConflict, "successor_rejected", "device", successor)
	}
	if s.busy != nil {
		if r.Leaves, err = s.busy(ctx, old); err != nil {
			return r, err
		}
		for _, c := range r.Leaves {
			if c.Active {
				return r, Refuse(ErrConflict, "campaign_running.device", "device", old, "name", c.Name)
			}
		}
	}
	r.Lets = r.New.Enrolment == EnrolmentWaiting
	r.Differs = r.Old.Board != "" && r.New.Board != "" && r.Old.Board != r.New.Board
	add := func(field string, from, to any, moves, loses bool) {
		if moves || loses {
			r.Moves = append(r.Moves, ReplacedFact{field, from, to, loses})
		}
	}
	add("name", r.Old.Name, r.New.Name, r.Old.Name != "", r.New.Name != "")
	add("tags", r.Old.Tags, r.New.Tags, len(r.Old.Tags) > 0, len(r.New.Tags) > 0)
	add("notes", r.Old.Notes, r.New.Notes, r.Old.Notes != "", r.New.Notes != "")
	add("time_zone", r.Old.TimeZone, r.New.TimeZone, r.Old.TimeZone != "", r.New.TimeZone != "")
	choice, had := r.Old.TransportChoice, r.New.TransportChoice // how each is to connect; MQTT unless one was chosen
	add("transport", choice, had, choice != had, had != choice && had != TransportMQTT)
	now := s.now()
	add("hold", r.Old.Hold, r.New.Hold, r.Old.Hold.Active(now), r.New.Hold.Active(now))
	return r, nil
}

// Replace retires old and gives its name, tags, notes, time zone, transport and
// hold to its successor. A successor that waits is let in first; code is the one that
// it was seen to show, "" accepts whichever asks.
func (s *Devices) Replace(ctx context.Context, by Principal, old, successor DeviceID, code string) (Device, error) {
	for _, id := range []DeviceID{old, successor} {
		if err := s.targets.MayOn(ctx, by, id, RoleAdmin, "replace_device"); err != nil {
			if id == successor && errors.Is(err, ErrNotFound) {
				err = Refuse(ErrInvalid, "unknown_successor", "device", successor)
			}
			return Device{}, err
		}
	}
	r, err := s.PlanReplacement(ctx, old, successor)
	if err != nil {
		return Device{}, err
	}
	if r.Lets {
		if err := s.approve(ctx, by, successor, code); err != nil {
			return Device{}, fmt.Errorf("letting in the successor: %w", err)
		}
	}
	d, err := s.changed(ctx, successor, "", s.store.ReplaceDevice(ctx, by, old, successor, s.now()))
	if err != nil {
		return Device{}, err
	}
	if s.transport != nil {
		s.transport(successor, d.TransportChoice)
	}
	s.targets.Forget(old)
	s.end(old)
	return d, nil
}

// ErrReplaced says that a device was replaced already.
func ErrReplaced(id, by DeviceID) *Error {
	return Refuse(ErrConflict, "already_replaced", "replaced", id, "device", by)
}

// ErrSuccessorTaken says that a device has taken over from another.
func ErrSuccessorTaken(id, before DeviceID) *Error {
	return Refuse(ErrConflict, "successor_taken", "successor", id, "device", before)
}
