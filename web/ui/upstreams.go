package ui

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/upstream"
	"fleetd/web/forms"
)

// PathUpstreams is the list of voice servers: GET list, with the field device also the voice server
// of that device, POST create. Below it, by the id of one: GET shows it, POST "edit", "enable",
// "disable", "move" (to: its new position), "check" and "delete". Each post but check contains the
// version of the list that was shown.
const PathUpstreams = "/settings/voice"

// UpstreamPath is the page of one voice server, or one of its acts.
func UpstreamPath(id uuid.UUID, parts ...string) string {
	return strings.Join(append([]string{PathUpstreams, id.String()}, parts...), "/")
}

// An UpstreamsPage shows the voice servers in their order, and which one a device gets.
type UpstreamsPage struct {
	Rows    []upstream.State
	Version int64
	Admin   bool
	Form    forms.Upstream // for the new voice server
	Problem string         // why Form was rejected, in the page's language
	Match   UpstreamTrial
}

// An UpstreamPage shows one voice server: GET [UpstreamPath].
type UpstreamPage struct {
	Row     upstream.State
	Version int64
	Admin   bool
	Form    forms.Upstream
	Problem string
}

// An UpstreamTrial shows which voice server a device gets.
type UpstreamTrial struct {
	Device  string // as typed
	Problem string // in the page's language
	Result  *upstream.Match
}

// A DeviceVoice is a device's voice server. The zero value means none.
type DeviceVoice struct {
	ID      uuid.UUID
	Name    string
	Code    string // to enter at the voice server; "": no action is needed
	Message string
	AskedAt time.Time
}

// health returns the state of a voice server, as a tone and text.
func health(ctx context.Context, u upstream.State) (tone, string) {
	h := u.Health
	switch {
	case u.Kind == upstream.None:
		return toneNone, t(ctx, "upstreams.no_voice")
	case h.Down():
		return toneBad, t(ctx, "upstreams.down")
	case h.Failures > 0:
		return toneBusy, t(ctx, "upstreams.failing")
	case h.LastSuccess != nil:
		return toneGood, t(ctx, "upstreams.well")
	}
	return toneNone, t(ctx, "upstreams.untried")
}

func upstreamOutcomeTone(o upstream.Outcome) tone {
	if o == upstream.Chosen {
		return toneGood
	}
	return toneNone
}
