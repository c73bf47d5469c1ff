package ui

import (
	"context"
	"encoding/hex"
	"net/url"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/shown"
)

// PathTools is the catalogue of tools: GET name, board, version, audience, waiting, limit, cursor; POST
// releases definitions (definition, repeated) or, with waits, changes the setting. Below it, by name,
// one tool: GET from, to; POST releases the definition.
const PathTools = "/tools"

// CatalogueToolPath is the page of one tool of the catalogue.
func CatalogueToolPath(tool string) string { return PathTools + "/" + url.PathEscape(tool) }

// A CataloguePage lists the tools of the fleet: GET [PathTools].
type CataloguePage struct {
	List       ListURL
	Rows       []CatalogueRow
	Prev, Next string
	Waits      catalogue.Waits
	NoUsage    bool
	Waiting    []catalogue.Definition // that the viewer may release
	WaitingAll int                    // how many there are
	Admin      bool                   // may release definitions and change the setting
}

// A CatalogueRow is one tool, with the digests of its definitions that wait.
type CatalogueRow struct {
	catalogue.Entry
	NoUsage bool
}

// waitsOptions are the values of the setting.
var waitsOptions = []catalogue.Waits{catalogue.WaitsOff, catalogue.WaitsNew, catalogue.WaitsNewAndChanged}

func (v CataloguePage) filtered() bool {
	for _, name := range []string{"name", "board", "version", "audience", "waiting"} {
		if v.List.Get(name) != "" {
			return true
		}
	}
	return false
}

// state returns the tone, the class and the message of a tool's state.
func (r CatalogueRow) state() (tone, string, string) {
	switch {
	case r.Waiting > 0:
		return toneWarn, "waiting", "catalogue.state.waiting"
	case r.Audience == fleet.AudienceUser:
		return toneNone, "user", "catalogue.state.user"
	case fleet.ReadsOnly(r.Name):
		return toneGood, "reads", "catalogue.state.reads"
	}
	return toneGood, "released", "catalogue.state.released"
}

// errorShare returns the share of calls that failed, "" without calls.
func errorShare(ctx context.Context, u *catalogue.Usage) string {
	if u.Sent() == 0 {
		return ""
	}
	return percentText(ctx, u.ErrorRate())
}

// quantileText returns a quantile of the times of answers, "" without answers.
func quantileText(ctx context.Context, u *catalogue.Usage, q float64) string {
	if u.Latency.Count() == 0 {
		return ""
	}
	return duration(ctx, u.Latency.Quantile(q).Round(time.Millisecond))
}

func suggestedText(ctx context.Context, u *catalogue.Usage) string {
	if d := u.SuggestedTimeout(); d > 0 {
		return duration(ctx, d)
	}
	return ""
}

// A CatalogueToolPage shows one tool of the fleet: GET [CatalogueToolPath].
type CatalogueToolPage struct {
	Tool  catalogue.Tool
	Diff  *catalogue.Diff // nil if there is one definition
	Waits catalogue.Waits
	Admin bool
}

func digestText(d catalogue.Definition) string { return hex.EncodeToString(d.Digest[:]) }

// definitionValue is the field "definition" of a form: digest and name.
func definitionValue(d catalogue.Definition) string { return digestText(d) + " " + d.Tool }

// ParseDefinition parses a field "definition".
func ParseDefinition(value string) (catalogue.Key, error) {
	if len(value) < 66 || value[64] != ' ' {
		return catalogue.Key{}, fleet.Refuse(fleet.ErrInvalid, "invalid_digest").At("definition")
	}
	digest, err := fleet.ParseToolDigest(value[:64])
	return catalogue.Key{Tool: value[65:], Digest: digest}, err
}

// maxShownPlaces bounds the boards and versions that a definition shows.
const maxShownPlaces = 12

// places returns the places where a definition is offered now, or, of one that is not offered, where it was.
func places(d catalogue.Definition) (list []catalogue.Place, more int) {
	for _, p := range d.Places {
		if p.Devices > 0 || d.Devices == 0 {
			list = append(list, p)
		}
	}
	if len(list) > maxShownPlaces {
		return list[:maxShownPlaces], len(list) - maxShownPlaces
	}
	return list, 0
}

// definitionSchema returns the schema of a definition for display.
func definitionSchema(d catalogue.Definition) string { return string(shown.Schema(d.InputSchema)) }

// shortDigest is enough of a digest to distinguish the definitions of one tool.
func shortDigest(d catalogue.Definition) string { return digestText(d)[:12] }

// dayBars are the heights of the bars of a version's days, in percent of the busiest day.
func dayBars(v catalogue.VersionUsage) []dayBar {
	var most int64 = 1
	for _, d := range v.Days {
		most = max(most, d.Sent)
	}
	bars := make([]dayBar, len(v.Days))
	for i, d := range v.Days {
		bars[i] = dayBar{X: 10 * i, Height: barHeight(d.Sent, most), Failed: barHeight(d.Failed, most)}
	}
	return bars
}

// A dayBar is one day in a drawing that is 20 high.
type dayBar struct{ X, Height, Failed int }

func barHeight(n, most int64) int {
	if n == 0 {
		return 0
	}
	return max(1, int(20*n/most))
}

// audienceKey is the message of an audience.
func audienceKey(a fleet.Audience) string { return "catalogue.audience." + string(a) }
