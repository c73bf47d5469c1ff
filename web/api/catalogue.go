package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/catalogue"
	"fleetd/fleet/shown"
	"fleetd/web/access"
)

func (a *api) registerCatalogue() {
	register(a, operation{id: "list-catalogue", method: http.MethodGet, path: "/tools", role: fleet.RoleViewer,
		reach: access.List, models: fleet.ModelsMay, summary: "List the tools of the fleet",
		about: "Every tool that a device has listed, by name, with the calls of the last 7 days (UTC, today included). A " +
			"token with a scope gets the tools that devices of its scope offer, with counts over its scope."}, a.listCatalogue)
	register(a, operation{id: "get-catalogue-tool", method: http.MethodGet, path: "/tools/{name}", role: fleet.RoleViewer,
		reach: access.List, models: fleet.ModelsMay, noun: "catalogue_tool", summary: "Get a tool of the fleet",
		about: "Its definitions, newest first, where each is offered, and its calls by firmware version."}, a.getCatalogueTool)
	register(a, operation{id: "diff-catalogue-tool", method: http.MethodGet, path: "/tools/{name}/diff", role: fleet.RoleViewer,
		reach: access.List, models: fleet.ModelsMay, noun: "catalogue_tool", summary: "Compare two definitions of a tool"},
		a.diffCatalogueTool)
	register(a, operation{id: "release-tool-definition", method: http.MethodPost, path: "/tools/{name}/release",
		role: fleet.RoleAdmin, reach: access.Fleet, models: fleet.ModelsNever, noun: "catalogue_tool",
		summary: "Release a definition of a tool",
		about: "Language models may call the tool as this definition describes it, on all devices. Other definitions keep " +
			"waiting. A definition that does not wait is no error."}, a.releaseToolDefinition)
	register(a, operation{id: "release-tool-definitions", method: http.MethodPost, path: "/tools/release",
		role: fleet.RoleAdmin, reach: access.Fleet, models: fleet.ModelsNever, summary: "Release definitions of tools",
		about: "All or, if one of them is unknown, none."}, a.releaseToolDefinitions)
	register(a, operation{id: "get-tool-waits", method: http.MethodGet, path: "/tool-waits", role: fleet.RoleViewer,
		reach: access.Fleet, models: fleet.ModelsNever, summary: "Get which definitions of tools wait for a person"},
		a.getToolWaits)
	register(a, operation{id: "put-tool-waits", method: http.MethodPut, path: "/tool-waits", role: fleet.RoleAdmin,
		reach: access.Fleet, models: fleet.ModelsNever, summary: "Set which definitions of tools wait for a person",
		about: "Language models and voice servers may not call a definition that waits; people and programs may. Definitions " +
			"that are in the catalogue when this is turned on do not begin to wait."}, a.putToolWaits)
}

type usageView struct {
	Calls      int64   `json:"calls" doc:"Calls that were sent to a device"`
	Succeeded  int64   `json:"succeeded"`
	ToolErrors int64   `json:"tool_errors"`
	TimedOut   int64   `json:"timed_out"`
	Unknown    int64   `json:"unknown"`
	NotSent    int64   `json:"not_sent" doc:"Refused, invalid, offline and canceled calls"`
	ErrorRate  float64 `json:"error_rate" doc:"Share of calls that did not succeed, 0 to 1"`
	P50        *int64  `json:"p50_ms" doc:"Median of the time from sending to the answer, within 4.5 %; null without answers"`
	P99        *int64  `json:"p99_ms" doc:"99th percentile, likewise"`
	Suggested  *int64  `json:"suggested_timeout_ms" doc:"A timeout for calls: at least twice the 99th percentile; null if there are fewer than 100 answers, or if more than one call in a hundred timed out. fleetd does not use it by itself"`
}

func usage(u *catalogue.Usage) *usageView {
	v := &usageView{Calls: u.Sent(), Succeeded: u.Succeeded, ToolErrors: u.ToolErrors, TimedOut: u.TimedOut,
		Unknown: u.Unknown, NotSent: u.NotSent, ErrorRate: u.ErrorRate()}
	if u.Latency.Count() > 0 {
		v.P50, v.P99 = ptr(u.Latency.Quantile(0.5).Milliseconds()), ptr(u.Latency.Quantile(0.99).Milliseconds())
	}
	if d := u.SuggestedTimeout(); d > 0 {
		v.Suggested = ptr(d.Milliseconds())
	}
	return v
}

type catalogueEntryView struct {
	Name        string         `json:"name"`
	Audience    fleet.Audience `json:"audience" enum:"model,user" doc:"user: every device lists it for people only"`
	Definitions int            `json:"definitions" doc:"Distinct descriptions and schemas"`
	Waiting     int            `json:"waiting" doc:"Definitions that wait for a person to release them"`
	Boards      int            `json:"boards" doc:"Boards that offer it now"`
	Versions    int            `json:"versions"`
	Devices     int            `json:"devices"`
	ReadsOnly   bool           `json:"reads_only" doc:"Changes nothing on the device, judged by its name"`
	Usage       *usageView     `json:"usage,omitempty" doc:"Missing if the scope of the token has more than 2000 devices"`
}

