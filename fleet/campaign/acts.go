package campaign

import (
	"cmp"
	"context"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// Start starts a draft, or requests its approval if it needs one.
func (s *Service) Start(ctx context.Context, by fleet.Principal, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.start", func(c *Campaign) error {
		if c.State != Draft {
			return errState(*c, "started")
		}
		return s.start(ctx, by, c)
	})
}

// start records the principal as the one that requested the start.
func (s *Service) start(ctx context.Context, by fleet.Principal, c *Campaign) error {
	c.StartedBy = &by
	if err := s.takeOver(ctx, by, c); err != nil {
		return err
	}
	return s.begin(ctx, c)
}

// begin moves a campaign whose start was requested as far as it may go.
func (s *Service) begin(ctx context.Context, c *Campaign) error {
	if err := s.startable(ctx, c); err != nil {
		return err
	}
	now := s.o.Now()
	c.Reason = fleet.Reason{}
	switch {
	case c.needsApproval() && (c.Approval == nil || c.Approval.Digest != c.Digest):
		c.State = AwaitingApproval
	case c.Plan.StartAt != nil && c.Plan.StartAt.After(now):
		c.State = Scheduled
	default:
		c.State, c.StartedAt = Running, &now
	}
	return nil
}

// needsApproval reports whether a person must approve the campaign. A campaign that a language
// model starts always needs approval, whatever the plan says.
func (c *Campaign) needsApproval() bool {
	return c.Plan.ApprovalRequired || c.StartedBy != nil && c.StartedBy.Kind.IsModel()
}

// startable returns an error if something that the plan depends on has become invalid since the
// plan was made.
func (s *Service) startable(ctx context.Context, c *Campaign) error {
	if end := c.Plan.EndAt; end != nil && !end.After(s.o.Now()) {
		return fleet.Refuse(fleet.ErrConflict, "end_has_passed", "name", c.Plan.Name, "end_at", end)
	}
	if err := s.unchanged(ctx, c); err != nil {
		return err
	}
	if c.Plan.Release == uuid.Nil {
		return nil // a rollback
	}
	r, err := s.o.Firmware.Release(ctx, c.Plan.Release)
	if err != nil {
		return err
	}
	if r.State != firmware.ReleaseReleased {
		return errReleaseState(r)
	}
	return nil
}

func errReleaseState(r firmware.Release) error {
	switch r.State {
	case firmware.ReleaseDraft:
		return fleet.Refuse(fleet.ErrConflict, "release_is_draft", "version", r.Version)
	case firmware.ReleaseRevoked:
		return fleet.Refuse(fleet.ErrConflict, "release_revoked", "version", r.Version, "reason", r.Reason)
	}
	return fleet.Refuse(fleet.ErrConflict, "release_deprecated", "version", r.Version)
}

// Approve records a second person's approval of the plan with this digest. A campaign that
// awaits it starts. The approver must be neither the principal that made or changed the plan,
// nor a model that requested its start, nor one of their tokens, nor the maker of such a token.
func (s *Service) Approve(ctx context.Context, by fleet.Principal, id uuid.UUID, digest string) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.approve", func(c *Campaign) error {
		switch {
		case c.State != Draft && c.State != AwaitingApproval:
			return errState(*c, "approved")
		case by.Kind.IsModel():
			return fleet.Refuse(fleet.ErrForbidden, "person_needed", "actor", by.Name)
		}
		asked := []fleet.Principal{c.CreatedBy, c.EditedBy}
		if c.StartedBy != nil && c.StartedBy.Kind.IsModel() {
			asked = append(asked, *c.StartedBy)
		}
		for _, who := range asked {
			if linked, err := s.o.Linked(ctx, by, who); err != nil || linked {
				return cmp.Or(err, error(fleet.Refuse(fleet.ErrForbidden, "second_person_needed", "actor", by.Name)))
			}
		}
		if digest != c.Digest {
			return fleet.Refuse(fleet.ErrConflict, "approval_is_stale", "digest", fleet.CleanText(digest, 12))
		}
		c.Approval = &Approval{By: by, At: s.o.Now(), Digest: digest, Rollback: c.Plan.rollsBack()}
		if c.State == Draft {
			return nil
		}
		return s.begin(ctx, c)
	})
}

