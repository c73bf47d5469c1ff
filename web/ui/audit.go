package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/web/i18n"
)

const (
	PathAudit       = "/audit"              // GET kind, subject, action, actor, outcome, trace, since, until, limit, cursor
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

// kindAll is the value of kind for all kinds.
const kindAll = "all"

// AuditKinds reads the kind in an address: one kind, or "all"; actions without it.
func AuditKinds(kind string) ([]audit.Kind, error) {
	switch kind {
	case "":
		return nil, nil
	case kindAll:
		return audit.Kinds, nil
	}
	return audit.ParseKinds([]string{kind})
}

// kinds are the links to the lists of each kind.
func (v AuditPage) kinds(ctx context.Context) (chips []filterChip) {
	shown := v.List.Get("kind")
	for _, kind := range append(slices.Clone(audit.Kinds), kindAll) {
		value := string(kind)
		if kind == audit.Action {
			value = ""
		}
		chips = append(chips, filterChip{Text: t(ctx, "audit.entries."+string(kind)), URL: v.List.With("kind", value),
			On: shown == value})
	}
	return chips
}

// provable reports whether the sealed record has a proof for the id of the entry.
func provable(e audit.Entry) bool {
	return e.Kind == audit.Action || e.Kind == audit.Call && fleet.CallState(e.Outcome).Final()
}

// auditOf returns the list of everything whose origin has the value: a trace, or an address.
func auditOf(field, value string) string {
	return ListURL{Path: PathAudit, Values: url.Values{"kind": {kindAll}, field: {value}}}.At("")
}

// firmwareText returns the versions that the entry is about.
func firmwareText(e audit.Entry) string {
	version, _ := e.Detail["version"].(string)
	if before, ok := e.Detail["before"].(string); ok {
		return before + " → " + version
	}
	return version
}

func (v AuditPage) eventsURL() string { return listEvents(v.Bad, ViewAudit, v.List) }

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
	if e.Kind != audit.Action {
		return DevicePath(fleet.DeviceID(e.Subject))
	}
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
	if e.Kind != audit.Action {
		return cmp.Or(e.Name, showID(fleet.DeviceID(e.Subject)))
	}
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
