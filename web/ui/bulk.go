package ui

import (
	"context"
	"net/url"
	"strings"
	"time"
	"unicode"

	"fleetd/fleet"
	"fleetd/web/forms"
)

// A BulkPage previews one act on many devices: GET [PathBulk] with act, all and q or d..., and the
// fields of the act. POST [PathBulk] with step=apply and the same fields runs it; confirm is the
// number of devices that change.
type BulkPage struct {
	Act     fleet.BulkAct
	Query   string
	Devices []fleet.DeviceID // instead of Query
	Tags    string           // as typed
	Reason  string
	Hours   string // of a hold; "" or "0" has no end
	Next    string // page to return to
	Matched int
	Asking  bool              // the fields of the act need a correction
	Problem string            // why the act is impossible; "" if it is possible
	Preview *fleet.BulkResult // nil until the act has all its fields
}

// Takes reports whether the act has fields besides the devices.
func (v BulkPage) Takes() bool {
	return v.Act == fleet.BulkTag || v.Act == fleet.BulkUntag || v.Act == fleet.BulkHold
}

// Wants reports whether such a field is still empty.
func (v BulkPage) Wants() bool {
	return v.Asking || v.Takes() && strings.TrimSpace(v.Tags) == "" && strings.TrimSpace(v.Reason) == ""
}

// chosen returns the devices as form or address fields.
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

// equivalent returns what does the same as the form of the preview.
func (v BulkPage) equivalent(now time.Time) forms.Equivalent {
	return forms.BulkEquivalent(string(v.Act), v.Query, deviceIDs(v.Devices), splitWords(v.Tags), v.Reason, v.Hours,
		v.Preview.Targets, now)
}

// key returns a message about the act.
func (v BulkPage) key(of string) string { return "bulk." + of + "." + string(v.Act) }

// help returns the name of the help of the act's form. The end of a hold asks for nothing.
func (v BulkPage) help() string {
	return map[fleet.BulkAct]string{fleet.BulkTag: "bulk_tag", fleet.BulkUntag: "bulk_tag", fleet.BulkHold: "bulk_hold",
		fleet.BulkRetire: "bulk_retire"}[v.Act]
}

// splitWords splits a text of tags in the same way as the handler.
func splitWords(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(",，、", r) })
}

// BulkDone returns the result of an act as text.
func BulkDone(ctx context.Context, r fleet.BulkRequest, done fleet.BulkResult) string {
	tags, _ := fleet.CleanTags(r.Tags) // as stored
	text := t(ctx, "bulk.done."+string(r.Act), "n", done.Targets, "tags", strings.Join(tags, ", "))
	if len(done.Skipped) == 0 {
		return text
	}
	return t(ctx, "bulk.done_left", "done", text, "n", done.Matched-done.Targets, "why", leftOut(ctx, done.Skipped))
}

// leftOut lists the reasons why devices are left out, each with its number of devices.
func leftOut(ctx context.Context, skipped []fleet.SkippedDevices) string {
	parts := make([]string, len(skipped))
	for i, s := range skipped {
		parts[i] = t(ctx, "bulk.left_part", "n", s.Count, "why", bulkReason(ctx, s.Reason))
	}
	return strings.Join(parts, t(ctx, "bulk.left_comma"))
}

// bulkReason returns the text of a reason.
func bulkReason(ctx context.Context, code string) string { return t(ctx, "bulk.reason."+code) }
