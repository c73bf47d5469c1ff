package fleet

import (
	"context"
	"slices"
	"time"
)

// A TimelineKind is a subject of a device's time line.
type TimelineKind string

// Kinds of entries.
const (
	TimelinePresence      TimelineKind = "presence"
	TimelineCall          TimelineKind = "call"
	TimelineEdit          TimelineKind = "edit"          // name, tags, notes or time zone
	TimelineHold          TimelineKind = "hold"          // put on it, or released
	TimelineDeployment    TimelineKind = "deployment"    // its part in a campaign
	TimelineFirmware      TimelineKind = "firmware"      // it runs another build than before
	TimelineCrash         TimelineKind = "crash"         // core dumps, and restarts with their reason
	TimelineInventory     TimelineKind = "inventory"     // it offers other tools than before
	TimelineConfiguration TimelineKind = "configuration" // it runs with another one than before
	TimelineConversation  TimelineKind = "conversation"
	TimelinePicture       TimelineKind = "picture"
	TimelineAudit         TimelineKind = "audit" // other audit entries about the device
)

// TimelineKinds lists every kind.
var TimelineKinds = []TimelineKind{TimelinePresence, TimelineCall, TimelineEdit, TimelineHold, TimelineDeployment,
	TimelineFirmware, TimelineCrash, TimelineInventory, TimelineConfiguration, TimelineConversation, TimelinePicture,
	TimelineAudit}

// Codes of entries whose code is no state, presence, or action of the audit:
// those of firmware, crash, inventory, configuration, conversation and picture.
const (
	TimelineFirstFirmware   = "firmware_first"   // version, slot
	TimelineFirmwareChanged = "firmware_changed" // version, slot, before
	TimelineRestarted       = "restarted"        // reset_reason, boots; crashes in a row. Or proof: an [EvidenceKind]
	TimelineCoreDump        = "core_dump"        // summary, version, reset_reason
	TimelineFirstTools      = "tools_first"      // tools, inventory
	TimelineToolsChanged    = "tools_changed"    // tools, inventory, before
	TimelineConfigured      = "configured"       // version, on_trial, reverted
	TimelineTalked          = "conversation"     // upstream, calls, ended, duration_ms
	TimelineScreen          = "picture_screen"   // call
	TimelineCamera          = "picture_camera"   // call, question
)

// A TimelineEntry is one thing that happened to a device, or that was done to
// it. It holds codes and parameters; text is made where it is shown.
type TimelineEntry struct {
	At   time.Time
	Kind TimelineKind
	// Ref is the id of the record behind the entry: a call, deployment, core dump,
	// snapshot, conversation or audit entry. May be "".
	Ref string
	// Code says what happened. Of presence it is the new presence, of a call or
	// deployment its state now, of an audit entry its action.
	Code   string
	Params Params
	Actor  *Principal // who did it, by kind and name; nil if no one acted
	Key    string     // orders entries, and distinguishes them
}

// A TimelineFilter narrows a time line.
type TimelineFilter struct {
	Device DeviceID
	Kinds  []TimelineKind // none: all
	Before time.Time      // what happened before; zero is now
	Limit  int
	Cursor string
}

// A TimelineStore reads time lines.
type TimelineStore interface {
	// Timeline lists what happened to a device, newest first.
	Timeline(ctx context.Context, f TimelineFilter) (Page[TimelineEntry], error)
}

// Timeline lists what happened to a device, newest first: [ErrNotFound] for one
// that does not exist.
func (s *Devices) Timeline(ctx context.Context, f TimelineFilter) (Page[TimelineEntry], error) {
	for _, k := range f.Kinds {
		if !slices.Contains(TimelineKinds, k) {
			return Page[TimelineEntry]{}, Refuse(ErrInvalid, "invalid_timeline_kind", "value", string(k)).
				At("kinds")
		}
	}
	if _, err := s.Device(ctx, f.Device); err != nil { // brings presence up to the moment
		return Page[TimelineEntry]{}, err
	}
	return s.timeline.Timeline(ctx, f)
}
