package ui

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/history"
)

// A FirmwarePage is a device's history of firmware and tools:
// GET DevicePath(id, "firmware"), with from and to for a difference.
type FirmwarePage struct {
	Head        DeviceHead
	Updates     DeviceUpdates
	Jobs        DeviceJobs
	Firmware    []fleet.FirmwareRecord  // newest first
	Inventories []fleet.InventoryRecord // newest first
	Diff        *fleet.InventoryDiff    // the difference between from and to
	States      []history.Device        // newest first
}

// historyURL returns the device at a past moment.
func (v FirmwarePage) historyURL() string {
	return ListURL{Path: PathHistory}.With("q", Term("id", string(v.Head.ID)))
}

func (v FirmwarePage) diffURL(from, to string) string {
	return DevicePath(v.Head.ID, "firmware") + "?" + url.Values{"from": {from}, "to": {to}}.Encode() + "#diff"
}

// before returns the inventory that the one at i replaced.
func (v FirmwarePage) before(i int) string {
	if i+1 < len(v.Inventories) {
		return v.Inventories[i+1].InventoryID
	}
	return ""
}

// A ScreenPage shows a device's pictures: GET DevicePath(id, "screen"), with the parameters of
// [Gallery]. POST [ToolPath] of the snapshot tool takes a new one.
type ScreenPage struct {
	Head    DeviceHead
	Last    *CallView // the call in the address
	Latest  *Snapshot // the newest of the screen, only on the first page without a filter
	Gallery Gallery
}

// first reports whether the page shows the newest pictures of all kinds.
func (v ScreenPage) first() bool {
	return !v.Gallery.filtered() && v.Gallery.List.Get("cursor") == ""
}

// A FactsPage shows the facts that the device reported at its latest boot: GET DevicePath(id,
// "facts").
type FactsPage struct {
	Head     DeviceHead
	About    DeviceFacts
	PolledAt time.Time // zero before the first boot poll
	Body     json.RawMessage
	Problem  string            // a code of [fleet.Facts], "" for none
	Salvaged []fleet.PollField // fields read from a broken body
}

func (v FactsPage) problemText(ctx context.Context) string {
	fields := make([]string, len(v.Salvaged))
	for i, f := range v.Salvaged {
		fields[i] = t(ctx, "facts.field."+string(f))
	}
	return t(ctx, "facts."+v.Problem, "fields", strings.Join(fields, t(ctx, "facts.list_separator")))
}
