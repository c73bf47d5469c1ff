package fleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// A Replacement is the plan for one unit to take over from another.
type Replacement struct {
	Old, New Device
	Lets     bool           // New waits and is enrolled by the replacement
	Moves    []ReplacedFact // facts that New gets from Old
	// Leaves are the campaigns in which Old waits. They continue without it.
	Leaves []CampaignPart
	// Differs reports that the boards differ; firmware and tools may differ too.
	Differs bool
}

// A CampaignPart is a device's part in an open campaign.
type CampaignPart struct {
	Campaign uuid.UUID
	Name     string // name of the campaign
	Active   bool   // the device is being upgraded; otherwise it waits
}

// A ReplacedFact is one fact that the new unit gets. Field is "name", "tags", "notes",
// "time_zone", "transport" or "hold".
type ReplacedFact struct {
	Field    string
	From, To any // of the field's type; To is the new unit's current value
	Loses    bool
}

// PlanReplacement checks whether successor can take over from old, and returns the plan.
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
	for _, d := range []Device{r.Old, r.New} {
		if !d.IsBoard() {
			return Replacement{}, Refuse(ErrConflict, "program_not_replaced", "device", d.ID)
		}
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
	choice, had := r.Old.TransportChoice, r.New.TransportChoice // chosen transports; the default is MQTT
	add("transport", choice, had, choice != had, had != choice && had != TransportMQTT)
	now := s.now()
	add("hold", r.Old.Hold, r.New.Hold, r.Old.Hold.Active(now), r.New.Hold.Active(now))
	return r, nil
}

// Replace retires old and gives its name, tags, notes, time zone, transport and hold to its
// successor. It first enrols a successor that waits; code is the enrolment code that the
// operator saw on it, and "" accepts any.
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
			return Device{}, fmt.Errorf("enrolling the successor: %w", err)
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

// ErrReplaced returns the error for a device that was already replaced.
func ErrReplaced(id, by DeviceID) *Error {
	return Refuse(ErrConflict, "already_replaced", "replaced", id, "device", by)
}

// ErrSuccessorTaken returns the error for a device that already took over from another one.
func ErrSuccessorTaken(id, before DeviceID) *Error {
	return Refuse(ErrConflict, "successor_taken", "successor", id, "device", before)
}
