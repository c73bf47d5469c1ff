// Package audit is the record of what people and programs changed: the principal, the action,
// the subject and the time. The store writes an entry in the transaction of the change that
// it records.
//
// Tool calls have separate records ([fleet.Call]) and are not repeated here. The package
// holds no state.
package audit

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/origin"
)

// An Entry records one change. It is written in the transaction of the change.
type Entry struct {
	ID      uuid.UUID
	At      time.Time
	Actor   fleet.Principal
	Action  string // "device.hold", "token.create", ...
	Subject string // id of the changed object
	Name    string // last recorded name of the object, even after its deletion; "" if it has none
	Detail  map[string]any
	Origin  origin.Origin // of the request; zero if fleetd acted by itself
}

// Store reads audit entries, newest first.
type Store interface {
	AuditEntries(ctx context.Context, f Filter) (fleet.Page[Entry], error)
}

// A Filter narrows a list of audit entries. Zero fields do not filter.
type Filter struct {
	Subject, Action, Actor string
	Since, Until           time.Time // from Since, before Until
	Limit                  int
	Cursor                 string
}
