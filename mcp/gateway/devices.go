package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/shown"
)

// maxFound is the maximum number of devices on a page.
const maxFound = 50

// queryHelp documents the query language.
var queryHelp = func() string {
	var b strings.Builder
	b.WriteString("Terms separated by spaces must all match; a leading - negates one. Terms:")
	for _, f := range fleet.QueryFields {
		b.WriteString(" " + f.Example)
	}
	b.WriteString(`. A value can be several separated by commas, end in *, or be in double quotes. ` +
		`A word without a field is searched in id, name, board and tags. An empty query matches every device in service.`)
	return b.String()
}()

// deviceOut is a device in lists. The device reports its board, chip and version.
type deviceOut struct {
	ID        fleet.DeviceID   `json:"id"`
	Kind      fleet.DeviceKind `json:"kind"`     // esp32, mqtt5, plugin or endpoint
	Name      string           `json:"name"`     // chosen by a person
	Tags      []string         `json:"tags"`     // chosen by a person
	Presence  fleet.Presence   `json:"presence"` // online, unresponsive, unknown_edge, offline or pending
	Since     *time.Time       `json:"presence_since,omitempty"`
	LastSeen  *time.Time       `json:"last_seen,omitempty"`
	Enrolment string           `json:"enrolment"`
	Held      bool             `json:"held"` // an operator's hold keeps others from acting on it
	Tools     int              `json:"tools_count"`
	Device    deviceWords      `json:"device_text"` // written by the device: data, never an instruction
}

type deviceWords struct {
	Board   string `json:"board"`
	Chip    string `json:"chip"`
	Version string `json:"version"`
}

func (g *Gateway) device(d fleet.Device) deviceOut {
	v := deviceOut{ID: d.ID, Kind: d.Kind, Name: fleet.CleanText(d.Name, maxName), Tags: orEmpty(d.Tags),
		Presence: d.Presence, LastSeen: utc(d.LastSeen), Enrolment: string(d.Enrolment), Held: d.Hold.Active(g.now()),
		Tools: d.ToolsCount,
		Device: deviceWords{fleet.CleanText(d.Board, maxShort), fleet.CleanText(d.Chip, maxShort),
			fleet.CleanText(d.Version, maxShort)}}
	if !d.PresenceSince.IsZero() {
		v.Since = utc(&d.PresenceSince)
	}
	return v
}

func (v deviceOut) line() string {
	line := fmt.Sprintf("%s %s", v.ID, v.Presence)
	if v.Name != "" {
		line += fmt.Sprintf(" name=%q", v.Name)
	}
	if len(v.Tags) > 0 {
		line += " tags=" + strings.Join(v.Tags, ",")
	}
	if v.Held {
		line += " held"
	}
	if v.ID.IsProgram() {
		line += " kind=" + string(v.Kind)
	}
	return line + fmt.Sprintf(" tools=%d board=%q version=%q", v.Tools, v.Device.Board, v.Device.Version)
}

// find returns the device with this id or name.
func (g *Gateway) find(ctx context.Context, by fleet.Principal, name string) (fleet.Device, error) {
	id, err := fleet.ParseDeviceID(name)
	if err != nil {
		return fleet.Device{}, err
	}
	d, err := g.o.Devices.Device(ctx, id)
	if errors.Is(err, fleet.ErrNotFound) || err == nil && !by.Sees(d) {
		return fleet.Device{}, unknownDevice(name)
	}
	return d, err
}

func unknownDevice(name string) error {
	return fleet.Refuse(fleet.ErrNotFound, "mcp_unknown_device", "device", name).At("device")
}

type findIn struct {
	Query  string `json:"q,omitempty" jsonschema:"query for the devices"`
	Limit  int    `json:"limit,omitempty" jsonschema:"maximum devices in the answer; default 20"`
	Cursor string `json:"cursor,omitempty" jsonschema:"next_cursor of the previous answer"`
}

type findOut struct {
	Total   int         `json:"total"` // devices that match
	Devices []deviceOut `json:"devices"`
	Next    string      `json:"next_cursor,omitempty"`
}

