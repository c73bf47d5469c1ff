package ui

import (
	"context"
	"net/url"

	"fleetd/fleet"
)

// An Act is what a search can propose to do.
type Act string

// Acts.
const (
	ActReboot  Act = "reboot"
	ActVolume  Act = "volume"
	ActPicture Act = "picture"
	ActUpdate  Act = "update"
	ActTag     Act = "tag"
	ActHold    Act = "hold"
)

// actTools are the tools that acts call, and actIcons their icons.
var (
	actTools = map[Act]string{ActReboot: fleet.ToolReboot, ActVolume: fleet.ToolSetVolume, ActPicture: fleet.ToolSnapshot}
	actIcons = map[Act]string{ActReboot: "restart", ActVolume: "volume", ActPicture: "picture", ActUpdate: "update",
		ActTag: "tag", ActHold: "hold"}
)

// A FoundAct proposes an act on a device, or on all devices of a query. Its address is the page on
// which the viewer confirms it.
type FoundAct struct {
	Act     Act
	Device  fleet.DeviceID // "": all of Query
	Title   string
	Value   string // the volume or the tag; "" if the text has none
	Query   string
	Matched int // devices of Query
}

func (a FoundAct) icon() string { return actIcons[a.Act] }

func (a FoundAct) text(ctx context.Context) string {
	key := "find.act." + string(a.Act)
	if a.Act == ActVolume && a.Value != "" {
		key += "_to"
	}
	if a.Device == "" {
		return t(ctx, "find.act_all", "act", t(ctx, key, "device", mark(a.Query), "value", mark(a.Value)), "n", a.Matched)
	}
	return t(ctx, key, "device", mark(shorten(a.Title, 60)), "value", mark(a.Value))
}

func (a FoundAct) path(ctx context.Context) string {
	audience := url.Values{"q": {a.Query}}
	if a.Device != "" {
		audience = url.Values{"d": {string(a.Device)}}
	}
	switch tool := actTools[a.Act]; {
	case a.Act == ActUpdate && a.Device != "":
		return DeviceActs{Device: a.Device, Title: a.Title}.updateURL(ctx)
	case a.Act == ActUpdate:
		return PathCampaignNew + "?" + audience.Encode()
	case tool == "":
		audience.Set("act", string(a.Act))
		if a.Device == "" {
			audience.Set("all", "1")
		}
		if a.Value != "" {
			audience.Set("tags", a.Value)
		}
		return PathBulk + "?" + audience.Encode()
	case a.Device == "":
		audience.Set("tool", tool)
		if a.Value != "" {
			audience.Set("arg.volume", a.Value)
		}
		return PathFanOutNew + "?" + audience.Encode()
	case a.Value != "":
		return ToolPath(a.Device, tool) + "?" + url.Values{"arg.volume": {a.Value}}.Encode()
	default:
		return ToolPath(a.Device, tool)
	}
}
