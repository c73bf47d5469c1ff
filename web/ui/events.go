package ui

import (
	"maps"
	"net/url"
)

// The views that a live stream can follow: the view parameter of [PathEvents].
const (
	ViewOverview = "overview" // patches: presence, alerts, decisions, running campaigns and fan-outs
	ViewFanOuts  = "fanouts"  // patches: rows
	ViewDevices  = "devices"  // patches: DeviceRow; "new" when a matching device appears
	ViewDevice   = "device"   // id; patches: DeviceHead, CallRow, Snapshot
	ViewCalls    = "calls"    // as the list's filter; patches: CallRow; "new" for each new call
	ViewCall     = "call"     // id; patches: CallView
	// as the list's filter; patches: ConversationRow; "new" for each new conversation
	ViewConversations = "conversations"
	ViewConversation  = "conversation" // id; patches: ConversationView

	ViewFanOut    = "fanout"    // id; patches: FanOutProgress
	ViewApprovals = "approvals" // id of one, or none; patches: ApprovalCard, the badge; "new" for each new one
	ViewAlerts    = "alerts"    // id of one, or none; patches: AlertCard; "new" for each new one
	ViewFirmware  = "firmware"  // patches: ReleaseRow, ImageRow; "new" for each new one
	ViewRelease   = "release"   // id; patches: the head of FirmwareReleasePage
	ViewAudit     = "audit"     // as the list's filter; "new" for each new entry
	ViewPlugins   = "plugins"   // shown (repeated); patches: PluginRow; "new" for each new one
	ViewPlugin    = "plugin"    // name; patches: the parts of PluginPage
	ViewEndpoints = "endpoints" // as the list's filter; patches: EndpointRow, EndpointFilters; "new" for each new one
	ViewEndpoint  = "endpoint"  // name; patches: EndpointRow.Now
	ViewCluster   = "cluster"   // patches: ClusterNodes
	ViewFlash     = "flash"     // since, image; patches: Joining

	ViewCampaigns   = "campaigns"   // as the list's filter; patches: CampaignRow
	ViewCampaign    = "campaign"    // id; patches: the parts of CampaignBoard
	ViewDeployments = "deployments" // id, and the list's filter; patches: DeploymentRow
	ViewDeployment  = "deployment"  // id, device; patches: DeploymentView
)

// EventsURL returns the address of the stream of a view. It contains the shown page of a list, so
// the stream sends only the rows of that page.
func EventsURL(view string, params url.Values) string {
	v := url.Values{"view": {view}}
	for k, vals := range params {
		if k != "view" {
			v[k] = vals
		}
	}
	return PathEvents + "?" + v.Encode()
}

// listEvents returns the address of a list's events, or "" if its filter is invalid: there are none.
func listEvents(bad, view string, list ListURL) string {
	if bad != "" {
		return ""
	}
	return EventsURL(view, list.Values)
}

// eventsURL includes the columns, because another page may choose others meanwhile. The wall
// reloads itself from time to time, and an invalid filter has no stream.
func (v DevicesPage) eventsURL() string {
	if v.Wall || v.BadQuery != "" {
		return ""
	}
	values := maps.Clone(v.List.Values)
	if v.Columns != nil {
		values.Set("columns", v.Columns.String())
	}
	return EventsURL(ViewDevices, values)
}