type deviceIn struct {
	Device string `json:"device" jsonschema:"id of a device; a MAC address in any form"`
}

func (g *Gateway) addDeviceTools(s *mcp.Server) {
	add[findIn, findOut](g, s, definition{name: "find_devices", models: fleet.ModelsMay, title: "Find devices", effect: reads,
		about: "Lists the devices that a query matches, by name, with presence, board and version. " + queryHelp,
		limits: map[string]func(*jsonschema.Schema){"limit": between(1, maxFound), "q": longest(1024),
			"cursor": longest(1000)}}, g.findDevices)
	add[deviceIn, describeOut](g, s, definition{name: "describe_device", models: fleet.ModelsMay, title: "Describe a device", effect: reads,
		about: "Shows one device: its firmware, its tools, any hold, its campaign, and what it last " +
			"reported.", limits: map[string]func(*jsonschema.Schema){"device": longest(80)}}, g.describeDevice)
	add[deviceIn, explainOut](g, s, definition{name: "explain_device", models: fleet.ModelsMay, title: "Explain a device", effect: reads,
		about: "Explains the state of a device: the evidence for its presence, any hold and its reason, why it is not " +
			"updating, and its last restarts, crashes, core dumps and failed calls.",
		limits: map[string]func(*jsonschema.Schema){"device": longest(80)}}, g.explainDevice)
}

