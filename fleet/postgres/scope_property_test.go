package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/postgres"
)

// errSeen ends an act once the test has seen which devices it would reach.
var errSeen = fmt.Errorf("the test has seen it: %w", fleet.ErrNotStored)

// A witness is a store that keeps no campaign and no fan-out, and remembers which devices one
// would reach.
type witness struct {
	*postgres.Store
	devices []fleet.DeviceID // that get an image or a call
	named   []fleet.DeviceID // that are on record as left out
}

func (w *witness) CreateCampaign(_ context.Context, _ fleet.Principal, _ *campaign.Campaign, _ []campaign.Wave,
	targets []campaign.Deployment) error {
	for _, d := range targets {
		if d.State == campaign.DeploymentSkipped {
			w.named = append(w.named, d.Device)
		} else {
			w.devices = append(w.devices, d.Device)
		}
	}
	return errSeen
}

func (w *witness) CreateFanOut(_ context.Context, _ *call.FanOut, targets []call.FanOutTarget) error {
	for _, t := range targets {
		if t.Reason == "" {
			w.devices = append(w.devices, t.Device)
		} else {
			w.named = append(w.named, t.Device)
		}
	}
	return errSeen
}

type noneConnected struct{}

func (noneConnected) IsConnected(fleet.DeviceID) bool { return false }

// Whatever the query, nothing that a principal requests reaches a device outside of its scope: no
// campaign when it is planned, no continuous campaign when it looks for more devices, and no
// fan-out.
func TestNoQueryLeavesTheMakersFilter(t *testing.T) {
	s := newStore(t)
	devices := scopedStock(t, s)
	release := addRelease(t, s, addImage(t, s, "b", func(img *firmware.Image) {
		img.NotOfferable, img.MinChipRev, img.SecureVersion, img.MergedBinary, img.FlashSize = "", 0, 0, false, 0
	}))
	w := &witness{Store: s}
	campaigns := campaign.New(campaign.Options{Store: w, Firmware: s, Devices: s, Inventories: s, Quarantines: s})
	calls := call.New(call.Options{Store: s, Targets: fleet.NewTargets(s, s), Link: &fleettest.Link{}})
	fanOuts := call.NewFanOuts(call.FanOutsOptions{Store: w, Devices: s, Calls: calls, Presence: noneConnected{},
		Events: new(fleet.Events)})
	end := time.Now().Add(time.Hour)
	reached := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		filter, query := fleettest.Query(rt, "filter", true), fleettest.Query(rt, "query", false).Text
		rest := rapid.SampledFrom([]fleet.Role{"", fleet.RoleViewer}).Draw(rt, "rest")
		scope, err := fleet.NewScope(filter.Text, rest, nil)
		if err != nil {
			rt.Fatal(err)
		}
		by := fleet.Principal{Kind: fleet.KindProgram, ID: "1", Name: "maker", Role: fleet.RoleOperator, Scope: scope}
		within := func(what string, ids []fleet.DeviceID, hidden []fleet.DeviceID) {
			for _, id := range ids {
				if !filter.Covers(devices[id]) {
					rt.Errorf("%s %q of who has %q, else %q, reaches %s", what, query, filter.Text, rest, id)
				}
			}
			for _, id := range hidden {
				if rest == "" && !filter.Covers(devices[id]) {
					rt.Errorf("%s %q of who has %q shows %s", what, query, filter.Text, id)
				}
			}
			reached[what] += len(ids)
		}
		refused := func(what string, err error) {
			if _, ok := errors.AsType[*fleet.Error](err); !ok && !errors.Is(err, errSeen) {
				rt.Errorf("%s %q of who has %q: %v", what, query, filter.Text, err)
			}
		}
		for _, continuous := range []bool{false, true} {
			p := campaign.Plan{Name: "p", Release: release.ID, Query: query}
			what := "campaign"
			if continuous {
				p.Continuous, p.MaxDevices, p.EndAt, what = true, 1000, &end, "continuous campaign"
			}
			w.devices, w.named = nil, nil
			_, err := campaigns.Create(context.Background(), by, p)
			refused(what, err)
			within(what, w.devices, w.named)
		}
		c := campaign.Campaign{Plan: campaign.Plan{Query: query, Within: by.Within(fleet.RoleOperator).Text}, EditedBy: by}
		audience, err := c.Plan.Audience()
		if err != nil {
			rt.Fatal(err)
		}
		rights, _, err := c.Rights(context.Background(), campaign.KeptRights(nil))
		if err != nil {
			rt.Fatal(err)
		}
		ids, err := s.DeviceIDs(context.Background(), rights.Narrowed(audience))
		if err != nil {
			rt.Fatal(err)
		}
		within("growth", ids, nil)
		w.devices, w.named = nil, nil
		_, err = fanOuts.Create(context.Background(), call.FanOutRequest{Actor: by, Query: query, Tool: "self.x"})
		refused("fan-out", err)
		within("fan-out", w.devices, w.named)
	})
	for _, what := range []string{"campaign", "continuous campaign", "growth", "fan-out"} {
		if reached[what] < 20 {
			t.Errorf("%s reached only %d devices in all: the test says little", what, reached[what])
		}
	}
}

// scopedStock makes devices that fit the release and offer the tool, and differ in everything
// that scopes can ask for.
func scopedStock(t *testing.T, s *postgres.Store) map[fleet.DeviceID]fleet.Device {
	t.Helper()
	ctx := t.Context()
	var ids []fleet.DeviceID
	words := fleettest.QueryWords
	for i := range 30 {
		id := fleet.DeviceID(fmt.Sprintf("device%03d", i))
		p := poll(id, now())
		p.Poll.Board = words[i%4]
		p.Poll.Layout = &fleet.FlashLayout{SlotSize: 4 << 20, Labels: []string{"ota_0", "ota_1", "assets"},
			FlashBytes: 16 << 20}
		check(t, s.SavePolls(ctx, []enrolment.PollRecord{p}))
		patch := fleet.DevicePatch{Name: &words[i%len(words)]}
		if i%4 != 0 {
			patch.Tags = &[]string{words[i%3], words[8]}
		}
		check(t, s.UpdateDevice(ctx, admin, id, patch))
		check(t, s.SaveListing(ctx, listing(id, "inv", "self.x")))
		ids = append(ids, id)
	}
	all, err := s.DevicesByID(ctx, ids)
	check(t, err)
	devices := make(map[fleet.DeviceID]fleet.Device)
	for _, d := range all {
		devices[d.ID] = d
	}
	return devices
}
