package fleet

import (
	"context"

	"github.com/google/uuid"
)

// An EventFilter passes the events whose subject exists for a principal. The zero value
// passes every event.
type EventFilter struct {
	principal Principal
	sources   *EventSources
}

// EventSources looks up the subjects of events, narrowed to the scope of the context.
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

// Pass reports whether the subject of the event exists for the principal. An event whose
// subject cannot be looked up does not pass. If a campaign made a call and does not exist for
// the principal, Pass removes its name from the event.
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

// passTool reports whether the tool of the event exists for the principal. It reads the
// records, which are written before the event is published.
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
	case EventCoreDump: // a deleted dump can no longer be found
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
