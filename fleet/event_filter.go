package fleet

import (
	"context"

	"github.com/google/uuid"
)

// An EventFilter lets through the events about what exists for a principal. Its
// zero value lets through all.
type EventFilter struct {
	principal Principal
	sources   *EventSources
}

// EventSources find what events are about, narrowed to the scope of their context.
type EventSources struct {
	Device   func(ctx context.Context, id DeviceID) (Device, error)
	FanOut   func(ctx context.Context, id uuid.UUID) error
	Campaign func(ctx context.Context, id uuid.UUID) error
	Call     func(ctx context.Context, id uuid.UUID) error
	Picture  func(ctx context.Context, id uuid.UUID) error
	Approval func(ctx context.Context, by Principal, id uuid.UUID) error
}

// FilterFor returns the filter of a principal.
func (s *EventSources) FilterFor(p Principal) EventFilter {
	if !p.Hides() && p.toolScope() == nil {
		return EventFilter{}
	}
	return EventFilter{principal: p, sources: s}
}

// Pass reports whether what the event is about exists for the principal. What
// cannot be looked up does not pass. The name of a campaign that made a call is
// taken out of the event if the campaign does not exist.
func (f EventFilter) Pass(ctx context.Context, e *Event) bool {
	if f.sources == nil {
		return true
	}
	if f.principal.toolScope() != nil && !f.passTool(ctx, e) {
		return false
	}
	if !f.principal.Hides() {
		return true
	}
	if e.Device != "" {
		d, err := f.sources.Device(ctx, e.Device)
		if err != nil || !f.principal.Sees(d) {
			return false
		}
	}
	var find func(context.Context, uuid.UUID) error
	switch e.Kind {
	case EventFanOut:
		find = f.sources.FanOut
	case EventCampaign, EventDeployed:
		find = f.sources.Campaign
	case EventRelease:
		return true // images and releases belong to no device
	case EventCall:
		if e.Call.Actor.Kind == KindCampaign && !f.finds(ctx, f.sources.Campaign, e.Call.Actor.ID) {
			c := *e.Call
			c.Actor.Name = ""
			e.Call = &c
		}
		return true
	default:
		return e.Device != ""
	}
	return f.finds(ctx, find, e.Subject)
}

// passTool reports whether the tool that the event concerns exists for the
// principal. The records know: an event comes after its record.
func (f EventFilter) passTool(ctx context.Context, e *Event) bool {
	switch e.Kind {
	case EventCall:
		return f.principal.SeesTool(Tool{Name: e.Call.Tool}) && f.finds(ctx, f.sources.Call, e.Call.ID.String())
	case EventSnapshot:
		return f.finds(ctx, f.sources.Picture, e.Subject)
	case EventApproval:
		return f.finds(ctx, func(ctx context.Context, id uuid.UUID) error {
			return f.sources.Approval(ctx, f.principal, id)
		}, e.Subject)
	case EventFanOut:
		return f.finds(ctx, f.sources.FanOut, e.Subject)
	case EventCoreDump: // one that was deleted is found nowhere
		return f.principal.SeesTool(Tool{Name: ToolCoreDumpInfo})
	case EventConfig:
		return f.principal.SeesTool(Tool{Name: ToolConfigGet})
	case EventJob:
		_, _, ofCampaign := ParseUpgradeJob(e.Subject)
		return ofCampaign
	}
	return true
}

func (f EventFilter) finds(ctx context.Context, find func(context.Context, uuid.UUID) error, subject string) bool {
	id, err := uuid.Parse(subject)
	return err == nil && find(WithScope(ctx, f.principal), id) == nil
}
