package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/place"
	"fleetd/web/access"
)

func (a *api) registerPlaces() {
	register(a, operation{id: "list-places", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/places", role: fleet.RoleViewer, noun: "place",
		summary: "List places with figures of their devices",
		about: "A tag such as site-1/room-2 is the place room-2 within site-1; a tag without a slash is a place, too. The figures of a place include all places below it. " +
			"At most 1,000 places: of more, those of the upper levels with the most devices."}, a.listPlaces)
}

type listPlacesInput struct {
	Within string `query:"within" maxLength:"200" doc:"A place: the answer has it, as the first, and those below it. Without it, all places"`
}

// PlacesView is a list of places.
type PlacesView struct {
	Items []PlaceFiguresView `json:"items" nullable:"false" doc:"By path, each place after the one above it"`
	More  bool               `json:"more" doc:"There are more places than the answer has"`
}

// PlaceFiguresView is a place with the figures of its devices in service.
type PlaceFiguresView struct {
	Path      place.Path  `json:"path"`
	Query     string      `json:"q" doc:"Selects the devices of the place in lists"`
	Devices   int         `json:"devices"`
	Joined    int         `json:"joined" doc:"Devices that were ever online, without those that are offline because they connect only for conversations"`
	Online    int         `json:"online"`
	Crashed   int         `json:"crashed" doc:"Devices that restarted after a crash in the last day"`
	Reporting int         `json:"reporting" doc:"Devices that have reported a version"`
	Versions  int         `json:"versions" doc:"Number of versions that run"`
	Version   string      `json:"version" doc:"The most common version; empty: none is known"`
	OnVersion int         `json:"on_version" doc:"Devices that run it"`
	Alerts    []uuid.UUID `json:"alerts" nullable:"false" doc:"Alerts that have not ended and concern one of the devices; none for a token with a scope"`
	Campaigns []uuid.UUID `json:"campaigns" nullable:"false" doc:"Campaigns that are scheduled, running, paused or stopping and have one of the devices as a target"`
}

func (a *api) listPlaces(ctx context.Context, by fleet.Principal, in *listPlacesInput) (*answer[PlacesView], error) {
	find := a.Places.All
	if in.Within != "" {
		find = func(ctx context.Context, by fleet.Principal) (place.Tree, error) {
			return a.Places.Within(ctx, by, in.Within)
		}
	}
	tree, err := find(ctx, by)
	if err != nil {
		return nil, err
	}
	return answerWith(PlacesView{Items: viewed(tree.Places, placeFigures), More: tree.More}), nil
}

func placeFigures(p place.Place) PlaceFiguresView {
	return PlaceFiguresView{Path: p.Path, Query: p.Path.Query(), Devices: p.Devices, Joined: p.Joined, Online: p.Online,
		Crashed: p.Crashed, Reporting: p.Reporting, Versions: p.Versions, Version: p.Version, OnVersion: p.OnVersion,
		Alerts: append([]uuid.UUID{}, p.Alerts...), Campaigns: append([]uuid.UUID{}, p.Campaigns...)}
}
