package api

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/changes"
	"fleetd/fleet/history"
	"fleetd/web/access"
)

// registerChanges keeps models out: they may not read the audit log or the devices that differ, and the counts do not
// leave out what else a model may not read.
func (a *api) registerChanges() {
	register(a, operation{id: "get-changes", reach: access.List, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/changes", role: fleet.RoleViewer,
		summary: "Sum up what happened to the fleet lately",
		about: "Counts devices that came, went, crashed or run another version, updates, calls, alerts and acts since a moment. " +
			"by_field and versions compare two moments: what happened in between and was undone is no difference. " +
			"Which devices exist for a token depends on what they are now."}, a.getChanges)
}

type getChangesInput struct {
	Since string `query:"since" enum:"15m,1h,6h,1d" default:"1h" doc:"How long before now the time begins"`
}

// ChangesView is what happened since a moment.
type ChangesView struct {
	Span     string    `json:"span" enum:"15m,1h,6h,1d"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until" doc:"Now"`
	Compared time.Time `json:"compared_from" doc:"The moment that by_field and versions compare with until: since, or the beginning of the history if that is later"`

	ByField  map[string]int      `json:"by_field" doc:"How many devices differ by added (in service only at until), removed (only at compared_from), version, tools, board, name, tags, hold, enrolment and presence"`
	Versions []VersionChangeView `json:"versions" nullable:"false" doc:"Versions whose number of devices differs, those with the largest difference first, at most 8"`

	Offline int                 `json:"went_offline" doc:"Devices that went offline at least once"`
	Online  int                 `json:"came_online" doc:"Devices that came online at least once"`
	Away    DeviceSelectionView `json:"away" doc:"Devices that were seen in this time and are offline now, without those that connect only for conversations"`
	Crashed DeviceSelectionView `json:"crashed" doc:"Devices that restarted after a crash"`

	Rebuilt    int                   `json:"rebuilt" doc:"Devices that began to run a build"`
	Updated    int                   `json:"updated" doc:"Devices in campaigns that were updated"`
	NotUpdated int                   `json:"not_updated" doc:"Devices in campaigns whose update failed"`
	Configured ConfiguredDevicesView `json:"configured" doc:"Devices whose configuration changed"`

	Calls       int `json:"calls"`
	FailedCalls int `json:"failed_calls"`
	AlertsBegan int `json:"alerts_began" doc:"0 for a token that does not see the whole fleet"`
	AlertsEnded int `json:"alerts_ended" doc:"0 for a token that does not see the whole fleet"`

	ActsTotal int            `json:"acts_total" doc:"Entries of the audit log, of all actions"`
	Acts      []ActCountView `json:"acts" nullable:"false" doc:"The most frequent actions first, at most 8"`
}

// VersionChangeView is how many devices in service ran a version at both moments.
type VersionChangeView struct {
	Version string `json:"version"`
	Before  int    `json:"before"`
	Now     int    `json:"now"`
}

// DeviceSelectionView is a number of devices, and how to list them.
type DeviceSelectionView struct {
	Devices int    `json:"devices"`
	Query   string `json:"q" doc:"Selects the devices in lists"`
}

// ConfiguredDevicesView is the devices whose configuration changed.
type ConfiguredDevicesView struct {
	Devices []fleet.DeviceID `json:"devices" nullable:"false" doc:"By id, at most 50"`
	More    bool             `json:"more" doc:"There are more of them than the answer has"`
}

// ActCountView is how often an action was taken.
type ActCountView struct {
	Action string   `json:"action" example:"device.hold" doc:"As in the audit log"`
	Count  int      `json:"count"`
	Actors []string `json:"actors" nullable:"false" doc:"Names of principals that took it, at most 3"`
}

func (a *api) getChanges(ctx context.Context, by fleet.Principal, in *getChangesInput) (*answer[ChangesView], error) {
	sum, err := a.Changes.Since(ctx, by, in.Since)
	if err != nil {
		return nil, err
	}
	v := ChangesView{Span: sum.Span, Since: utc(sum.Since), Until: utc(sum.Now), Compared: utc(sum.Compare),
		ByField: make(map[string]int, len(history.Fields)), Versions: viewed(sum.Versions, versionChange),
		Offline: sum.Offline, Online: sum.Online,
		Away:    DeviceSelectionView{sum.Away, changes.AwayQuery(sum.Span)},
		Crashed: DeviceSelectionView{sum.Crashed, changes.CrashedQuery(sum.Span)},
		Rebuilt: sum.Rebuilt, Updated: sum.Updated, NotUpdated: sum.NotUpdated,
		Configured: ConfiguredDevicesView{append([]fleet.DeviceID{}, sum.Configured...), sum.ConfiguredMore},
		Calls:      sum.Calls, FailedCalls: sum.FailedCalls, AlertsBegan: sum.AlertsBegan, AlertsEnded: sum.AlertsEnd,
		ActsTotal: sum.ActCount, Acts: viewed(sum.Acts, actCount)}
	for _, f := range history.Fields {
		v.ByField[string(f)] = sum.Fields[f]
	}
	return answerWith(v), nil
}

func versionChange(c changes.Version) VersionChangeView { return VersionChangeView(c) }

func actCount(a changes.Act) ActCountView {
	return ActCountView{Action: a.Action, Count: a.Count, Actors: append([]string{}, a.Names...)}
}
