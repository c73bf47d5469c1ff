package fleet

import (
	"context"
	"slices"
	"time"
)

// A TimelineKind is the kind of an entry in a device's time line.
type TimelineKind string

// Kinds of entries.
const (
	TimelinePresence      TimelineKind = "presence"
	TimelineCall          TimelineKind = "call"
	TimelineEdit          TimelineKind = "edit"          // name, tags, notes or time zone
	TimelineHold          TimelineKind = "hold"          // a hold began or ended
	TimelineDeployment    TimelineKind = "deployment"    // its part in a campaign
	TimelineFirmware      TimelineKind = "firmware"      // its build changed
	TimelineCrash         TimelineKind = "crash"         // core dumps, and restarts with their reasons
	TimelineInventory     TimelineKind = "inventory"     // its tools changed
	TimelineConfiguration TimelineKind = "configuration" // its configuration changed
	TimelineConversation  TimelineKind = "conversation"
	TimelinePicture       TimelineKind = "picture"
	TimelineAudit         TimelineKind = "audit" // other audit entries about the device
)

// TimelineKinds lists every kind.
var TimelineKinds = []TimelineKind{TimelinePresence, TimelineCall, TimelineEdit, TimelineHold, TimelineDeployment,
	TimelineFirmware, TimelineCrash, TimelineInventory, TimelineConfiguration, TimelineConversation, TimelinePicture,
	TimelineAudit}

// Codes of entries about firmware, crashes, inventories, configuration, conversations and
// pictures. The codes of other entries are states, presences, or actions of the audit.
const (
	TimelineFirstFirmware   = "firmware_first"   // version, slot
	TimelineFirmwareChanged = "firmware_changed" // version, slot, before
	TimelineRestarted       = "restarted"        // reset_reason, boots, crashes (in a row); or proof, an [EvidenceKind]
	TimelineCoreDump        = "core_dump"        // summary, version, reset_reason
	TimelineFirstTools      = "tools_first"      // tools, inventory
	TimelineToolsChanged    = "tools_changed"    // tools, inventory, before
	TimelineConfigured      = "configured"       // version, on_trial, reverted
	TimelineTalked          = "conversation"     // upstream, calls, ended, duration_ms
	TimelineScreen          = "picture_screen"   // call
	TimelineCamera          = "picture_camera"   // call, question
)

// A TimelineEntry is one event in the life of a device. It contains codes and parameters;
// text is made where it is shown.
type TimelineEntry struct {
	At   time.Time
	Kind TimelineKind
	// Ref is the id of the record behind the entry: a call, deployment, core dump,
	// snapshot, conversation or audit entry. May be "".
	Ref string
	// Code is the new presence for presence, the current state for a call or deployment, the
	// action for an audit entry, and otherwise one of the codes above.
	Code   string
	Params Params
	Actor  *Principal // principal, by kind and name; nil if no principal acted
	Key    string     // orders entries, and distinguishes them
}

// A TimelineFilter narrows a time line.
type TimelineFilter struct {
	Device DeviceID
	Kinds  []TimelineKind // none means all
	Before time.Time      // only entries before this time; zero means now
	Limit  int
	Cursor string
}

// A TimelineStore reads time lines.
type TimelineStore interface {
	// Timeline lists what happened to a device, newest first.
	Timeline(ctx context.Context, f TimelineFilter) (Page[TimelineEntry], error)
}

// Timeline lists a device's entries, newest first. It returns [ErrNotFound] if the device
// does not exist.
func (s *Devices) Timeline(ctx context.Context, f TimelineFilter) (Page[TimelineEntry], error) {
	for _, k := range f.Kinds {
		if !slices.Contains(TimelineKinds, k) {
			return Page[TimelineEntry]{}, Refuse(ErrInvalid, "invalid_timeline_kind", "value", string(k)).
				At("kinds")
		}
	}
	if _, err := s.Device(ctx, f.Device); err != nil { // stores the current presence
		return Page[TimelineEntry]{}, err
	}
	return s.timeline.Timeline(ctx, f)
}