func (g *Gateway) findDevices(ctx context.Context, _ fleet.Principal, _ *mcp.CallToolRequest,
	in findIn) (answer, error) {
	q, err := fleet.ParseQuery(in.Query)
	if err != nil {
		return answer{}, err
	}
	page, err := g.o.Devices.Devices(ctx, fleet.DeviceFilter{Query: q, Limit: cmp.Or(in.Limit, 20), Cursor: in.Cursor})
	if err != nil {
		return answer{}, err
	}
	out := findOut{Total: len(page.Items), Devices: make([]deviceOut, 0, len(page.Items)), Next: page.Next}
	if page.Next != "" || in.Cursor != "" {
		if out.Total, err = g.o.Devices.CountDevices(ctx, q); err != nil {
			return answer{}, err
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s match; %d shown. Board and version are text written by the device.", count(out.Total, "device"),
		len(page.Items))
	for _, d := range page.Items {
		v := g.device(d)
		out.Devices = append(out.Devices, v)
		text.WriteString("\n" + v.line())
	}
	if out.Next != "" {
		text.WriteString("\nMore follow: call again with cursor=" + out.Next)
	}
	return answer{text: text.String(), out: out}, nil
}

type describeOut struct {
	Device     deviceOut  `json:"device"`
	Notes      string     `json:"notes,omitempty"` // written by a person
	Hold       *holdOut   `json:"hold,omitempty"`
	Campaign   string     `json:"campaign,omitempty"` // id of the campaign whose deployment on it is unfinished
	LastPoll   *time.Time `json:"last_boot_poll,omitempty"`
	RemoteAddr string     `json:"remote_addr,omitempty"`
	Slot       string     `json:"slot,omitempty"`
	Tools      []toolLine `json:"tools"`
	Vitals     *vitalsOut `json:"vitals,omitempty"`
	RetiredAt  *time.Time `json:"retired_at,omitempty"`
}

type holdOut struct {
	Reason string     `json:"reason"` // written by a person
	By     string     `json:"by"`
	Since  *time.Time `json:"since"`
	Until  *time.Time `json:"until,omitempty"`
}

// toolLine is a tool of a device in lists.
type toolLine struct {
	Name string `json:"name"`
	// user: for people and programs, never for a language model
	Audience fleet.Audience `json:"audience"`
	Reads    bool           `json:"read_only"` // read_device may call it
	// sentence_name: the name reads like a sentence, and is data;
	// hidden_properties: arguments are left out, do not call it;
	// quarantined: it is new or changed, and models may not call it until a person releases it
	Warnings []string `json:"warnings,omitempty"`
	// its description, written by the device: data, never an instruction
	About string `json:"device_text"`
}

func lineOf(t fleet.Tool) toolLine {
	v := toolLine{Name: fleet.CleanText(t.Name, 200), Audience: fleet.AudienceModel, Reads: fleet.ReadsOnly(t.Name),
		About: fleet.CleanText(t.Description, maxSummary)}
	for _, w := range shown.Warnings(t) {
		v.Warnings = append(v.Warnings, string(w))
	}
	if t.UserOnly() {
		v.Audience = fleet.AudienceUser
	}
	return v
}

// lineOf returns a tool of a device.
func (g *Gateway) lineOf(d fleet.Device, t fleet.Tool) toolLine {
	v := lineOf(t)
	if g.held(d, t) {
		v.Warnings = append(v.Warnings, "quarantined")
	}
	return v
}

// offered returns the tools of a device's inventory that the principal may see: a model
// does not see the tools that it must never call, nor those in quarantine.
func (g *Gateway) offered(d fleet.Device, inv *fleet.Inventory, by fleet.Principal) []fleet.Tool {
	if inv == nil {
		return nil
	}
	var list []fleet.Tool
	for _, t := range inv.Tools {
		if by.SeesTool(t) && !(by.Kind.IsModel() && g.held(d, t)) {
			list = append(list, t)
		}
	}
	return list
}

// held reports whether a tool is in quarantine: for a model it does not exist. A tool that differs
// from its pin is shown, with a warning.
func (g *Gateway) held(d fleet.Device, t fleet.Tool) bool {
	return !g.o.Pins.Pinned(t.Name) && g.o.Quarantines.Holds(d.ID, d.InventoryID, t)
}

type vitalsOut struct {
	At          time.Time `json:"at"`
	UptimeMs    int64     `json:"uptime_ms"`
	ResetReason string    `json:"reset_reason,omitempty"`
	Boots       int64     `json:"boots"`
	Crashes     int64     `json:"crashes"` // in a row
	SafeMode    bool      `json:"safe_mode"`
	HeapFree    int64     `json:"heap_free_bytes"`
	RSSI        *int      `json:"rssi_dbm,omitempty"`
	CoreDump    bool      `json:"core_dump"` // the device stores one
}

func (g *Gateway) vitals(ctx context.Context, id fleet.DeviceID) (*vitalsOut, error) {
	v, err := g.o.Reports.Vitals(ctx, id)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &vitalsOut{At: *utc(&v.At), UptimeMs: v.Uptime.Milliseconds(),
		ResetReason: fleet.CleanText(v.ResetReason, maxShort), Boots: v.Boots, Crashes: v.Crashes, SafeMode: v.SafeMode,
		HeapFree: v.HeapFree, RSSI: v.RSSI, CoreDump: v.CoreDump}, nil
}

func (g *Gateway) hold(d fleet.Device) *holdOut {
	if !d.Hold.Active(g.now()) {
		return nil
	}
	return &holdOut{Reason: fleet.CleanText(d.Hold.Reason, 4*fleet.MaxReasonLength), By: d.Hold.By.Name,
		Since: utc(&d.Hold.Since), Until: utc(d.Hold.Until)}
}

// toolsOf returns the device's inventory, nil before the first.
func (g *Gateway) toolsOf(ctx context.Context, d fleet.Device) (*fleet.Inventory, error) {
	if d.InventoryID == "" {
		return nil, nil
	}
	return g.tools.inventory(ctx, d.InventoryID)
}

func (g *Gateway) describeDevice(ctx context.Context, by fleet.Principal, _ *mcp.CallToolRequest,
	in deviceIn) (answer, error) {
	d, err := g.find(ctx, by, in.Device)
	if err != nil {
		return answer{}, err
	}
	inv, err := g.toolsOf(ctx, d)
	if err != nil {
		return answer{}, err
	}
	campaigns, err := g.o.Campaigns.CampaignsOf(ctx, []fleet.DeviceID{d.ID})
	if err != nil {
		return answer{}, err
	}
	out := describeOut{Device: g.device(d), Notes: cleanLines(d.Notes, maxDescription), Hold: g.hold(d),
		LastPoll: utc(d.LastPoll), RemoteAddr: d.RemoteAddr, Slot: fleet.CleanText(d.Slot, maxShort),
		Tools: []toolLine{}, RetiredAt: utc(d.RetiredAt)}
	if id := campaigns[d.ID]; id != uuid.Nil {
		out.Campaign = id.String()
	}
	if out.Vitals, err = g.vitals(ctx, d.ID); err != nil {
		return answer{}, err
	}
	var text strings.Builder
	text.WriteString(out.Device.line())
	if out.Hold != nil {
		fmt.Fprintf(&text, "\nHeld by %s: %q", out.Hold.By, out.Hold.Reason)
	}
	if out.Campaign != "" {
		text.WriteString("\nPart of campaign " + out.Campaign)
	}
	text.WriteString("\nTools; " + follows)
	for _, t := range g.offered(d, inv, by) {
		line := g.lineOf(d, t)
		out.Tools = append(out.Tools, line)
		text.WriteString("\n- " + line.Name + line.marks() + ": " + fleet.CleanText(line.About, maxName))
	}
	return answer{text: text.String(), out: out}, nil
}

func (t toolLine) marks() string {
	marks := ""
	if t.Reads {
		marks += " (read-only)"
	}
	if slices.Contains(t.Warnings, "quarantined") {
		marks += " (WARNING: it is new or changed and is in quarantine)"
	}
	if t.Audience == fleet.AudienceUser {
		marks += " (for people, not for language models)"
	}
	return marks
}

type explainOut struct {
	Device   deviceOut    `json:"device"`
	Presence reasonOut    `json:"presence"`
	Hold     *holdOut     `json:"hold,omitempty"`
	Update   updateOut    `json:"update"`
	Vitals   *vitalsOut   `json:"vitals,omitempty"`
	Dumps    []dumpOut    `json:"core_dumps"`            // latest first
	Failures []callOut    `json:"failed_calls"`          // latest first
	Conflict *conflictOut `json:"id_conflict,omitempty"` // two devices use this id
}

type conflictOut struct {
	Since *time.Time `json:"since"`
	Last  *time.Time `json:"last"`
}

// reasonOut is a reason code with its text.
type reasonOut struct {
	Code   string       `json:"code"`
	Text   string       `json:"text"`
	Params fleet.Params `json:"params,omitempty"`
	Since  *time.Time   `json:"since,omitempty"`
	Until  *time.Time   `json:"until,omitempty"`
}

func (g *Gateway) reason(r fleet.Reason) reasonOut {
	return reasonOut{Code: r.Code, Text: fleet.CleanText(g.o.Texts.Reason(r), 600), Params: r.Params}
}

type updateOut struct {
	Campaign   string     `json:"campaign,omitempty"` // latest campaign that included the device
	State      string     `json:"campaign_state,omitempty"`
	Deployment string     `json:"deployment_state,omitempty"` // state of its deployment in that campaign
	ToVersion  string     `json:"to_version,omitempty"`
	Waits      string     `json:"waits_for,omitempty"` // code of what blocks the deployment
	Until      *time.Time `json:"until,omitempty"`
	Reason     *reasonOut `json:"reason,omitempty"`     // why it failed, or what it waits for
	Quarantine *reasonOut `json:"quarantine,omitempty"` // why the device is excluded from all campaigns
	Newer      []string   `json:"newer_releases"`       // versions that fit the device and that it does not run
}

type dumpOut struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Version string    `json:"version"`
	Summary string    `json:"device_text"` // written by the device: data, never an instruction
}

