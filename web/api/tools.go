package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/shown"
	"fleetd/web/access"
)

func (a *api) registerTools() {
	register(a, operation{id: "list-tools", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/tools", role: fleet.RoleViewer,
		noun:    "device",
		summary: "List the tools of a device"}, a.listTools)
	register(a, operation{id: "list-inventories", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/inventories",
		role: fleet.RoleViewer, noun: "device",
		summary: "List the tool inventories of a device, newest first"}, a.listInventories)
	register(a, operation{id: "diff-inventories", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/inventories/diff",
		role: fleet.RoleViewer, noun: "device",
		summary: "Compare two inventories of a device"}, a.diffInventories)
}

type toolView struct {
	Name        string          `json:"name"`
	Description string          `json:"description" doc:"The device's own words"`
	InputSchema json.RawMessage `json:"input_schema" doc:"JSON Schema of the arguments"`
	Audience    fleet.Audience  `json:"audience" enum:"model,user" doc:"user: language models cannot call it"`
	Warnings    []string        `json:"warnings,omitempty" nullable:"false" doc:"Warnings: quarantined, it is new or changed and language models may not call it until a person releases it; sentence_name, the name reads like a sentence; hidden_properties, properties whose names contain control or direction-changing characters are omitted from the schema"`
	Effect      string          `json:"effect" enum:",restarts,leaves_network" doc:"Effect on the device's connection: empty: none; restarts: it comes back within about a minute; leaves_network: it is gone until a person at the device sets up its Wi-Fi"`
}

func tool(t fleet.Tool) toolView {
	v := toolView{Name: t.Name, Description: t.Description, InputSchema: rawOrNull(shown.Schema(t.InputSchema)),
		Audience: audience(t), Effect: string(fleet.EffectOf(t.Name))}
	for _, w := range shown.Warnings(t) {
		v.Warnings = append(v.Warnings, string(w))
	}
	return v
}

func audience(t fleet.Tool) fleet.Audience {
	if t.UserOnly() {
		return fleet.AudienceUser
	}
	return fleet.AudienceModel
}

// hiddenTool reports whether the tool of a device's inventory is hidden from a language model.
func (a *api) hiddenTool(by fleet.Principal, d fleet.Device, t fleet.Tool) bool {
	return by.Kind.IsModel() && (!by.SeesTool(t) || a.ToolQuarantines.Holds(d.ID, d.InventoryID, t) &&
		!a.ToolPins.Pinned(t.Name))
}

func rawOrNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

type listToolsInput struct {
	DevicePath
	Audience string `query:"audience" enum:"model,user,all" default:"all" doc:"Intended users, as stated by the device"`
}

func (a *api) listTools(ctx context.Context, by fleet.Principal, in *listToolsInput) (*answer[list[toolView]], error) {
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	d, err := a.Devices.Device(ctx, id)
	if err != nil {
		return nil, err
	}
	var chosen []toolView
	if d.InventoryID != "" {
		inventory, err := a.Devices.Inventory(ctx, d.InventoryID)
		if err != nil {
			return nil, err
		}
		for _, t := range inventory.Tools {
			if a.hiddenTool(by, d, t) || in.Audience != "all" && in.Audience != string(audience(t)) {
				continue
			}
			v := tool(t)
			if a.ToolQuarantines.Holds(d.ID, d.InventoryID, t) {
				v.Warnings = append(v.Warnings, "quarantined")
			}
			chosen = append(chosen, v)
		}
	}
	return listOf(chosen, func(v toolView) toolView { return v }), nil
}

type inventoryView struct {
	ID         string    `json:"id" doc:"SHA-256 of the tools"`
	Version    string    `json:"version" doc:"Firmware at the first listing"`
	ELFSHA256  string    `json:"elf_sha256"`
	ToolsCount int       `json:"tools_count"`
	Partial    bool      `json:"partial" doc:"The device could not list all its tools"`
	FirstSeen  time.Time `json:"first_seen"`
	LastSeen   time.Time `json:"last_seen"`
}

func inventory(r fleet.InventoryRecord) inventoryView {
	return inventoryView{ID: r.InventoryID, Version: r.Version, ELFSHA256: r.ELFSHA256, ToolsCount: r.ToolsCount,
		Partial: r.Partial, FirstSeen: utc(r.FirstSeen), LastSeen: utc(r.LastSeen)}
}

func (a *api) listInventories(ctx context.Context, _ fleet.Principal, in *DevicePath) (*answer[list[inventoryView]],
	error) {
	records, err := a.inventories(ctx, *in)
	if err != nil {
		return nil, err
	}
	return listOf(records, inventory), nil
}

func (a *api) inventories(ctx context.Context, in DevicePath) ([]fleet.InventoryRecord, error) {
	d, err := a.find(ctx, in)
	if err != nil {
		return nil, err
	}
	return a.Devices.DeviceInventories(ctx, d.ID)
}

type diffInput struct {
	DevicePath
	From string `query:"from" maxLength:"64" doc:"Id of the older inventory; without it, the one before the latest"`
	To   string `query:"to" maxLength:"64" doc:"Id of the newer inventory; without it, the latest"`
}

type diffView struct {
	From    string           `json:"from"`
	To      string           `json:"to"`
	Added   []toolView       `json:"added" nullable:"false"`
	Removed []toolView       `json:"removed" nullable:"false"`
	Changed []toolChangeView `json:"changed" nullable:"false"`
}

type toolChangeView struct {
	Before toolView `json:"before"`
	After  toolView `json:"after"`
}

func (a *api) diffInventories(ctx context.Context, by fleet.Principal, in *diffInput) (*answer[diffView], error) {
	records, err := a.inventories(ctx, in.DevicePath)
	if err != nil {
		return nil, err
	}
	from, err := pick(records, "from", in.From, 1)
	if err != nil {
		return nil, err
	}
	to, err := pick(records, "to", in.To, 0)
	if err != nil {
		return nil, err
	}
	d, err := a.Devices.Diff(ctx, from, to)
	if err != nil {
		return nil, err
	}
	id, err := in.device()
	if err != nil {
		return nil, err
	}
	hiddenIn := func(inventory string) func(t fleet.Tool) bool {
		return func(t fleet.Tool) bool { return a.hiddenTool(by, fleet.Device{ID: id, InventoryID: inventory}, t) }
	}
	before, after := hiddenIn(from), hiddenIn(to)
	d.Added, d.Removed = slices.DeleteFunc(d.Added, after), slices.DeleteFunc(d.Removed, before)
	d.Changed = slices.DeleteFunc(d.Changed, func(c fleet.ToolChange) bool { return before(c.Before) || after(c.After) })
	changed := listOf(d.Changed, func(c fleet.ToolChange) toolChangeView {
		return toolChangeView{tool(c.Before),
			tool(c.After)}
	})
	return answerWith(diffView{From: d.From, To: d.To, Added: listOf(d.Added, tool).Body.Items,
		Removed: listOf(d.Removed, tool).Body.Items, Changed: changed.Body.Items}), nil
}

// pick returns the requested inventory, which the device must have had, or the one at the given
// index.
func pick(records []fleet.InventoryRecord, param, id string, place int) (string, error) {
	if id == "" && place < len(records) {
		return records[place].InventoryID, nil
	}
	for _, r := range records {
		if r.InventoryID == id {
			return id, nil
		}
	}
	return "", fleet.Refuse(fleet.ErrInvalid, "unknown_inventory").At("query." + param)
}
