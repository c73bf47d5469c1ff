package forms

import (
	"encoding/json"
	"maps"
	"math"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet/upstream"
)

// EquivalentVariable has the names of the variables of a plug-in that a form changes.
const EquivalentVariable = "as.variable"

// Equivalents of these forms have a text that is not valid as it is typed, so that the server refuses
// them as it refuses the form: without that member a rule would apply to more than its form says.

// check adds a box that is checked.
func check(v url.Values, name string, checked bool) {
	if checked {
		v.Set(name, "1")
	}
}

// written returns the equivalent of a form that creates what is at path, or changes the one of the
// field [EquivalentOf] in the version that the form shows.
func written(v url.Values, noun, path string) (e Equivalent, change bool) {
	id := v.Get(EquivalentOf)
	if id == "" {
		return Equivalent{Operation: "create-" + noun, Method: "POST", Path: path, Body: map[string]any{}}, false
	}
	e = Equivalent{Operation: "update-" + noun, Method: "PATCH", Path: path + "/" + url.PathEscape(id),
		Body: map[string]any{}}
	if version, err := strconv.ParseInt(v.Get("version"), 10, 64); err == nil && version > 0 {
		e.Body["version"] = version
	}
	return e, true
}

// members adds members of the body; without all only those that have a value.
func (e Equivalent) members(all bool, members map[string]any) {
	for name, value := range members {
		v := reflect.ValueOf(value)
		if empty := v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0; all || !empty {
			e.Body[name] = value
		}
	}
}

// some returns a list that JSON writes as [] if it is empty.
func some(list []string) []string { return append([]string{}, list...) }

func policyEquivalent(v url.Values, _ time.Time) Equivalent {
	f := PostedPolicy(v)
	r, err := f.Read()
	e, change := written(v, "policy", "/policies")
	e.Body["name"], e.Body["enabled"] = f.Name, f.Enabled
	e.member("decision", f.Decision)
	e.members(change, map[string]any{"kinds": some(f.Kinds), "roles": some(f.Roles), "effects": some(f.Effects),
		"names": some(r.Names), "tools": some(r.Tools), "audience": f.Audience, "devices": f.Devices, "note": f.Note})
	limits := map[string]any{"approval_ttl_ms": r.ApprovalTTL.Milliseconds(), "rate_per_minute": r.RatePerMinute,
		"daily_budget": r.DailyBudget}
	if err != nil {
		limits = map[string]any{"approval_ttl_ms": f.Wait, "rate_per_minute": f.Rate, "daily_budget": f.Budget}
	}
	e.members(change, limits)
	switch {
	case err == nil && r.Window != nil:
		e.Body["window"] = windowBody(*r.Window)
	case f.Cron != "":
		e.Body["window"] = map[string]any{"cron": f.Cron, "duration_ms": f.Minutes, "time_zone": f.Zone}
	case change:
		e.Body["clear_window"] = true
	}
	switch schema := strings.TrimSpace(f.Arguments); {
	case schema == "" || schema == "null":
		if change {
			e.Body["arguments"] = map[string]any{}
		}
	case json.Valid([]byte(schema)):
		e.Body["arguments"] = json.RawMessage(schema)
	default:
		e.Body["arguments"] = schema
	}
	return e
}

func ruleEquivalent(v url.Values, now time.Time) Equivalent {
	f := PostedRule(v)
	r, err := f.Read(now.Location())
	e, change := written(v, "enrolment-rule", "/enrolment/rules")
	e.Body["name"], e.Body["enabled"] = f.Name, f.Enabled
	e.member("action", f.Action)
	e.members(change, map[string]any{"boards": some(r.Boards), "tags": some(r.Tags), "transport": f.Transport})
	networks, devices := []string{}, []string{}
	for _, network := range r.Networks {
		networks = append(networks, network.String())
	}
	for _, device := range r.Devices {
		devices = append(devices, device.MAC())
	}
	var from, until, most any = momentBody(r.From), momentBody(r.Until), r.MaxDevices
	if err != nil {
		networks, devices, from, until, most = some(lines(f.Networks)), some(lines(f.Devices)), f.From, f.Until, f.Max
	}
	if file := v.Get("list"); file != "" {
		devices = append(devices, file) // no address: the page does not send what is in the file
	}
	e.members(change, map[string]any{"networks": networks, "devices": devices, "max_devices": most})
	for name, at := range map[string]any{"from": from, "until": until} {
		switch {
		case at != nil && at != "":
			e.Body[name] = at
		case change:
			e.Body["clear_"+name] = true
		}
	}
	return e
}

