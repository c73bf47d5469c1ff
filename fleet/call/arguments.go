package call

import (
	"context"
	"encoding/json"
	"strings"

	"fleetd/fleet"
)

// noURL leads nowhere. It is in the place of the address that fleetd makes for a call
// while the gate judges the arguments.
const noURL = "http://fleetd.invalid/"

// hasURL reports whether fleetd fills in an address: a one-time link, or that of the
// order of an upgrade.
func (r *Request) hasURL() bool { return r.Firmware != nil || fleet.OwnsURL(r.Tool) }

// fillArguments returns the arguments of a call that has an address of fleetd's, as they
// go to the device and as the record shows them: the token in the address is a secret
// while the call runs.
func (a *attempt) fillArguments(ctx context.Context, r Request) (wire, shown json.RawMessage, no *refusal) {
	var url string
	var err error
	switch urls, ttl := a.calls.o.URLs, a.call.Timeout+queueTimeout; {
	case r.Firmware != nil:
		url = r.Firmware.URL
	case fleet.ShowsPicture(r.Tool):
		url, err = urls.PreviewURL(ctx, r.Device, a.call.ID, r.Picture, ttl)
	case fleet.LinkOf(r.Tool) == fleet.LinkCoreDump:
		url, err = urls.CoreDumpURL(ctx, r.Device, a.call.ID, ttl)
	default:
		url, err = urls.UploadURL(ctx, r.Device, a.call.ID, ttl)
	}
	if err != nil {
		a.calls.o.Log.Error("no one-time link", "device", r.Device, "tool", r.Tool, "err", err)
		return a.wire, a.call.Arguments, refuse(fleet.NewCallError("link_failed"))
	}
	tool, _ := a.target.Inventory.Tool(r.Tool)
	wire, _ = r.argumentsWith(url, tool) // as the gate let them pass
	shown, _ = r.argumentsWith(redactToken(url), tool)
	return wire, shown, nil
}

// argumentsWith returns the arguments of such a call with this address.
func (r *Request) argumentsWith(url string, tool fleet.Tool) (json.RawMessage, *refusal) {
	if r.Firmware != nil {
		return r.Firmware.arguments(tool.InputSchema, url), nil
	}
	given, err := decodeObject(r.Arguments)
	if err != nil {
		return nil, invalid(notAnObject(err))
	}
	if _, set := given["url"]; set {
		return nil, invalid(fleet.NewCallError("url_is_ours"))
	}
	given["url"] = url
	filled, _ := json.Marshal(given) // it was JSON
	return filled, nil
}

// recorded are arguments as a record has them.
func recorded(arguments json.RawMessage) json.RawMessage {
	if len(arguments) == 0 {
		return json.RawMessage("{}")
	}
	return arguments
}

// redactToken shortens the token of ".../u/TOKEN" or ".../d/TOKEN/name".
func redactToken(url string) string {
	for _, marker := range []string{"/u/", "/d/"} {
		if i := strings.Index(url, marker); i >= 0 {
			_, name, _ := strings.Cut(url[i+len(marker):], "/")
			return strings.TrimSuffix(url[:i+len(marker)]+"…/"+name, "/")
		}
	}
	return url
}