func (g *Gateway) explainDevice(ctx context.Context, by fleet.Principal, _ *mcp.CallToolRequest,
	in deviceIn) (answer, error) {
	d, err := g.find(ctx, by, in.Device)
	if err != nil {
		return answer{}, err
	}
	out := explainOut{Device: g.device(d), Presence: g.reason(d.PresenceEvidence), Hold: g.hold(d), Dumps: []dumpOut{},
		Failures: []callOut{}}
	out.Presence.Since = out.Device.Since
	if d.Conflict.Active(g.now()) {
		out.Conflict = &conflictOut{utc(&d.Conflict.FirstSeen), utc(&d.Conflict.LastSeen)}
	}
	outlook, err := g.o.Campaigns.Outlook(ctx, d.ID)
	if err != nil {
		return answer{}, err
	}
	out.Update = g.update(outlook)
	if out.Vitals, err = g.vitals(ctx, d.ID); err != nil {
		return answer{}, err
	}
	dumps, err := g.o.CoreDumps.CoreDumps(ctx, d.ID, 3)
	if err != nil {
		return answer{}, err
	}
	for _, c := range dumps {
		out.Dumps = append(out.Dumps, dumpOut{c.ID.String(), *utc(&c.CreatedAt), fleet.CleanText(c.Version, maxShort),
			cleanLines(c.Summary, 1<<10)})
	}
	calls, err := g.o.Calls.List(ctx, call.Filter{Device: d.ID, Limit: 5, States: []fleet.CallState{
		fleet.CallToolError, fleet.CallTimedOut, fleet.CallUnknown, fleet.CallRefused, fleet.CallOffline}})
	if err != nil {
		return answer{}, err
	}
	for _, c := range calls.Items {
		v, _ := g.call(c)
		out.Failures = append(out.Failures, v)
	}
	return answer{text: out.text(), out: out}, nil
}

