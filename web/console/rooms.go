package console

import (
	"fleetd/web/console/calls"
	"fleetd/web/console/device"
	"fleetd/web/console/devices"
	"fleetd/web/console/pages"
	"fleetd/web/console/record"
	"fleetd/web/console/releases"
	"fleetd/web/console/settings"
)

// A room has the pages of one vocabulary.
type room interface {
	Routes() []pages.Route
	Views() pages.Views
}

// rooms are the packages below this one that have pages.
type rooms struct {
	calls    *calls.Server
	device   *device.Server
	devices  *devices.Server
	record   *record.Server
	releases *releases.Server
	settings *settings.Server
}

// all returns every room.
func (r rooms) all() []room {
	return []room{r.calls, r.device, r.devices, r.record, r.releases, r.settings}
}

// newRooms returns the rooms, each with the services that it uses.
func (s *Server) newRooms() (r rooms) {
	o, p := s.Options, s.Responder
	networkOTAURL := ""
	if o.NetworkURL != "" {
		networkOTAURL = otaURL(o.NetworkURL)
	}
	r.calls = calls.New(p, calls.Options{Approvals: o.Approvals, Calls: o.Calls, Campaigns: o.Campaigns,
		Catalogue: o.Catalogue, Compare: o.Compare, Conversations: o.Conversations, Devices: o.Devices,
		FanOuts: o.FanOuts, Pictures: o.Pictures, Schedules: o.Schedules, Snapshots: o.Snapshots})
	r.device = device.New(p, r.calls, device.Options{Calls: o.Calls, Campaigns: o.Campaigns, CoreDumps: o.CoreDumps,
		Devices: o.Devices, Enrolments: o.Enrolments, Events: o.Events, Firmware: o.Firmware, History: o.History,
		Logs: o.Logs, Pictures: o.Pictures, Reports: o.Reports, Snapshots: o.Snapshots, Stats: o.Stats,
		Talking: o.Talking, ToolPins: o.ToolPins, ToolQuarantines: o.ToolQuarantines, Upstreams: o.Upstreams,
		Program: o.Program})
	r.devices = devices.New(p, r.device, devices.Options{Campaigns: o.Campaigns, Devices: o.Devices,
		Enrolments: o.Enrolments, FanOuts: o.FanOuts, Filters: o.Filters, Keys: o.Keys, Pictures: o.Pictures,
		Presences: o.Presences, Reports: o.Reports, Rules: o.Rules, Serials: o.Serials, OTAURL: o.OTAURL,
		NetworkOTAURL: networkOTAURL, MQTTEndpoint: o.MQTTEndpoint, EnrolmentMode: o.EnrolmentMode,
		MarkProofs: o.MarkProofs})
	r.record = record.New(p, record.Options{Alerts: o.Alerts, Audit: o.Audit, Changes: o.Changes, History: o.History,
		LogStreams: o.LogStreams, Publisher: o.Publisher, Record: o.Record, Redaction: o.Redaction, Trends: o.Trends,
		Webhooks: o.Webhooks})
	r.releases = releases.New(p, releases.Rooms{Calls: r.calls, Devices: r.devices, Record: r.record},
		releases.Options{Campaigns: o.Campaigns, Compare: o.Compare, Devices: o.Devices, Firmware: o.Firmware,
			Log: o.Log})
	r.settings = settings.New(p, settings.Options{Devices: o.Devices, Endpoints: o.Endpoints, Operators: o.Operators,
		Plugins: o.Plugins, Policies: o.Policies, Tester: o.Tester, Upstreams: o.Upstreams, Cluster: o.Cluster,
		InCluster: o.InCluster, CheckPassword: s.checkPassword, OpenSession: s.openSession, EndStreams: s.endStreams,
		CountDevices: r.devices.Size,
		PluginsDir:   o.PluginsDir, PublicURL: o.PublicURL, OTAURL: o.OTAURL, EnrolmentMode: o.EnrolmentMode,
		Version: o.Version, Started: p.Now(), System: o.System, Report: o.Report})
	return r
}

// endStreams ends the live streams of all sessions: permitted readers reconnect, and are checked
// again.
func (s *Server) endStreams() { s.streams.end(allSessions) }
