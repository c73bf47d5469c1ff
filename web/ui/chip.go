package ui

import (
	"context"

	"fleetd/fleet"
)

// A tone is one of the four meanings a colour may have, or none.
type tone string

const (
	toneNone tone = "none"
	toneGood tone = "good"
	toneBusy tone = "busy"
	toneWarn tone = "warn"
	toneBad  tone = "bad"
)

// tones are the meanings of the domain's states for an operator on call. The text of a state is the
// message "state.<state>".
var tones = map[string]tone{
	// presence
	"online": toneGood, "unresponsive": toneWarn, "unknown_edge": toneWarn, "offline": toneNone,
	// calls; pending is also a presence: never seen on MQTT
	"pending": toneNone, "sent": toneBusy, "succeeded": toneGood, "tool_error": toneBad,
	"timed_out": toneBad, "unknown": toneWarn, "refused": toneWarn, "invalid": toneWarn,
	"canceled": toneNone, "pending_approval": toneBusy, "pending_device": toneBusy,
	// fan-outs
	"running": toneBusy, "completed": toneGood,
	// enrolment
	"waiting": toneBusy, "enrolled": toneGood, "rejected": toneNone,
}

// shownPresence returns a device's presence as shown: a device that connects only for conversations
// is not offline between them.
func shownPresence(d fleet.Device) fleet.Presence {
	if d.Presence == fleet.PresenceOffline && d.ConnectsForConversations() {
		return fleet.CountedBetween
	}
	return d.Presence
}

// presenceText returns the name of a presence.
func presenceText(ctx context.Context, p fleet.Presence) string {
	if p == fleet.PresencePending {
		return t(ctx, "presence.pending")
	}
	return t(ctx, "state."+string(p))
}

func toneOf(state string) tone {
	if t, ok := tones[state]; ok {
		return t
	}
	return toneNone
}
