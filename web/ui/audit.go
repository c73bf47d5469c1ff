package ui

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/web/i18n"
)

const (
	PathAudit       = "/audit"              // GET subject, action, actor, since, until, limit, cursor
	PathAuditExport = PathAudit + "/export" // GET the same filter: CSV
)

// An AuditPage lists changes with their authors: GET [PathAudit].
type AuditPage struct {
	List       ListURL
	Rows       []audit.Entry
	Prev, Next string
	Bad        string      // why the filter is invalid; "" if it is valid
	Record     *RecordLine // nil if the viewer may not see the whole fleet
}

// eventsURL is empty for an invalid filter.
func (v AuditPage) eventsURL() string {
	if v.Bad != "" {
		return ""
	}
	return EventsURL(ViewAudit, v.List.Values)
}

func (v AuditPage) exportURL() string {
	return ListURL{Path: PathAuditExport, Values: v.List.Values}.At("")
}

// auditVerb returns a word for the action: its own, or that of its verb. A code without a text is returned
// unchanged.
func auditVerb(ctx context.Context, action string) string {
	_, verb, _ := strings.Cut(action, ".")
	return orCode(ctx, "audit.verb."+action, orCode(ctx, "audit.verb."+verb, verb))
}

// auditKind returns the kind of thing that was changed.
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

// auditURL returns the page of the changed thing; "" if it has none.
func auditURL(e audit.Entry) string {
	kind, verb, _ := strings.Cut(e.Action, ".")
	switch {
	case e.Subject == "" || verb == "delete":
		return ""
	case kind == "device" || kind == "quarantine":
		return DevicePath(fleet.DeviceID(e.Subject))
	case kind == "image":
		return ImagePath(e.Subject)
	case kind == "operator", kind == "token":
		return PathSettings
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

// auditSubject returns the entry's name for the changed thing: its name in the entry, its present
// name, or its id.
func auditSubject(ctx context.Context, e audit.Entry) string {
	kind, _, _ := strings.Cut(e.Action, ".")
	for _, key := range []string{"name", "version", "tool"} {
		if name, ok := e.Detail[key].(string); ok && name != "" {
			return name
		}
	}
	if e.Name != "" {
		return e.Name
	}
	switch kind {
	case "device", "quarantine":
		return showID(fleet.DeviceID(e.Subject))
	case "core_dump":
		device, _ := e.Detail["device"].(string)
		return showID(fleet.DeviceID(device))
	case "alert":
		if condition, ok := e.Detail["kind"].(string); ok {
			return orCode(ctx, "alert.kind."+condition, condition)
		}
	}
	return e.Subject
}

func auditDetail(e audit.Entry) string {
	if len(e.Detail) == 0 {
		return ""
	}
	b, _ := json.Marshal(e.Detail) // it was JSON before
	return string(b)
}