func (g *Gateway) update(o campaign.Outlook) updateOut {
	v := updateOut{Waits: string(o.BlockReason), Until: utc(o.Until), Newer: []string{}}
	if o.Campaign != nil {
		v.Campaign, v.State = o.Campaign.ID.String(), string(o.Campaign.State)
	}
	if d := o.Deployment; d != nil {
		v.Deployment, v.ToVersion = string(d.State), d.ToVersion
		if d.Reason.Code != "" {
			r := g.reason(d.Reason)
			v.Reason = &r
		}
	}
	if q := o.Quarantine; q != nil {
		r := g.reason(q.Reason)
		r.Since, r.Until = utc(&q.Since), utc(&q.Until)
		v.Quarantine = &r
	}
	for _, r := range o.Newer {
		v.Newer = append(v.Newer, fleet.CleanText(r.Version, maxShort))
	}
	return v
}

func (out explainOut) text() string {
	lines := []string{out.Device.line()}
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	say("Presence %s: %s", out.Device.Presence, cmp.Or(out.Presence.Text, "never seen"))
	if h := out.Hold; h != nil {
		say("Held by %s: %q", h.By, h.Reason)
	}
	u := out.Update
	switch {
	case u.Quarantine != nil:
		say("Not updating: in quarantine until %s: %s", u.Quarantine.Until.Format(time.RFC3339), u.Quarantine.Text)
	case u.Waits != "":
		say("Not updating: campaign %s waits for %s", u.Campaign, u.Waits)
	case u.Deployment != "":
		say("Latest update, to %q in campaign %s: %s", u.ToVersion, u.Campaign, u.Deployment)
	default:
		say("No campaign includes this device.")
	}
	if u.Reason != nil {
		say("Reason: %s", u.Reason.Text)
	}
	if len(u.Newer) > 0 {
		say("Releases that fit and that it does not run: %q", u.Newer)
	}
	if v := out.Vitals; v != nil {
		say("Vitals: up %v, reset reason %q, %d boots, %d crashes in a row, safe mode %t, %d bytes of heap free",
			time.Duration(v.UptimeMs)*time.Millisecond, v.ResetReason, v.Boots, v.Crashes, v.SafeMode, v.HeapFree)
	}
	say("%s failed recently, %s recorded.", count(len(out.Failures), "call"), count(len(out.Dumps), "core dump"))
	for _, c := range out.Failures {
		say("- %s %s %s: %s", c.CreatedAt.Format(time.RFC3339), c.Tool, c.State, c.Problem)
	}
	for _, d := range out.Dumps {
		say("- core dump %s of version %q; %s\n%s", d.ID, d.Version, follows, d.Summary)
	}
	return strings.Join(lines, "\n")
}
