package ui

import (
	"context"
	"net/url"
	"strings"
	"unicode"

	"fleetd/fleet"
)

// A BulkPage asks for one act on many devices and says what it would do: GET
// [PathBulk] with act, all and q or d..., and what the act takes. POST [PathBulk] with
// step=apply and the same does it; confirm is the number of devices that change.
type BulkPage struct {
	Act     fleet.BulkAct
	Query   string
	Devices []fleet.DeviceID // instead of Query
	Tags    string           // as typed
	Reason  string
	Hours   string // of a hold; "" or "0" has no end
	Next    string // where to go afterwards
	Matched int
	Asking  bool              // what the act takes has to be mended
	Problem string            // why it cannot be done; "" if it can
	Preview *fleet.BulkResult // nil until the act has what it takes
}

// Takes reports whether the act needs more than devices.
func (v BulkPage) Takes() bool {
	return v.Act == fleet.BulkTag || v.Act == fleet.BulkUntag || v.Act == fleet.BulkHold
}

// Wants reports whether something of that is yet to be filled in.
func (v BulkPage) Wants() bool {
	return v.Asking || v.Takes() && strings.TrimSpace(v.Tags) == "" && strings.TrimSpace(v.Reason) == ""
}

// chosen are the devices as a form or an address has them.
func (v BulkPage) chosen() url.Values {
	if len(v.Devices) == 0 {
		return url.Values{"all": {"1"}, "q": {v.Query}}
	}
	ids := make([]string, len(v.Devices))
	for i, id := range v.Devices {
		ids[i] = string(id)
	}
	return url.Values{"ids": {strings.Join(ids, ",")}}
}

// key is a message about the act.
func (v BulkPage) key(of string) string { return "bulk." + of + "." + string(v.Act) }

// splitWords cuts a text of tags as the handler does.
func splitWords(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(",，、", r) })
}

// BulkDone says what an act did.
func BulkDone(ctx context.Context, r fleet.BulkRequest, done fleet.BulkResult) string {
	tags, _ := fleet.CleanTags(r.Tags) // as they were taken
	text := t(ctx, "bulk.done."+string(r.Act), "n", done.Targets, "tags", strings.Join(tags, ", "))
	if len(done.Skipped) == 0 {
		return text
	}
	return t(ctx, "bulk.done_left", "done", text, "n", done.Matched-done.Targets, "why", leftOut(ctx, done.Skipped))
}

// leftOut lists why devices are left out, and how many for what.
func leftOut(ctx context.Context, skipped []fleet.SkippedDevices) string {
	parts := make([]string, len(skipped))
	for i, s := range skipped {
		parts[i] = t(ctx, "bulk.left_part", "n", s.Count, "why", bulkReason(ctx, s.Reason))
	}
	return strings.Join(parts, t(ctx, "bulk.left_comma"))
}

// bulkReason says in words why a device is left out.
func bulkReason(ctx context.Context, code string) string { return t(ctx, "bulk.reason."+code) }