// Deny refuses to approve, with a reason.
func (s *Service) Deny(ctx context.Context, by fleet.Principal, id uuid.UUID, reason string) (Campaign, error) {
	reason, err := needReason(reason)
	if err != nil {
		return Campaign{}, err
	}
	return s.change(ctx, by, id, "campaign.deny", func(c *Campaign) error {
		if c.State != AwaitingApproval {
			return errState(*c, "denied")
		}
		c.State, c.Reason, c.Approval = Denied, byOperator(by, reason), nil
		return nil
	})
}

// byOperator returns the operator's text as a reason, or the zero Reason without a text.
func byOperator(by fleet.Principal, text string) fleet.Reason {
	if text == "" {
		return fleet.Reason{}
	}
	return fleet.Because(ReasonByOperator, "name", by.Name, "detail", text)
}

func needReason(reason string) (string, error) {
	reason, err := fleet.CleanLine("reason", reason, fleet.MaxReasonLength)
	if err == nil && reason == "" {
		err = fleet.Refuse(fleet.ErrInvalid, "invalid_reason.missing").At("reason")
	}
	return reason, err
}

// Discard ends a campaign that has not started.
func (s *Service) Discard(ctx context.Context, by fleet.Principal, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.discard", s.discard)
}

func (s *Service) discard(c *Campaign) error {
	switch c.State {
	case Draft, AwaitingApproval, Denied:
		now := s.o.Now()
		c.State, c.FinishedAt = Discarded, &now
		return nil
	}
	return errState(*c, "discarded")
}

// Pause stops dispatching; deployments in flight continue.
func (s *Service) Pause(ctx context.Context, by fleet.Principal, id uuid.UUID, reason string) (Campaign, error) {
	reason, err := fleet.CleanLine("reason", reason, fleet.MaxReasonLength)
	if err != nil {
		return Campaign{}, err
	}
	return s.change(ctx, by, id, "campaign.pause", func(c *Campaign) error {
		// Otherwise a campaign that waits for its window would continue when it opens.
		if c.State != Running && (c.State != Paused || c.PauseReason != PausedByWindow) {
			return errState(*c, "paused")
		}
		c.State, c.PauseReason, c.Reason = Paused, PausedByOperator, byOperator(by, reason)
		return nil
	})
}

// Resume continues a paused campaign despite the failures so far. One that waits at a gate is advanced
// instead. If the maker or starter is gone, it continues in the name of the principal that resumes it.
func (s *Service) Resume(ctx context.Context, by fleet.Principal, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.resume", func(c *Campaign) error {
		switch {
		case c.State != Paused:
			return errState(*c, "resumed")
		case c.PauseReason == PausedByGate:
			return fleet.Refuse(fleet.ErrConflict, "at_a_gate", "name", c.Plan.Name)
		}
		if err := s.startable(ctx, c); err != nil && !isDeprecated(err) {
			return err
		}
		if err := s.takeOver(ctx, by, c); err != nil {
			return err
		}
		now := s.o.Now()
		c.State, c.PauseReason, c.Reason, c.OverruledAt = Running, "", fleet.Reason{}, &now
		return nil
	})
}

// isDeprecated reports whether the error is about a deprecated release: a running campaign
// continues with it.
func isDeprecated(err error) bool {
	e, ok := err.(*fleet.Error)
	return ok && e.Code == "release_deprecated"
}

