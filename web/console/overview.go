package console

import (
	"context"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// Time spans and limits of the overview.
const (
	overviewSpan = 24 * time.Hour
	overviewStep = 30 * time.Minute
	overviewRows = 5

	briefAdoptionPoints = 21 // of the chart of adoption, which has to be small
)

func (s *Server) showOverview(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.Overview{Step: overviewStep, To: s.Now(), From: s.Now().Add(-overviewSpan), Setup: s.devices.Setup(ctx)}
	page.Alerts = s.record.AlertsNow(ctx)
	// Each part counts the whole fleet separately, so the total time is that of the slowest part.
	parts, partsCtx := errgroup.WithContext(ctx)
	parts.Go(func() (err error) {
		page.Now, page.Needs, err = s.fleetNow(partsCtx)
		return err
	})
	parts.Go(func() error { return s.fleetHistory(partsCtx, &page) })
	parts.Go(func() (err error) {
		page.Versions, err = s.versionCounts(partsCtx)
		return err
	})
	parts.Go(func() (err error) {
		page.Adoption, err = s.record.AdoptionChart(partsCtx, "", briefAdoptionPoints)
		return err
	})
	parts.Go(func() (err error) {
		page.UnderWay, err = s.underWay(partsCtx)
		return err
	})
	if err := parts.Wait(); err != nil {
		return pages.Answer{}, err
	}
	page.Fleet = page.Now.Joined() + page.Now.Pending
	var err error
	if page.First, err = s.devices.FirstBoard(ctx, page.Fleet, &page.Setup); err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

// fleetNow returns the live part of the overview.
func (s *Server) fleetNow(ctx context.Context) (now ui.PresenceNow, needs ui.Attention, err error) {
	counts, err := s.Devices.CountPresence(ctx)
	if err != nil {
		return now, needs, err
	}
	now = ui.NewPresenceNow(counts, "")
	waiting, err := s.Enrolments.WaitingInScope(ctx)
	if err != nil {
		return now, needs, err
	}
	for _, w := range waiting {
		if s.EnrolmentMode == fleet.EnrolByCode && !w.Again {
			needs.Claims++
		} else {
			needs.Approvals++
		}
	}
	needs.Calls = s.Approvals.WaitingFor(ctx, pages.ViewerOf(ctx).Actor())
	held, err := fleet.ParseQuery("hold")
	if err == nil {
		needs.Holds, err = s.Devices.CountDevices(ctx, held)
	}
	if err == nil {
		var q fleet.Query
		if q, err = fleet.ParseQuery("conflict"); err == nil {
			needs.Conflicts, err = s.Devices.CountDevices(ctx, q)
		}
	}
	if err == nil {
		needs.Campaigns, err = s.campaignNeeds(ctx)
	}
	return now, needs, err
}

// campaignNeeds returns the campaigns that wait for an operator, without those that an alert
// already names.
func (s *Server) campaignNeeds(ctx context.Context) (needs []ui.CampaignNeed, err error) {
	found, err := s.Campaigns.Campaigns(ctx, campaign.Filter{States: []campaign.State{campaign.Paused,
		campaign.AwaitingApproval}, Limit: 2 * overviewRows})
	alerts := s.Alerts.Current(pages.ViewerOf(ctx).Actor())
	for _, c := range found.Items {
		named := slices.ContainsFunc(alerts, func(a alert.Alert) bool {
			return a.Kind == alert.CampaignStopped && a.Subject == c.ID.String()
		})
		if n, ok := ui.NewCampaignNeed(c); ok && !named && len(needs) < overviewRows {
			needs = append(needs, n)
		}
	}
	return needs, err
}

// openCampaigns returns the open campaigns, newest first.
func (s *Server) underWay(ctx context.Context) (now ui.UnderWay, err error) {
	if now.FanOuts, err = s.runningFanOuts(ctx); err != nil {
		return now, err
	}
	now.Campaigns, err = s.openCampaigns(ctx)
	return now, err
}

func (s *Server) openCampaigns(ctx context.Context) ([]ui.CampaignRow, error) {
	open, err := s.Campaigns.OpenCampaigns(ctx)
	if err != nil {
		return nil, err
	}
	slices.Reverse(open)
	return s.releases.CampaignRows(ctx, open[:min(len(open), overviewRows)])
}

func (s *Server) fleetHistory(ctx context.Context, page *ui.Overview) error {
	since := s.Now().Add(-overviewSpan)
	samples, err := s.Samples.PresenceSamples(ctx, since)
	if err != nil {
		return err
	}
	page.Presence = samples
	first := since.Truncate(overviewStep)
	buckets, err := s.Stats.CallBuckets(ctx, "", first, overviewStep)
	if err != nil {
		return err
	}
	page.Calls = fillGaps(buckets, first, s.Now())
	return nil
}

// fillGaps adds a zero for each interval without calls. A day without a single call remains empty.
func fillGaps(buckets []call.Bucket, first, now time.Time) []call.Bucket {
	if len(buckets) == 0 {
		return nil
	}
	known := make(map[int64]call.Bucket, len(buckets))
	for _, b := range buckets {
		known[b.At.Unix()] = b
	}
	var all []call.Bucket
	for at := first; !at.After(now); at = at.Add(overviewStep) {
		b := known[at.Unix()]
		b.At = at
		all = append(all, b)
	}
	return all
}

// versionCounts counts the boards by version: a program has no firmware.
func (s *Server) versionCounts(ctx context.Context) ([]fleet.DeviceCount, error) {
	ofBoards, err := fleet.ParseQuery("-kind:" + string(fleet.DevicePlugin) + "," + string(fleet.DeviceEndpoint))
	if err != nil {
		return nil, err
	}
	counts, err := s.Devices.CountByFields(ctx, ofBoards, "version")
	if err != nil {
		return nil, err
	}
	return counts[0], nil
}

func (s *Server) runningFanOuts(ctx context.Context) ([]ui.FanOutRow, error) {
	running, err := s.FanOuts.Running(ctx)
	if err != nil {
		return nil, err
	}
	return s.calls.FanOutRows(ctx, running[:min(len(running), overviewRows)])
}