type listCatalogueInput struct {
	Name     string `query:"name" maxLength:"200" doc:"Part of the name"`
	Board    string `query:"board" maxLength:"200" doc:"Only tools that a device with this board offers; counts are of these devices"`
	Version  string `query:"version" maxLength:"200" doc:"Only tools that a device with this firmware version offers; counts and calls are of it"`
	Audience string `query:"audience" enum:"model,user,all" default:"all"`
	Waiting  bool   `query:"quarantined" doc:"Only tools with a definition that waits for a person"`
	Paging
}

func (a *api) listCatalogue(ctx context.Context, _ fleet.Principal, in *listCatalogueInput) (
	*answer[list[catalogueEntryView]], error) {
	f := catalogue.Filter{Name: in.Name, Board: in.Board, Version: in.Version, Waiting: in.Waiting, Cursor: in.Cursor,
		Limit: in.Limit}
	if in.Audience != "all" {
		f.Audience = fleet.Audience(in.Audience)
	}
	page, err := a.Catalogue.List(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page.Page, func(e catalogue.Entry) catalogueEntryView {
		v := catalogueEntryView{Name: e.Name, Audience: e.Audience, Definitions: e.Definitions, Waiting: e.Waiting,
			Boards: e.Boards, Versions: e.Versions, Devices: e.Devices, ReadsOnly: fleet.ReadsOnly(e.Name)}
		if !page.NoUsage {
			v.Usage = usage(&e.Usage)
		}
		return v
	}), nil
}

type CatalogueToolPath struct {
	Name string `path:"name" maxLength:"600" doc:"Name of the tool; a slash is written %2F"`
}

type placeView struct {
	Board   string `json:"board"`
	Version string `json:"version"`
	Devices int    `json:"devices" doc:"Devices that offer it now; 0: devices did in the past"`
}

type definitionView struct {
	Digest      string          `json:"digest" doc:"SHA-256 of the description and schema, in hex"`
	Description string          `json:"description" doc:"The device's own words"`
	InputSchema json.RawMessage `json:"input_schema"`
	Audience    fleet.Audience  `json:"audience" enum:"model,user"`
	FirstSeen   time.Time       `json:"first_seen"`
	LastSeen    time.Time       `json:"last_seen" doc:"Latest listing, to the hour; now, while a device offers it"`
	Waiting     string          `json:"waiting" enum:",new,changed" doc:"Why it waits for a person; empty if it does not"`
	ReleasedBy  string          `json:"released_by" doc:"Empty if no person had to release it"`
	ReleasedAt  *time.Time      `json:"released_at"`
	Devices     int             `json:"devices" doc:"Devices that offer it now"`
	Places      []placeView     `json:"places" nullable:"false"`
}

func definition(d catalogue.Definition) definitionView {
	t := fleet.Tool{Name: d.Tool, Description: d.Description, InputSchema: d.InputSchema}
	return definitionView{Digest: hex.EncodeToString(d.Digest[:]), Description: d.Description,
		InputSchema: rawOrNull(shown.Schema(t.InputSchema)), Audience: d.Audience, FirstSeen: utc(d.FirstSeen),
		LastSeen: utc(d.LastSeen), Waiting: string(d.Waiting), ReleasedBy: d.ReleasedBy, ReleasedAt: utcOrNil(d.ReleasedAt),
		Devices: d.Devices, Places: listOf(d.Places, func(p catalogue.Place) placeView {
			return placeView{p.Board, p.Version, p.Devices}
		}).Body.Items}
}

type dayUsageView struct {
	Day    string `json:"day" doc:"YYYY-MM-DD, UTC"`
	Calls  int64  `json:"calls"`
	Failed int64  `json:"failed"`
}

type versionUsageView struct {
	Version string         `json:"version" doc:"Firmware of the device at the request; empty: not known"`
	Usage   usageView      `json:"usage"`
	Days    []dayUsageView `json:"days" nullable:"false"`
}

type catalogueToolView struct {
	Name        string             `json:"name"`
	Definitions []definitionView   `json:"definitions" nullable:"false" doc:"Newest first, at most 200"`
	Usage       *usageView         `json:"usage,omitempty" doc:"On all versions; missing if the scope of the token has more than 2000 devices"`
	Versions    []versionUsageView `json:"versions" nullable:"false"`
}

type getCatalogueToolInput struct {
	CatalogueToolPath
	Days int `query:"days" minimum:"1" maximum:"400" default:"7" doc:"Whole days of UTC to count calls over, today included"`
}

func (a *api) getCatalogueTool(ctx context.Context, _ fleet.Principal, in *getCatalogueToolInput) (
	*answer[catalogueToolView], error) {
	since := a.Catalogue.Since().AddDate(0, 0, 7-in.Days)
	t, err := a.Catalogue.Tool(ctx, in.Name, since)
	if err != nil {
		return nil, err
	}
	v := catalogueToolView{Name: t.Name, Definitions: listOf(t.Definitions, definition).Body.Items,
		Versions: listOf(t.Usage, func(u catalogue.VersionUsage) versionUsageView {
			return versionUsageView{Version: u.Version, Usage: *usage(&u.Usage),
				Days: listOf(u.Days, func(d catalogue.DayUsage) dayUsageView {
					return dayUsageView{d.Day.Format(time.DateOnly), d.Sent, d.Failed}
				}).Body.Items}
		}).Body.Items}
	if total := t.Total(); !t.NoUsage {
		v.Usage = usage(&total)
	}
	return answerWith(v), nil
}