// Advance opens the next wave: past a gate, or without waiting for the rest of
// the open wave.
func (s *Service) Advance(ctx context.Context, by fleet.Principal, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.advance", func(c *Campaign) error {
		atGate := c.State == Paused && c.PauseReason == PausedByGate
		switch {
		case c.State != Running && !atGate:
			return errState(*c, "advanced")
		case c.Wave >= len(c.Plan.Waves)-1:
			return fleet.Refuse(fleet.ErrConflict, "last_wave", "name", c.Plan.Name)
		}
		c.Advance = true
		c.State, c.PauseReason, c.Reason = Running, "", fleet.Reason{}
		return nil
	})
}

// Abort ends a campaign. Links of current attempts are revoked; devices that have downloaded
// the image continue to their outcome. With rollback, the updated devices then return to their
// former release, as by [Service.Rollback], in the name of the principal.
func (s *Service) Abort(ctx context.Context, by fleet.Principal, id uuid.UUID, rollback bool) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.abort", func(c *Campaign) error {
		switch c.State {
		case Scheduled, Running, Paused:
			c.State, c.PauseReason = Stopping, ""
			c.Reason = fleet.Because(ReasonAbortedBy, "name", by.Name)
			c.RollbackWanted, c.RollbackReason = rollback, fleet.Reason{}
			if c.RollbackBy = nil; rollback {
				c.RollbackBy = &by
			}
			return nil
		case Draft, AwaitingApproval, Denied:
			return fleet.Refuse(fleet.ErrConflict, "not_started.discard", "name", c.Plan.Name)
		}
		return errState(*c, "aborted")
	})
}

// Retry queues failed devices again and returns how many. Without states it covers all
// failures, without devices all devices.
func (s *Service) Retry(ctx context.Context, by fleet.Principal, id uuid.UUID, states []DeploymentState,
	devices []fleet.DeviceID) (Campaign, int, error) {
	states, err := retryStates(states)
	if err != nil {
		return Campaign{}, 0, err
	}
	ctx = fleet.WithScope(ctx, by)
	if err := s.maySteer(ctx, by, id, "retry_devices"); err != nil {
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
		return Campaign{}, 0, fleet.Refuse(fleet.ErrConflict, "nothing_to_retry", "name", c.Plan.Name)
	}
	c, err = s.change(ctx, by, id, "campaign.reopen", func(c *Campaign) error { s.reopen(c); return nil })
	return c, n, err
}

// retryStates returns the outcomes that a retry covers.
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
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_state.retry",
				"state", fleet.Because("state."+string(st))).At("states")
		}
	}
	return states, nil
}

func (s *Service) retriable(ctx context.Context, c *Campaign) error {
	switch c.State {
	case Running, Paused, CompletedWithErrors, Completed:
	default:
		return errState(*c, "retried")
	}
	if err := s.startable(ctx, c); err != nil && !isDeprecated(err) {
		return err
	}
	return nil
}

// reopen makes a finished campaign run again for the devices to retry.
func (s *Service) reopen(c *Campaign) {
	if !c.State.Final() {
		return
	}
	now := s.o.Now()
	if end, ok := c.Ends(); ok && !end.After(now) {
		later := now.Add(planLife)
		c.keepPlanned()
		c.Plan.EndAt = &later
	}
	c.State, c.PauseReason, c.Reason, c.FinishedAt = Running, "", fleet.Reason{}, nil
}

// PullNow reboots the online devices whose deployment waits for a boot poll.
func (s *Service) PullNow(ctx context.Context, by fleet.Principal, id uuid.UUID) (Campaign, error) {
	return s.change(ctx, by, id, "campaign.pull_now", func(c *Campaign) error {
		switch {
		case c.State != Running:
			return errState(*c, "hurried")
		case c.Plan.Mode == firmware.ModePush:
			return fleet.Refuse(fleet.ErrConflict, "push_only", "name", c.Plan.Name)
		}
		c.keepPlanned()
		c.Plan.PullNow = true
		return nil
	})
}
