package releases

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// A campaignDo is one act of an operator on a campaign. It returns the campaign to show next.
type campaignDo func(ctx context.Context, by fleet.Principal, c campaign.Campaign, form func(string) string) (
	campaign.Campaign, error)

// campaignActs returns the acts by the last part of their address.
func (s *Server) campaignActs() map[string]campaignDo {
	return map[string]campaignDo{
		"start":    s.simple(func(f *campaign.Service) simpleAct { return f.Start }),
		"discard":  s.simple(func(f *campaign.Service) simpleAct { return f.Discard }),
		"resume":   s.simple(func(f *campaign.Service) simpleAct { return f.Resume }),
		"advance":  s.simple(func(f *campaign.Service) simpleAct { return f.Advance }),
		"pull-now": s.simple(func(f *campaign.Service) simpleAct { return f.PullNow }),
		"pause": func(ctx context.Context, by fleet.Principal, c campaign.Campaign, form func(string) string) (campaign.Campaign,
			error) {
			return s.Campaigns.Pause(ctx, by, c.ID, form("reason"))
		},
		"approve": func(ctx context.Context, by fleet.Principal, c campaign.Campaign, form func(string) string) (
			campaign.Campaign, error) {
			return s.Campaigns.Approve(ctx, by, c.ID, form("digest"))
		},
		"deny": func(ctx context.Context, by fleet.Principal, c campaign.Campaign, form func(string) string) (campaign.Campaign,
			error) {
			return s.Campaigns.Deny(ctx, by, c.ID, form("reason"))
		},
		"retry": func(ctx context.Context, by fleet.Principal, c campaign.Campaign, _ func(string) string) (campaign.Campaign,
			error) {
			c, _, err := s.Campaigns.Retry(ctx, by, c.ID, nil, nil)
			return c, err
		},
		"abort":    s.abortCampaign,
		"rollback": s.rollBackCampaign,
	}
}

type simpleAct func(ctx context.Context, by fleet.Principal, id uuid.UUID) (campaign.Campaign, error)

// simple returns an act without parameters. It looks up the service when the act runs, because the
// table of routes is also built without services.
func (s *Server) simple(act func(*campaign.Service) simpleAct) campaignDo {
	return func(ctx context.Context, by fleet.Principal, c campaign.Campaign, _ func(string) string) (campaign.Campaign,
		error) {
		return act(s.Campaigns)(ctx, by, c.ID)
	}
}

// typedCount compares the typed number with the number of devices in the campaign, for dangerous
// acts.
func typedCount(c campaign.Campaign, form func(string) string) error {
	if typed := strings.ReplaceAll(strings.TrimSpace(form("confirm")), ",", ""); typed != strconv.Itoa(c.Targets) {
		return pages.ErrNotConfirmed
	}
	return nil
}

func (s *Server) abortCampaign(ctx context.Context, by fleet.Principal, c campaign.Campaign, form func(string) string) (
	campaign.Campaign, error) {
	if err := typedCount(c, form); err != nil {
		return c, err
	}
	return s.Campaigns.Abort(ctx, by, c.ID, form("rollback") != "")
}

func (s *Server) rollBackCampaign(ctx context.Context, by fleet.Principal, c campaign.Campaign,
	form func(string) string) (
	campaign.Campaign, error) {
	if err := typedCount(c, form); err != nil {
		return c, err
	}
	return s.Campaigns.Rollback(ctx, by, c.ID)
}

// campaignAct runs an act and redirects to the campaign's board, which shows the outcome.
func (s *Server) campaignAct(name string, do campaignDo) pages.Handler {
	return func(r *http.Request) (pages.Answer, error) {
		id, err := campaignID(r)
		if err != nil {
			return pages.Answer{}, err
		}
		if err := r.ParseForm(); err != nil {
			return pages.Answer{}, pages.FormError(err)
		}
		ctx := r.Context()
		c, err := s.Campaigns.Campaign(ctx, id)
		if err != nil {
			return pages.Answer{}, err
		}
		after, err := do(ctx, pages.ViewerOf(ctx).Actor(), c, r.PostForm.Get)
		if err == nil {
			s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, flashKey(name, after))})
			return pages.GoTo(ui.CampaignPath(after.ID.String()))
		}
		return s.actFailed(ctx, err, ui.CampaignPath(id.String()))
	}
}

// flashKey returns the message of an act. A start has three messages.
func flashKey(act string, after campaign.Campaign) string {
	if act == "start" {
		return "campaign.flash.start." + string(after.State)
	}
	return "campaign.flash." + act
}

// actFailed shows why an act was refused, on the page with the button. The campaign may have
// changed state before the button was pressed.
func (s *Server) actFailed(ctx context.Context, err error, location string) (pages.Answer, error) {
	for _, kind := range []error{fleet.ErrConflict, fleet.ErrInvalid, fleet.ErrForbidden} {
		if errors.Is(err, kind) && !errors.Is(err, pages.ErrNotConfirmed) {
			s.Flash(ctx, ui.Flash{Bad: true, Text: pages.Explain(ctx, err)})
			return pages.GoTo(location)
		}
	}
	return pages.Answer{}, err
}

func (s *Server) retryDeployment(r *http.Request) (pages.Answer, error) {
	id, err := campaignID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	device, err := pages.DeviceID(r)
	if err != nil {
		return pages.Answer{}, err
	}
	ctx := r.Context()
	if _, err := s.Campaigns.Deployment(ctx, id, device); err != nil {
		return pages.Answer{}, err
	}
	back := ui.CampaignPath(id.String(), "devices", string(device))
	if _, _, err := s.Campaigns.Retry(ctx, pages.ViewerOf(ctx).Actor(), id, nil, []fleet.DeviceID{device}); err != nil {
		return s.actFailed(ctx, err, back)
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "campaign.flash.retry_one")})
	return pages.GoTo(back)
}