type diffCatalogueToolInput struct {
	CatalogueToolPath
	From string `query:"from" maxLength:"64" doc:"Digest of a definition; without it, the one before the newest"`
	To   string `query:"to" maxLength:"64" doc:"Digest of a definition; without it, the newest"`
}

type propertyChangeView struct {
	Path           string          `json:"path" doc:"Name of the argument; a nested one after a dot, one in an array after []"`
	Change         string          `json:"change" enum:"added,removed,changed"`
	Before         json.RawMessage `json:"before" doc:"Its schema without nested properties; null if it is added"`
	After          json.RawMessage `json:"after"`
	RequiredBefore bool            `json:"required_before"`
	RequiredAfter  bool            `json:"required_after"`
}

func propertyChange(c catalogue.PropertyChange) propertyChangeView {
	return propertyChangeView{fleet.CleanText(c.Path, 1000), string(c.Change), rawOrNull(c.Before), rawOrNull(c.After),
		c.RequiredBefore, c.RequiredAfter}
}

type definitionDiffView struct {
	From        definitionView       `json:"from"`
	To          definitionView       `json:"to"`
	Description bool                 `json:"description_changed"`
	Audience    bool                 `json:"audience_changed"`
	Other       bool                 `json:"other_changed" doc:"The schemas differ in something that is no property"`
	Properties  []propertyChangeView `json:"properties" nullable:"false"`
}

func (a *api) diffCatalogueTool(ctx context.Context, _ fleet.Principal, in *diffCatalogueToolInput) (
	*answer[definitionDiffView], error) {
	t, err := a.Catalogue.Tool(ctx, in.Name, a.Catalogue.Since())
	if err != nil {
		return nil, err
	}
	from, to, err := t.Find(in.From, in.To)
	if err != nil {
		return nil, err
	}
	d := catalogue.Compare(from, to)
	return answerWith(definitionDiffView{From: definition(from), To: definition(to), Description: d.Description,
		Audience: d.Audience, Other: d.Other, Properties: listOf(d.Properties, propertyChange).Body.Items}), nil
}

type releaseDefinitionInput struct {
	CatalogueToolPath
	Body struct {
		Digest string `json:"digest" minLength:"64" maxLength:"64" pattern:"^[0-9a-f]{64}$" doc:"As shown: what you have checked"`
	}
}

type releasedView struct {
	Released int `json:"released" doc:"Definitions that waited and do not any more"`
}

func (a *api) releaseToolDefinition(ctx context.Context, by fleet.Principal, in *releaseDefinitionInput) (
	*answer[releasedView], error) {
	digest, err := fleet.ParseToolDigest(in.Body.Digest)
	if err != nil {
		return nil, err
	}
	released, err := a.Catalogue.Release(ctx, by, []catalogue.Key{{Tool: in.Name, Digest: digest}})
	return answerWith(releasedView{len(released)}), err
}

type definitionKeyView struct {
	Tool   string `json:"tool" minLength:"1" maxLength:"200"`
	Digest string `json:"digest" minLength:"64" maxLength:"64" pattern:"^[0-9a-f]{64}$"`
}

type releaseDefinitionsInput struct {
	Body struct {
		Definitions []definitionKeyView `json:"definitions" minItems:"1" maxItems:"500" nullable:"false"`
	}
}

func (a *api) releaseToolDefinitions(ctx context.Context, by fleet.Principal, in *releaseDefinitionsInput) (
	*answer[releasedView], error) {
	keys := make([]catalogue.Key, len(in.Body.Definitions))
	for i, d := range in.Body.Definitions {
		digest, err := fleet.ParseToolDigest(d.Digest)
		if err != nil {
			return nil, err
		}
		keys[i] = catalogue.Key{Tool: d.Tool, Digest: digest}
	}
	released, err := a.Catalogue.Release(ctx, by, keys)
	return answerWith(releasedView{len(released)}), err
}

type toolWaitsView struct {
	Waits string `json:"waits" enum:"off,new,new_and_changed" doc:"off: none waits; new: tools of which no definition was released; new_and_changed: every definition that appears"`
}

func (a *api) getToolWaits(context.Context, fleet.Principal, *struct{}) (*answer[toolWaitsView], error) {
	return answerWith(toolWaitsView{string(a.Catalogue.Waits())}), nil
}

type putToolWaitsInput struct{ Body toolWaitsView }

func (a *api) putToolWaits(ctx context.Context, by fleet.Principal, in *putToolWaitsInput) (
	*answer[toolWaitsView], error) {
	if err := a.Catalogue.SetWaits(ctx, by, catalogue.Waits(in.Body.Waits)); err != nil {
		return nil, err
	}
	return answerWith(in.Body), nil
}
