package postgres

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet/campaign"
)

// A deploymentRow is a deployment to be written.
type deploymentRow struct {
	*campaign.Deployment
	reached int16
}

// A deploymentField is a column of deployments, and the array of its values for a batch statement
// that uses unnest.
type deploymentField struct {
	name, typ string
	values    func([]deploymentRow) any
}

func field[T any](name, typ string, of func(deploymentRow) T) deploymentField {
	return deploymentField{name, typ, func(rows []deploymentRow) any { return collect(rows, of) }}
}

// fixedFields are set when a deployment is planned. Its image and target were approved and never
// change.
var fixedFields = []deploymentField{
	field("device_id", "text", func(d deploymentRow) string { return string(d.Device) }),
	field("board", "text", func(d deploymentRow) string { return cleanText(d.Board) }),
	field("wave", "int", func(d deploymentRow) int { return d.Wave }),
	field("image", "text", func(d deploymentRow) *string { return nullText(d.Image) }),
	field("joined", "bool", func(d deploymentRow) bool { return d.Joined }),
	field("image_size", "bigint", func(d deploymentRow) int64 { return d.ImageSize }),
	field("target_elf", "text", func(d deploymentRow) string { return cleanText(d.TargetELF) }),
	field("to_version", "text", func(d deploymentRow) string { return cleanText(d.ToVersion) }),
	field("created_at", "timestamptz", func(d deploymentRow) time.Time { return d.CreatedAt }),
}

var (
	idField      = field("id", "uuid", func(d deploymentRow) uuid.UUID { return d.ID })
	changeFields = []deploymentField{
		field("attempt", "int", func(d deploymentRow) int { return d.Attempt }),
		field("reached", "smallint", func(d deploymentRow) int16 { return d.reached }),
		field("baseline", "text", func(d deploymentRow) *string { return storableBaseline(d.Baseline) }),
		field("state", "text", func(d deploymentRow) string { return string(d.State) }),
		field("skip", "text", func(d deploymentRow) string { return cleanText(string(d.Skip)) }),
		field("late", "bool", func(d deploymentRow) bool { return d.Late }),
		field("from_elf", "text", func(d deploymentRow) string { return cleanText(d.FromELF) }),
		field("from_version", "text", func(d deploymentRow) string { return cleanText(d.FromVersion) }),
		field("force", "bool", func(d deploymentRow) bool { return d.Force }),
		field("failures", "int", func(d deploymentRow) int { return d.Failures }),
		field("offers", "int", func(d deploymentRow) int { return d.Offers }),
		field("class", "text", func(d deploymentRow) string { return string(d.Class) }),
		field("reason_code", "text", func(d deploymentRow) string { return cleanText(d.Reason.Code) }),
		field("reason_params", "jsonb", func(d deploymentRow) *string { return reasonParams(d.Reason) }),
		field("not_before", "timestamptz", func(d deploymentRow) *time.Time { return d.NotBefore }),
		field("deadline", "timestamptz", func(d deploymentRow) *time.Time { return d.Deadline }),
		field("bytes_sent", "bigint", func(d deploymentRow) int64 { return d.BytesSent }),
		field("percent", "smallint", func(d deploymentRow) *int16 { return percent(d.Percent) }),
		field("booted", "bool", func(d deploymentRow) bool { return d.Booted }),
		field("reconnects", "int", func(d deploymentRow) int { return d.Reconnects }),
		field("away", "bool", func(d deploymentRow) bool { return d.Away }),
		field("checked", "bool", func(d deploymentRow) bool { return d.Checked }),
		field("probed", "bool", func(d deploymentRow) bool { return d.Probed }),
		field("updated_at", "timestamptz", func(d deploymentRow) time.Time { return d.UpdatedAt }),
		field("sent_at", "timestamptz", func(d deploymentRow) *time.Time { return d.SentAt }),
		field("get_at", "timestamptz", func(d deploymentRow) *time.Time { return d.GetAt }),
		field("dispatched_at", "timestamptz", func(d deploymentRow) *time.Time { return d.DispatchedAt }),
		field("finished_at", "timestamptz", func(d deploymentRow) *time.Time { return d.FinishedAt }),
	}
)

// unnest returns a table of the fields whose arguments begin at $first.
func unnest(fields []deploymentField, first int) string {
	types, names := make([]string, len(fields)), make([]string, len(fields))
	for i, f := range fields {
		types[i] = fmt.Sprintf("$%d::%s[]", first+i, f.typ)
		names[i] = f.name
	}
	return "unnest(" + strings.Join(types, ", ") + ") AS u (" + strings.Join(names, ", ") + ")"
}

// fieldValues returns the arguments of such a table.
func fieldValues(fields []deploymentField, rows []deploymentRow) []any {
	return collect(fields, func(f deploymentField) any { return f.values(rows) })
}

func fieldNames(fields []deploymentField) string {
	return strings.Join(collect(fields, func(f deploymentField) string { return f.name }), ", ")
}

func percent(p *int) *int16 {
	if p == nil {
		return nil
	}
	n := int16(*p) // 0 to 100
	return &n
}

func nullText(s string) *string {
	if s == "" {
		return nil
	}
	s = cleanText(s)
	return &s
}

func storableBaseline(b campaign.Baseline) *string {
	if b.Inventory == "" && b.FreeHeap == 0 && b.Slot == "" && len(b.Answers) == 0 {
		return nil
	}
	return storableJSON(b)
}
