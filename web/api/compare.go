package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/compare"
	"fleetd/web/access"
)

func (a *api) registerCompare() {
	const about = "Board, chip, version, transport, signal, uptime, network and place are compared, of at most 5,000 devices on each side. " +
		"A value is listed if at least 5 failed devices have it, and if it is notably more frequent among them. A difference is no cause."
	register(a, operation{id: "compare-campaign", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/campaigns/{id}/comparison", role: fleet.RoleViewer, noun: "campaign",
		summary: "Compare the devices of a campaign that failed, or are stuck, with those that were updated",
		about:   about}, compared(a.Compare.Campaign))
	register(a, operation{id: "compare-fanout", reach: access.Audience, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/fanouts/{id}/comparison", role: fleet.RoleViewer, noun: "fanout",
		summary: "Compare the devices of a fan-out on which the call failed with those on which it succeeded",
		about:   about}, compared(a.Compare.FanOut))
}

// ComparisonView is what devices that failed have in common.
type ComparisonView struct {
	Failed int              `json:"failed" doc:"Devices that were compared; more than one hour without progress counts as failed"`
	Well   int              `json:"well"`
	Items  []DifferenceView `json:"items" nullable:"false" doc:"The largest difference first, at most 8"`
}

// DifferenceView is a value that is more frequent among the devices that failed.
type DifferenceView struct {
	Fact     compare.Fact `json:"fact" enum:"board,chip,version,transport,signal,uptime,network,place" doc:"version: before the update. signal: below value dBm. uptime: the device started fewer than value seconds before. network: an address range"`
	Value    string       `json:"value"`
	Failed   int          `json:"failed" doc:"Devices that failed and have the value"`
	FailedOf int          `json:"failed_of" doc:"Devices that failed and have a value of the fact"`
	Well     int          `json:"well"`
	WellOf   int          `json:"well_of"`
}

// compared returns the operation of a comparison.
func compared(of func(context.Context, uuid.UUID) (compare.Result, error)) func(context.Context, fleet.Principal,
	*IDPath) (*answer[ComparisonView], error) {
	return func(ctx context.Context, _ fleet.Principal, in *IDPath) (*answer[ComparisonView], error) {
		r, err := of(ctx, in.uuid())
		if err != nil {
			return nil, err
		}
		return answerWith(ComparisonView{r.Failed, r.Well, viewed(r.Differences, differenceView)}), nil
	}
}

func differenceView(d compare.Difference) DifferenceView {
	return DifferenceView{d.Fact, d.Value, d.Failed, d.FailedOf, d.Well, d.WellOf}
}
