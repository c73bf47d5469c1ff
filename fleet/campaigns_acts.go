package fleet

import (
	"context"

	"github.com/google/uuid"
)

// Start starts a draft, or asks for its approval if it needs one.
func (s *Campaigns) Start(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.start", func(c *Campaign) error {
		if c.State != CampaignDraft {
			return errState(*c, "started")
		}
		c.StartedBy = &by
		return s.begin(ctx, c)
	})
}

// begin takes a campaign that somebody asked to start as far as it may go.
func (s *Campaigns) begin(ctx context.Context, c *Campaign) error {
	if err := s.startable(ctx, c); err != nil {
		return err
	}
	now := s.o.Now()
	c.Reason = ""
	switch {
	case c.Plan.ApprovalRequired && (c.Approval == nil || c.Approval.Digest != c.Digest):
		c.State = CampaignAwaitingApproval
	case c.Plan.StartAt != nil && c.Plan.StartAt.After(now):
		c.State = CampaignScheduled
	default:
		c.State, c.StartedAt = CampaignRunning, &now
	}
	return nil
}

// startable refuses what changed for the worse since the plan was made.
func (s *Campaigns) startable(ctx context.Context, c *Campaign) error {
	if end := c.Plan.EndAt; end != nil && !end.After(s.o.Now()) {
		return Errorf(ErrConflict, "end_has_passed", "the end of %s, %s, has passed: give it a later one", c.Plan.Name, end.Format("2006-01-02 15:04 MST"))
	}
	if c.Plan.Release == uuid.Nil {
		return nil // a rollback
	}
	r, err := s.o.Firmware.Release(ctx, c.Plan.Release)
	if err != nil {
		return err
	}
	if r.State != ReleaseReleased {
		return errReleaseState(r)
	}
	return nil
}

func errReleaseState(r Release) error {
	switch r.State {
	case ReleaseDraft:
		return Errorf(ErrConflict, "release_is_draft", "release %s is a draft: release it first", r.Version)
	case ReleaseRevoked:
		return Errorf(ErrConflict, "release_revoked", "release %s was revoked: %s", r.Version, r.Reason)
	}
	return Errorf(ErrConflict, "release_deprecated", "release %s is deprecated: no new campaigns start with it", r.Version)
}

// Approve gives a second person's word for the plan with this digest. A
// campaign that waits for it starts.
func (s *Campaigns) Approve(ctx context.Context, by Actor, id uuid.UUID, digest string) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.approve", func(c *Campaign) error {
		switch {
		case c.State != CampaignDraft && c.State != CampaignAwaitingApproval:
			return errState(*c, "approved")
		case by.Same(c.CreatedBy) || by.Same(c.EditedBy):
			return Errorf(ErrForbidden, "second_person_needed", "%s made this plan; somebody else has to approve it", by.Name)
		case digest != c.Digest:
			return Errorf(ErrConflict, "approval_is_stale", "the plan is not the one with digest %.12s any more: look at it again", digest)
		}
		c.Approval = &Approval{By: by, At: s.o.Now(), Digest: digest}
		if c.State == CampaignDraft {
			return nil
		}
		return s.begin(ctx, c)
	})
}

// Deny refuses to approve, with a reason.
func (s *Campaigns) Deny(ctx context.Context, by Actor, id uuid.UUID, reason string) (Campaign, error) {
	reason, err := needReason(reason)
	if err != nil {
		return Campaign{}, err
	}
	return s.change(ctx, by, id, "campaign.deny", func(c *Campaign) error {
		if c.State != CampaignAwaitingApproval {
			return errState(*c, "denied")
		}
		c.State, c.Reason, c.Approval = CampaignDenied, reason, nil
		return nil
	})
}

func needReason(reason string) (string, error) {
	reason, err := cleanLine("reason", reason, maxReasonBytes)
	if err == nil && reason == "" {
		err = &Error{Kind: ErrInvalid, Code: "invalid_reason", Field: "reason", Message: "say why"}
	}
	return reason, err
}

// Discard ends a campaign that was not started.
func (s *Campaigns) Discard(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.discard", func(c *Campaign) error {
		switch c.State {
		case CampaignDraft, CampaignAwaitingApproval, CampaignDenied:
			now := s.o.Now()
			c.State, c.FinishedAt = CampaignDiscarded, &now
			return nil
		}
		return errState(*c, "discarded")
	})
}

// Pause stops dispatching; what is in flight goes on.
func (s *Campaigns) Pause(ctx context.Context, by Actor, id uuid.UUID, reason string) (Campaign, error) {
	reason, err := cleanLine("reason", reason, maxReasonBytes)
	if err != nil {
		return Campaign{}, err
	}
	return s.change(ctx, by, id, "campaign.pause", func(c *Campaign) error {
		// A campaign that waits for its window would go on by itself.
		if c.State != CampaignRunning && (c.State != CampaignPaused || c.PauseReason != PausedByWindow) {
			return errState(*c, "paused")
		}
		c.State, c.PauseReason, c.Reason = CampaignPaused, PausedByOperator, reason
		return nil
	})
}

