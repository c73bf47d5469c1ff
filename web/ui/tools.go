package ui

import (
	"encoding/hex"
	"encoding/json"
	"strconv"

	"fleetd/fleet"
	"fleetd/fleet/policy"
	"fleetd/fleet/shown"
	"fleetd/web/forms"
)

// A ToolsPage lists a device's tools: GET DevicePath(id, "tools"), and one tool's form: GET
// [ToolPath]. POST [ToolPath] calls it (multipart, fields arg.*, picture, confirm) and redirects to
// ToolPath?call=ID.
type ToolsPage struct {
	Head  DeviceHead
	Tools []fleet.Tool
	Held  map[string]bool // the tools in quarantine, by name
	Form  *ToolForm       // the chosen tool; nil shows only the list
	Last  *CallView       // the latest call; its outcome is shown next to the form

	Recent []CallRow // calls of the device, shown until a tool is chosen
}

// toolPrefix begins the names of most tools.
const toolPrefix = "self."

// A ToolForm is the form of one tool.
type ToolForm struct {
	Tool    fleet.Tool
	Fields  []forms.Field
	Problem string // why the form was rejected, in the page's language
	Offline bool   // the call would end offline
	Talking bool   // the call would interrupt a conversation

	Pin     *policy.ToolPin // nil: the tool is not pinned
	Differs bool            // the device's description differs from the pinned one
	CanPin  bool
	Held    *policy.ToolQuarantine // nil: the tool is not in quarantine
	Waits   bool                   // its definition waits for a person, on all devices
}

func (f *ToolForm) heldDigest() string { return hex.EncodeToString(f.Held.Digest[:]) }

func (f *ToolForm) heldText() string {
	if f.Held.IsNew() {
		return "tools.quarantined_new"
	}
	return "tools.quarantined"
}

// NewToolForm returns the form of a tool; see [forms.NewFields] for last.
func NewToolForm(tool fleet.Tool, last json.RawMessage) *ToolForm {
	return &ToolForm{Tool: tool, Fields: forms.NewFields(tool, last)}
}

// A confirmation requires a typed word before a call that disconnects the device. The form field is
// "confirm".
type confirmation struct{ word, ask, button string } // ask and button are messages

var confirmations = map[fleet.ToolEffect]confirmation{
	fleet.EffectRestarts: {"reboot", "tools.type_word", "tools.reboot"},
	fleet.EffectLeaves:   {"leave", "tools.type_leave", "tools.leave"},
}

// Confirm returns the word that the operator must type first; "" for none.
func (f *ToolForm) Confirm() string { return f.confirmation().word }

func (f *ToolForm) confirmation() confirmation { return confirmations[fleet.EffectOf(f.Tool.Name)] }

// forbidden returns the message that explains why the console does not call the tool.
func (f *ToolForm) forbidden() string {
	switch f.Tool.Name {
	case fleet.ToolUpgradeFirmware:
		return "tools.no_upgrade"
	case fleet.ToolSetAssetsURL:
		return "tools.no_assets"
	}
	return ""
}

func (f *ToolForm) takesPicture() bool { return fleet.ShowsPicture(f.Tool.Name) }

// rpc returns the message that the form would send with the shown values.
func (f *ToolForm) rpc() string {
	form := make(map[string]any)
	for _, field := range f.Fields {
		if value, present, problem := field.Parse(); field.Ours {
			form[field.Name] = "…"
		} else if present && problem == "" {
			form[field.Name] = value
		}
	}
	return indent(rpcMessage("…", f.Tool.Name, form))
}

// ranged reports whether an argument gets a slider.
func ranged(f forms.Field) bool { return f.Type == "integer" && f.Min != nil && f.Max != nil }

// longType returns how the script reads the text of a field: as a string, or as JSON.
func longType(f forms.Field) string {
	if f.Type == "string" {
		return "string"
	}
	return "json"
}

// sliderAt returns the slider's position. Without a value the number next to it stays empty and the
// slider looks unset: an unknown value must be chosen, not sent by accident.
func sliderAt(f forms.Field) string {
	if f.Value != "" {
		return f.Value
	}
	return strconv.FormatInt(*f.Min, 10)
}

func (v ToolsPage) group(userOnly bool) []fleet.Tool {
	var tools []fleet.Tool
	for _, tool := range v.Tools {
		if tool.UserOnly() == userOnly {
			tools = append(tools, tool)
		}
	}
	return tools
}

func (v ToolsPage) chosen(tool fleet.Tool) string {
	return pressed(v.Form != nil && v.Form.Tool.Name == tool.Name)
}

// shownSchema returns a tool's schema in a form for display.
func shownSchema(t fleet.Tool) string { return string(shown.Schema(t.InputSchema)) }
