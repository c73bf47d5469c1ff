package ui

import (
	"net/url"
	"strconv"
	"strings"

	"fleetd/fleet"
)

// The addresses of the console. Components link to them and handlers are mounted on them; no other
// code builds an address.
const (
	PathHome        = "/"
	PathSignIn      = "/sign-in"     // GET page, POST name, password, next
	PathSignOut     = "/sign-out"    // POST
	PathPreferences = "/preferences" // POST lang, theme ("auto", "light", "dark"), next
	PathDevices     = "/devices"     // GET q, view, columns, sort, desc, limit, cursor
	PathBulk        = "/bulk"        // GET act, all and q or d..., tags, reason, hours, next; POST also ids, step, confirm
	PathComplete    = "/complete"    // GET q: the filter of a device list, up to the cursor
	PathUndo        = "/undo"        // "/undo/{id}": POST next
	PathExport      = "/devices.csv" // GET q, column..., bom
	PathImport      = "/import"      // GET page, POST file; "apply": POST csv, digest
	PathFilters     = "/filters"     // POST name, title, with q in the address
	PathClaim       = "/claim"       // GET add, POST code
	PathMQTT5       = "/claim/mqtt5" // POST id, name: a device of MCP over MQTT 5
	PathCalls       = "/calls"       // GET device, tool, actor, state, fanout, since, until, limit, cursor
	PathCallsExport = "/calls.csv"   // GET the same filter
	PathFanOuts     = "/fanouts"     // GET list, POST create
	PathFanOutNew   = "/fanouts/new" // GET q or d=... (repeated), tool, arg.*
	PathSettings    = "/settings"
	PathSerials     = "/settings/serials" // GET state, prefix, limit, cursor; POST file
	PathKeys        = "/settings/keys"    // GET group, limit, cursor
	PathHelp        = "/help"
	PathEvents      = "/events" // GET server-sent events; view=..., and the view's parameters
)

// DevicePath is the page of a device, or one of its tabs: "health", "tools",
// "activity", "firmware", "screen", "facts".
func DevicePath(id fleet.DeviceID, parts ...string) string {
	path := PathDevices + "/" + url.PathEscape(string(id))
	for _, p := range parts {
		path += "/" + url.PathEscape(p)
	}
	return path
}

// ToolPath is the page of one tool of a device: GET shows the form, POST calls the tool with
// arg.NAME fields.
func ToolPath(id fleet.DeviceID, tool string) string { return DevicePath(id, "tools", tool) }

// CallPath is the page of one call.
func CallPath(id string) string { return PathCalls + "/" + url.PathEscape(id) }

// FanOutPath is the page of one fan-out; "cancel" is the only part.
func FanOutPath(id string, parts ...string) string {
	return strings.Join(append([]string{PathFanOuts, url.PathEscape(id)}, parts...), "/")
}

// UndoPath takes back the act with the id.
func UndoPath(id string) string { return PathUndo + "/" + url.PathEscape(id) }

// FilterPath acts on a saved filter; parts are "rename" or "delete".
func FilterPath(id string, parts ...string) string {
	return strings.Join(append([]string{PathFilters, url.PathEscape(id)}, parts...), "/")
}

// SerialPath acts on a serial number; parts are "release" or "delete".
func SerialPath(serial string, parts ...string) string {
	return strings.Join(append([]string{PathSerials, url.PathEscape(serial)}, parts...), "/")
}

// SnapshotPath is the picture itself; see [PicturePath] for its page. GET download=1 sends it as a
// file. It serves a picture that a device uploaded.
func SnapshotPath(id string) string { return "/snapshots/" + url.PathEscape(id) }

// QueryPath returns the device list filtered by a query.
func QueryPath(query string) string {
	if query == "" {
		return PathDevices
	}
	return PathDevices + "?" + url.Values{"q": {query}}.Encode()
}

// Term returns one term of the query language, with the value quoted if necessary.
func Term(field, value string) string {
	if strings.ContainsAny(value, " \t\",*") || value == "" {
		value = `"` + strings.ReplaceAll(value, `"`, "") + `"`
	}
	return field + ":" + value
}

// A ListURL is the address of a list with its filter: links on the page change one parameter and
// keep the others.
type ListURL struct {
	Path   string
	Values url.Values
}

// With returns the address with one parameter changed, on the first page. An empty value removes
// the parameter.
func (l ListURL) With(name, value string) string {
	return l.with(name, value, "cursor")
}

// At returns the address of another page of the same list.
func (l ListURL) At(cursor string) string { return l.with("cursor", cursor) }

func (l ListURL) with(name, value string, drop ...string) string {
	v := make(url.Values, len(l.Values))
	for k, vals := range l.Values {
		v[k] = vals
	}
	for _, d := range drop {
		v.Del(d)
	}
	if value == "" {
		v.Del(name)
	} else {
		v.Set(name, value)
	}
	if len(v) == 0 {
		return l.Path
	}
	return l.Path + "?" + v.Encode()
}

// Get returns a parameter of the address.
func (l ListURL) Get(name string) string { return l.Values.Get(name) }

// limit returns the requested page size.
func (l ListURL) limit() int {
	n, _ := strconv.Atoi(l.Values.Get("limit"))
	return fleet.ClampLimit(n)
}
