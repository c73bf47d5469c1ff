package api

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

// bulkBody has room for the ids of the maximum number of devices in one act.
const bulkBody = 2 << 20

func (a *api) registerBulk() {
	register(a, operation{id: "bulk-devices", reach: access.Audience, models: fleet.ModelsNever, heavy: heavy.Preview,
		method: http.MethodPost, path: "/devices/bulk", role: fleet.RoleOperator, body: bulkBody,
		summary: "Tag, untag, hold, release or retire many devices",
		about: "Give a filter (q; an empty one means every device in service) or devices. All of them change at once, except those that the answer lists as left out; if the request fails, none changes. With dry_run nothing changes; the answer shows what would. " +
			"retire needs the role admin, and the number of devices that a dry run named in confirm; with other acts confirm is optional. At most 50000 devices."}, a.bulkDevices)
	register(a, operation{id: "export-devices", reach: access.List, models: fleet.ModelsMay, heavy: heavy.Export,
		method: http.MethodGet, path: "/devices.csv", role: fleet.RoleViewer,
		summary: "Export devices as CSV",
		about:   "A cell that a spreadsheet would calculate (it begins with = + - @ | ;) is prefixed with ', which an import removes again.",
		more: func(h *huma.Operation) {
			h.Tags = []string{"devices"}
			h.Responses = map[string]*huma.Response{"200": {Description: "The file",
				Content: map[string]*huma.MediaType{"text/csv; charset=utf-8": {Schema: &huma.Schema{Type: huma.TypeString}}}}}
		}}, a.exportDevices)
	register(a, operation{id: "import-devices", reach: access.Audience, models: fleet.ModelsNever, heavy: heavy.Import,
		method: http.MethodPost, path: "/devices/import", role: fleet.RoleOperator, body: 2 * fleet.MaxDeviceFile,
		summary: "Import names, tags and notes of devices from CSV",
		about:   "Without digest nothing changes; the answer shows what would. At most 8 MiB, 50000 lines, 64 columns and 64 KiB per cell. Each principal can run one import at a time (heavy_at_once)."}, a.importDevices)
}

type bulkInput struct {
	Body struct {
		Query   *string       `json:"q,omitempty" maxLength:"1024" doc:"Filter that picks the devices"`
		Devices []string      `json:"devices,omitempty" nullable:"false" minItems:"1" maxItems:"50000" doc:"Device ids, instead of q"`
		Act     fleet.BulkAct `json:"act" enum:"tag,untag,hold,release,retire"`
		Tags    []string      `json:"tags,omitempty" nullable:"false" doc:"For tag and untag: the tags to add or remove; others stay"`
		Reason  string        `json:"reason,omitempty" maxLength:"300" doc:"For hold: the reason"`
		Until   *time.Time    `json:"until,omitempty" doc:"For hold: when it ends automatically; if omitted, it lasts until released"`
		Confirm int           `json:"confirm,omitempty" minimum:"0" doc:"Number of devices from a dry run; if it differs now, nothing changes"`
		DryRun  bool          `json:"dry_run,omitempty" doc:"Only report what would be done"`
	}
}

// bulkView is the result of an act on devices, or its preview.
type bulkView struct {
	Act     fleet.BulkAct `json:"act" enum:"tag,untag,hold,release,retire"`
	DryRun  bool          `json:"dry_run" doc:"Nothing was changed"`
	Matched int           `json:"matched"`
	Changed int           `json:"changed" doc:"Devices that changed; in a dry run, that would"`
	Skipped []reasonView  `json:"skipped" nullable:"false" doc:"Devices left out, by reason, most first: unknown_device, device_retired, not_yours (insufficient role), device_held (by somebody else), unchanged (nothing to change), too_many_tags, program (a plug-in or an endpoint is not retired), leaves_scope"`
}

func (a *api) bulkDevices(ctx context.Context, by fleet.Principal, in *bulkInput) (*answer[bulkView], error) {
	b := in.Body
	r := fleet.BulkRequest{Actor: by, Act: b.Act, Tags: b.Tags, Reason: b.Reason, Until: utcOrNil(b.Until),
		Confirm: b.Confirm}
	var err error
	if r.Query, r.Devices, err = audienceOf(b.Query, b.Devices); err != nil {
		return nil, err
	}
	do := a.Devices.Bulk
	if b.DryRun {
		do = a.Devices.PreviewBulk
	}
	done, err := do(ctx, r)
	if err != nil {
		return nil, err
	}
	return answerWith(bulkView{Act: b.Act, DryRun: b.DryRun, Matched: done.Matched, Changed: done.Targets,
		Skipped: listOf(done.Skipped, func(s fleet.SkippedDevices) reasonView { return reasonView(s) }).Body.Items}), nil
}