// Resume goes on with a paused campaign, in spite of the failures so far. One
// that waits at a gate is advanced instead.
func (s *Campaigns) Resume(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	progress, err := s.CampaignProgress(ctx, id)
	if err != nil {
		return Campaign{}, err
	}
	return s.change(ctx, by, id, "campaign.resume", func(c *Campaign) error {
		switch {
		case c.State != CampaignPaused:
			return errState(*c, "resumed")
		case c.PauseReason == PausedByGate:
			return Errorf(ErrConflict, "at_a_gate", "%s waits at a gate: look at its wave, then advance it", c.Plan.Name)
		}
		if err := s.startable(ctx, c); err != nil && !isDeprecated(err) {
			return err
		}
		c.State, c.PauseReason, c.Reason, c.Overruled = CampaignRunning, "", "", progress.Failed()
		return nil
	})
}

// isDeprecated: a campaign that runs goes on with a release that was deprecated.
func isDeprecated(err error) bool {
	e, ok := err.(*Error)
	return ok && e.Code == "release_deprecated"
}

// Advance opens the next wave: past a gate, or without waiting for the rest of
// the open wave.
func (s *Campaigns) Advance(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.advance", func(c *Campaign) error {
		atGate := c.State == CampaignPaused && c.PauseReason == PausedByGate
		switch {
		case c.State != CampaignRunning && !atGate:
			return errState(*c, "advanced")
		case c.Wave >= len(c.Plan.Waves)-1:
			return Errorf(ErrConflict, "last_wave", "the last wave of %s is open already", c.Plan.Name)
		}
		c.Advance = true
		c.State, c.PauseReason, c.Reason = CampaignRunning, "", ""
		return nil
	})
}

// Abort ends a campaign: links of attempts under way are revoked; devices that
// have downloaded run to their natural end. rollback then takes the devices
// that were updated back.
func (s *Campaigns) Abort(ctx context.Context, by Actor, id uuid.UUID, rollback bool) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.abort", func(c *Campaign) error {
		switch c.State {
		case CampaignScheduled, CampaignRunning, CampaignPaused:
			c.State, c.PauseReason, c.Reason = CampaignStopping, "", "aborted by "+by.Name
			c.RollbackWanted = rollback
			return nil
		case CampaignDraft, CampaignAwaitingApproval, CampaignDenied:
			return Errorf(ErrConflict, "not_started", "%s was not started; discard it", c.Plan.Name)
		}
		return errState(*c, "aborted")
	})
}

// Retry queues devices again that failed; no states means all failures, no
// devices means all of them. It returns how many.
func (s *Campaigns) Retry(ctx context.Context, by Actor, id uuid.UUID, states []DeploymentState, devices []DeviceID) (Campaign, int, error) {
	states, err := retryStates(states)
	if err != nil {
		return Campaign{}, 0, err
	}
	if err := by.May(RoleOperator, "retrying devices"); err != nil {
		return Campaign{}, 0, err
	}
	c, err := s.Campaign(ctx, id)
	if err != nil {
		return Campaign{}, 0, err
	}
	if err := s.retriable(ctx, &c); err != nil {
		return Campaign{}, 0, err
	}
	n, err := s.o.Requeue(ctx, by, id, states, devices, s.o.Now())
	if err != nil {
		return Campaign{}, 0, err
	}
	if n == 0 {
		return Campaign{}, 0, Errorf(ErrConflict, "nothing_to_retry", "no device of %s is to be retried", c.Plan.Name)
	}
	c, err = s.change(ctx, by, id, "campaign.reopen", func(c *Campaign) error { s.reopen(c); return nil })
	return c, n, err
}

// retryStates are the outcomes that a retry may be asked for.
func retryStates(states []DeploymentState) ([]DeploymentState, error) {
	if len(states) == 0 {
		for _, st := range DeploymentStates {
			if st.Failed() {
				states = append(states, st)
			}
		}
		return states, nil
	}
	for _, st := range states {
		if !st.Failed() && st != DeploymentAborted && st != DeploymentCanceled && st != DeploymentSkipped {
			return nil, &Error{Kind: ErrInvalid, Code: "invalid_state", Field: "states", Message: "devices that are " + string(st) + " cannot be retried"}
		}
	}
	return states, nil
}

func (s *Campaigns) retriable(ctx context.Context, c *Campaign) error {
	switch c.State {
	case CampaignRunning, CampaignPaused, CampaignCompletedWithErrors, CampaignCompleted:
	default:
		return errState(*c, "retried")
	}
	if err := s.startable(ctx, c); err != nil && !isDeprecated(err) {
		return err
	}
	return nil
}

// reopen lets a campaign that was done go on with what is to be retried.
func (s *Campaigns) reopen(c *Campaign) {
	if !c.State.Final() {
		return
	}
	now := s.o.Now()
	if end, ok := c.Ends(); ok && !end.After(now) {
		later := now.Add(planLife)
		c.Plan.EndAt = &later
	}
	c.State, c.PauseReason, c.Reason, c.FinishedAt = CampaignRunning, "", "", nil
}

// PullNow reboots the online devices that wait for a boot poll.
func (s *Campaigns) PullNow(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.pull_now", func(c *Campaign) error {
		switch {
		case c.State != CampaignRunning:
			return errState(*c, "hurried")
		case c.Plan.Mode == ModePush:
			return Errorf(ErrConflict, "push_only", "%s pushes; no device waits for a boot poll", c.Plan.Name)
		}
		c.Plan.PullNow = true
		return nil
	})
}
