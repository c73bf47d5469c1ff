package ui

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/i18n"
)

const (
	PathAudit       = "/audit"              // GET subject, action, actor, since, until, limit, cursor
	PathAuditExport = PathAudit + "/export" // GET the same filter: CSV
)

// An AuditPage lists who changed what: GET [PathAudit].
type AuditPage struct {
	List       ListURL
	Rows       []fleet.AuditEntry
	Prev, Next string
	Bad        string // why the filter cannot be read; "" if it can
}

func (v AuditPage) exportURL() string {
	return ListURL{Path: PathAuditExport, Values: v.List.Values}.At("")
}

// auditVerb says in a word what was done; a code that has no text yet is shown
// as it is.
func auditVerb(ctx context.Context, action string) string {
	_, verb, _ := strings.Cut(action, ".")
	return orCode(ctx, "audit.verb."+verb, verb)
}

// auditKind says what kind of thing was changed.
func auditKind(ctx context.Context, action string) string {
	kind, _, _ := strings.Cut(action, ".")
	return orCode(ctx, "audit.kind."+kind, kind)
}

func orCode(ctx context.Context, key, code string) string {
	if i18n.Has(key) {
		return t(ctx, key)
	}
	return code
}

// auditURL is the page of what was changed; "" if it has none.
func auditURL(e fleet.AuditEntry) string {
	kind, verb, _ := strings.Cut(e.Action, ".")
	switch {
	case e.Subject == "" || verb == "delete":
		return ""
	case kind == "device" || kind == "quarantine":
		return DevicePath(fleet.DeviceID(e.Subject))
	case kind == "image":
		return ImagePath(e.Subject)
	}
	if _, err := uuid.Parse(e.Subject); err != nil {
		return ""
	}
	switch kind {
	case "campaign":
		return CampaignPath(e.Subject)
	case "fanout":
		return FanOutPath(e.Subject)
	case "release":
		return ReleasePath(e.Subject)
	case "approval":
		return ApprovalPath(e.Subject)
	case "enrolment_rule":
		return RulePath(e.Subject)
	}
	return ""
}

// auditSubject is how the entry names what was changed: by a name on record
// with it, or by its id.
func auditSubject(e fleet.AuditEntry) string {
	for _, key := range []string{"name", "version", "tool"} {
		if name, ok := e.Detail[key].(string); ok && name != "" {
			return name
		}
	}
	return e.Subject
}

func auditDetail(e fleet.AuditEntry) string {
	if len(e.Detail) == 0 {
		return ""
	}
	b, _ := json.Marshal(e.Detail) // it was JSON
	return string(b)
}