func upstreamEquivalent(v url.Values, _ time.Time) Equivalent {
	f := PostedUpstream(v)
	c := f.Change()
	e, change := written(v, "upstream", "/upstreams")
	e.Body["name"], e.Body["enabled"], e.Body["tools"] = f.Name, f.Enabled, f.Tools
	e.member("kind", f.Kind)
	e.member("auth", string(*c.Auth))
	e.members(change, map[string]any{"url": f.URL, "devices": f.Devices})
	words := []string{f.Name}
	e.Args = []string{"upstream", "add"}
	if change {
		words = []string{v.Get(EquivalentOf)}
		e.Args = []string{"upstream", "set", "--name=" + f.Name, "--address=" + f.URL, "--devices=" + f.Devices}
		if version, ok := e.Body["version"].(int64); ok {
			e.flag("if-version", strconv.FormatInt(version, 10))
		}
	} else {
		e.flag("devices", f.Devices)
		if f.URL != "" {
			words = append(words, f.URL)
		}
	}
	e.flag("kind", f.Kind)
	if change || *c.Auth != upstream.AuthNone {
		e.flag("auth", string(*c.Auth))
	}
	e.choice("tools", f.Tools, change)
	e.choice("enabled", f.Enabled, change)
	return e.arguments(words...)
}

// choice adds a flag that can be negated; without all only if it is: it is on by default.
func (e *Equivalent) choice(name string, on, all bool) {
	switch {
	case !on:
		e.Args = append(e.Args, "--no-"+name)
	case all:
		e.Args = append(e.Args, "--"+name)
	}
}

func pluginEquivalent(v url.Values, _ time.Time) Equivalent {
	f := PostedPlugin(v)
	m, _ := f.Read() // limits that are not valid are in limitsBody
	e, change := written(v, "plugin", "/plugins")
	limits := map[string]any{}
	if f.Runs == PluginCommand {
		limits = f.limitsBody()
	}
	e.member("audience", f.Audience)
	e.members(change, map[string]any{"command": some(m.Command), "args": some(m.Args), "url": m.URL,
		"headers_file": m.HeadersFile, "tools": some(m.Tools), "offer_to_voice": f.OfferToVoice,
		"env_files": some(m.EnvFiles)})
	if change {
		all := map[string]any{"memory": "0", "cpu": 0, "open_files": 0}
		maps.Copy(all, limits)
		e.Body["limits"] = all
		removed := f.drop
		if f.Runs == PluginURL {
			removed = v[EquivalentVariable]
		}
		env := map[string]any{}
		for _, name := range removed {
			env[name] = nil
		}
		if len(env) > 0 {
			e.Body["env"] = env
		}
		return e
	}
	e.Body["name"] = f.Name
	if len(limits) > 0 {
		e.Body["limits"] = limits
	}
	e.Args = []string{"plugin", "add"}
	e.flag("address", m.URL)
	e.flag("headers-file", m.HeadersFile)
	for _, file := range m.EnvFiles {
		e.flag("env-file", file)
	}
	for _, pattern := range m.Tools {
		e.flag("tools", pattern)
	}
	e.flag("audience", f.Audience)
	if f.OfferToVoice {
		e.Args = append(e.Args, "--voice")
	}
	if f.Runs == PluginCommand {
		e.flag("memory", f.Memory)
		e.flag("cpu", f.CPU)
		e.flag("open-files", f.OpenFiles)
	}
	return e.arguments(append(append([]string{f.Name}, m.Command...), m.Args...)...)
}

// limitsBody returns the limits that the form has.
func (f Plugin) limitsBody() map[string]any {
	body := map[string]any{}
	if f.Memory != "" {
		body["memory"] = f.Memory
	}
	if f.CPU != "" {
		body["cpu"] = f.CPU
		if cpu, err := strconv.ParseFloat(f.CPU, 64); err == nil && !math.IsInf(cpu, 0) && !math.IsNaN(cpu) {
			body["cpu"] = cpu
		}
	}
	if f.OpenFiles != "" {
		body["open_files"] = f.OpenFiles
		if n, err := strconv.Atoi(f.OpenFiles); err == nil {
			body["open_files"] = n
		}
	}
	return body
}