// audienceOf reads the devices of a request: the devices of a query, or the listed ones.
func audienceOf(query *string, devices []string) (q string, ids []fleet.DeviceID, err error) {
	if (query == nil) == (devices == nil) {
		return "", nil, fleet.Refuse(fleet.ErrInvalid, "audience_missing")
	}
	if query != nil {
		q = *query
	}
	for _, s := range devices {
		id, err := fleet.ParseDeviceID(s)
		if err != nil {
			return "", nil, err
		}
		ids = append(ids, id)
	}
	return q, ids, nil
}

type exportInput struct {
	Query   string   `query:"q" maxLength:"1024" doc:"Filter; without it, every device in service"`
	Columns []string `query:"columns" doc:"Column names, separated by commas. Default: all"`
}

func (a *api) exportDevices(ctx context.Context, _ fleet.Principal, in *exportInput) (*fileOutput, error) {
	var b bytes.Buffer
	if err := a.Devices.Export(ctx, &b, in.Query, in.Columns); err != nil {
		return nil, err
	}
	return &fileOutput{"text/csv; charset=utf-8", `attachment; filename="devices.csv"`, "no-store", b.Bytes()}, nil
}

type importInput struct {
	Body struct {
		CSV    string  `json:"csv" doc:"The file: its first line names the columns. id is required; name, tags (separated by spaces) and notes are used, others ignored"`
		Digest *string `json:"digest,omitempty" maxLength:"64" doc:"From the answer to a request without it: makes exactly those changes, or none if they differ now"`
	}
}

type importView struct {
	Digest    string          `json:"digest"`
	Applied   bool            `json:"applied"`
	Changed   int             `json:"changed" doc:"Devices that change, or, with digest, changed"`
	Unchanged int             `json:"unchanged" doc:"Lines that change nothing"`
	Changes   []importChange  `json:"changes" nullable:"false" doc:"The first 1000"`
	Skipped   []importLeftOut `json:"skipped" nullable:"false" doc:"Lines of devices that are skipped; the first 1000"`
	Invalid   int             `json:"invalid" doc:"Invalid lines"`
	Problems  []importBadLine `json:"problems" nullable:"false" doc:"Why, of the first 1000"`
}

type importChange struct {
	Line   int            `json:"line"`
	Device fleet.DeviceID `json:"device_id"`
	Old    importFields   `json:"old"`
	New    importFields   `json:"new"`
}

// importFields are the changed fields; the others are absent.
type importFields struct {
	Name  *string   `json:"name,omitempty"`
	Tags  *[]string `json:"tags,omitempty" nullable:"false"`
	Notes *string   `json:"notes,omitempty"`
}

type importLeftOut struct {
	Line   int            `json:"line"`
	Device fleet.DeviceID `json:"device_id"`
	Reason string         `json:"reason" example:"unknown_device"`
}

type importBadLine struct {
	Line   int    `json:"line"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

const maxImportLines = 1000

func (a *api) importDevices(ctx context.Context, by fleet.Principal, in *importInput) (*answer[importView], error) {
	file, err := fleet.ParseDeviceFile([]byte(in.Body.CSV))
	if err != nil {
		return nil, err
	}
	var p fleet.ImportPlan
	if in.Body.Digest == nil {
		p, err = a.Devices.PlanImport(ctx, by, file)
	} else {
		p, err = a.Devices.Import(ctx, by, file, *in.Body.Digest)
	}
	if err != nil {
		return nil, err
	}
	fields := func(p fleet.DevicePatch) importFields {
		if p.Tags != nil && *p.Tags == nil {
			p.Tags = &[]string{}
		}
		return importFields{p.Name, p.Tags, p.Notes}
	}
	v := importView{Digest: p.Digest, Applied: in.Body.Digest != nil, Changed: len(p.Changes), Unchanged: p.Unchanged,
		Invalid: p.Invalid, Changes: []importChange{}, Skipped: []importLeftOut{}, Problems: []importBadLine{}}
	for _, c := range p.Changes[:min(len(p.Changes), maxImportLines)] {
		v.Changes = append(v.Changes, importChange{c.Line, c.ID, fields(c.Old), fields(c.New)})
	}
	for _, l := range p.LeftOut[:min(len(p.LeftOut), maxImportLines)] {
		v.Skipped = append(v.Skipped, importLeftOut{l.Line, l.ID, l.Code})
	}
	for _, l := range p.Problems {
		v.Problems = append(v.Problems, importBadLine{l.Line, l.Why.Code, i18n.Detail("error.code.", l.Why)})
	}
	return answerWith(v), nil
}
