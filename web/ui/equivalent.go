package ui

import (
	"context"
	"net/url"
	"strconv"
	"strings"

	"fleetd/web/forms"
)

// PathEquivalent writes the equivalent of a form as it is filled in: POST the form's fields, and
// those of [forms.EquivalentForm] and the like. It changes nothing.
const PathEquivalent = "/equivalent"

// maxEquivalentDevices is the number of listed devices up to which a command is short enough to copy.
const maxEquivalentDevices = 100

// equivalentOf returns the equivalent of a form with the fields v, and the fields that the script
// must add to those of the form.
func equivalentOf(ctx context.Context, form string, v url.Values) (e forms.Equivalent, added string) {
	keep := url.Values{forms.EquivalentForm: {form}}
	for name, values := range v {
		if strings.HasPrefix(name, "as.") || name == "picture" {
			keep[name] = values
		}
	}
	return forms.Equivalents[form](v, page(ctx).Now.In(page(ctx).Zone)), keep.Encode()
}

// equivalentChange returns the fields v of a form that changes what has the id; "" if it creates.
func equivalentChange(v url.Values, id string, version int64) url.Values {
	if id != "" {
		v.Set(forms.EquivalentOf, id)
		v.Set("version", strconv.FormatInt(version, 10))
	}
	return v
}

// equivalentPlugin returns the fields of a plug-in's form.
func equivalentPlugin(f forms.Plugin, name string) url.Values {
	v := equivalentChange(f.Values(), name, f.Version)
	v[forms.EquivalentVariable] = f.Variables
	return v
}

// equivalentFields returns the fields of a tool's form.
func (f *ToolForm) equivalentFields(h DeviceHead) url.Values {
	v := forms.EquivalentFields(f.Fields)
	for name, values := range forms.Values(f.Fields) {
		v[name] = values
	}
	v.Set(forms.EquivalentOf, string(h.ID))
	v.Set(forms.EquivalentTool, f.Tool.Name)
	if f.takesPicture() {
		v.Set("picture", "")
	}
	if f.Offline {
		v.Set("offline", "wait")
	}
	return v
}
