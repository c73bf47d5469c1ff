package ui

import (
	"encoding/json"
	"strconv"

	"fleetd/fleet"
	"fleetd/fleet/policy"
	"fleetd/fleet/shown"
	"fleetd/web/forms"
)

// A ToolsPage lists a device's tools: GET DevicePath(id, "tools"), and one
// tool's form: GET [ToolPath]. POST [ToolPath] calls it (multipart, fields
// arg.*, picture, confirm) and leads back to ToolPath?call=ID.
type ToolsPage struct {
	Head  DeviceHead
	Tools []fleet.Tool
	Form  *ToolForm // the chosen tool; nil shows only the list
	Last  *CallView // the call made last; its outcome is shown next to the form

	Recent []CallRow // the device's, shown until a tool is chosen
}

// toolPrefix begins the names of most tools.
const toolPrefix = "self."

// A ToolForm is the form of one tool.
type ToolForm struct {
	Tool    fleet.Tool
	Fields  []forms.Field
	Problem string // why the form was not accepted, in the page's language
	Offline bool   // the call would end offline
	Talking bool   // the call would interrupt a conversation

	Pin     *policy.ToolPin // nil: the tool is not pinned
	Differs bool            // the device lists it otherwise than pinned
	CanPin  bool
}

// NewToolForm makes the form of a tool; see [forms.NewFields] for last.
func NewToolForm(tool fleet.Tool, last json.RawMessage) *ToolForm {
	return &ToolForm{Tool: tool, Fields: forms.NewFields(tool, last)}
}

// A confirmation asks the operator to type a word before a call that takes the
// device away. The form field is "confirm".
type confirmation struct{ word, ask, button string } // ask and button are messages

var confirmations = map[fleet.ToolEffect]confirmation{
	fleet.EffectRestarts: {"reboot", "tools.type_word", "tools.reboot"},
	fleet.EffectLeaves:   {"leave", "tools.type_leave", "tools.leave"},
}

// Confirm is what the operator must type first; "" for nothing.
func (f *ToolForm) Confirm() string { return f.confirmation().word }

func (f *ToolForm) confirmation() confirmation { return confirmations[fleet.EffectOf(f.Tool.Name)] }

// forbidden is the message that says why the console does not call the tool.
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

// rpc is the message as it would be sent with the values shown.
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

// sliderAt is the slider's position. Without a value the number next to it
// stays empty and the slider looks unset: what is not known must be chosen,
// not sent by accident.
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

// shownSchema is a tool's schema as it can be shown.
func shownSchema(t fleet.Tool) string { return string(shown.Schema(t.InputSchema)) }
