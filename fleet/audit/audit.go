// Package audit is the record of what people and programs changed: the principal, the action,
// the subject and the time. The store writes an entry in the transaction of the change that
// it records.
//
// A list of entries can also contain what other tables record: calls, connections, steps of
// campaigns and changes of firmware. The package holds no state.
package audit

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/origin"
)

// A Kind is a kind of entry. The kinds have the names of those of the sealed record (package
// record).
type Kind string

// Kinds of entries.
const (
	Action     Kind = "action"        // a change that a principal made
	Call       Kind = "call"          // a call of a tool, with its state now
	Connection Kind = "connection"    // a change of a device's presence
	Step       Kind = "campaign_step" // a change of a device's part in a campaign
	Firmware   Kind = "firmware"      // a device runs another build
)

// Kinds lists every kind.
var Kinds = []Kind{Action, Call, Connection, Step, Firmware}

// An Entry is one event. An entry of kind [Action] is written in the transaction of the change;
// those of other kinds are rows of other tables.
type Entry struct {
	Kind    Kind
	Key     string    // orders entries, and distinguishes them
	ID      uuid.UUID // of the action, call or step; zero for others
	At      time.Time
	Actor   fleet.Principal // zero if no principal acted
	Action  string          // "device.hold", "token.create", ...; for a call its tool, for others the kind
	Subject string          // id of the changed object; for other kinds the device
	Name    string          // last recorded name of the subject, even after its deletion; "" if it has none
	Outcome string          // state of a call, presence, or state of a campaign's device; "" for others
	Detail  map[string]any
	Origin  origin.Origin // of the request; zero if no request asked for it
}

// Ref returns the entry's id, or its key if it has none.
func (e Entry) Ref() string {
	if e.ID == uuid.Nil {
		return e.Key
	}
	return e.ID.String()
}

// Store reads audit entries, newest first.
type Store interface {
	AuditEntries(ctx context.Context, f Filter) (fleet.Page[Entry], error)
}

// A Filter narrows a list of entries. Zero fields do not filter. A kind that lacks a field has no
// entries for a filter by it.
type Filter struct {
	Kinds         []Kind // none: [Action] only
	Subject       string // also a campaign, for its steps
	Action, Actor string
	Outcome       string
	Trace         origin.TraceID
	Address       string    // IP address that requests came from
	Since, Until  time.Time // from Since, before Until
	Limit         int
	Cursor        string
}

// ParseAddress returns an IP address in the form of [origin.Origin]; "" stays "".
func ParseAddress(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_address", "value", text).At("address")
	}
	return address.Unmap().String(), nil
}

// ParseKinds checks the names of kinds.
func ParseKinds(names []string) ([]Kind, error) {
	kinds := make([]Kind, len(names))
	for i, name := range names {
		if kinds[i] = Kind(name); !slices.Contains(Kinds, kinds[i]) {
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_audit_kind", "value", name).At("kind")
		}
	}
	return kinds, nil
}
