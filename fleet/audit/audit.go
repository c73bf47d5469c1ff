// Package audit is the record of what people and programs changed: who did what to which,
// and when. The store writes an entry in the transaction of the change that it records.
//
// Tool calls have records of their own ([fleet.Call]) and are not repeated here. The package
// holds no state.
package audit

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// An AuditEntry says who did what to which, when. It is written in the
// transaction of the change it records.
type Entry struct {
	ID      uuid.UUID
	At      time.Time
	Actor   fleet.Principal
	Action  string // "device.hold", "token.create", ...
	Subject string // id of what was changed
	Name    string // of what was changed, as last on record, also once it is gone; "" if it has none
	Detail  map[string]any
}

// AuditStore reads audit entries, newest first.
type Store interface {
	AuditEntries(ctx context.Context, f Filter) (fleet.Page[Entry], error)
}

// An AuditFilter narrows a list of audit entries. Zero fields do not filter.
type Filter struct {
	Subject, Action, Actor string
	Since, Until           time.Time // from, and before
	Limit                  int
	Cursor                 string
}
