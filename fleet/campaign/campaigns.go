package campaign

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// Options configures [Service]. Store, Firmware, Devices, Inventories and Quarantines are required.
type Options struct {
	Store       Store
	Firmware    firmware.Store
	Devices     fleet.DeviceStore
	Inventories fleet.InventoryStore
	Quarantines QuarantineStore
	// Requeue queues ended deployments again; see [RolloutStore].
	Requeue func(ctx context.Context, by fleet.Principal, campaign uuid.UUID, states []DeploymentState,
		devices []fleet.DeviceID, at time.Time) (int, error)
	// RolledBack is the function of the same name in [firmware.Options]. May be nil.
	RolledBack func(ctx context.Context, devices []fleet.DeviceID, builds []string) (map[fleet.DeviceID][]string, error)
	// Limits returns the images that may not be used now, with reasons. nil: all may.
	Limits func(ctx context.Context, images []firmware.Image) (firmware.Limits, error)
	// Signed reports that keys to sign images with are loaded. Without keys, an unsigned image
	// causes no warning.
	Signed bool
	// RequireApproval makes every campaign require the approval of a second person. A rollback
	// needs it unless the approval of its campaign covers it.
	RequireApproval bool
	// Redacts reports whether a rule keeps values in the arguments of a call out of the records. A plan is
	// on record, and cannot have such a health check. nil: no rule does.
	Redacts func(tool string, arguments json.RawMessage) bool
	// Authority returns the present rights of the principals behind a campaign. nil: they keep
	// the rights they had.
	Authority fleet.Authority
	// Linked reports whether two principals count as the same person for approvals: one made
	// the other's token, or the same operator made both. nil: only identical principals do.
	Linked func(ctx context.Context, a, b fleet.Principal) (bool, error)

	Events *fleet.Events
	Wake   func()         // notifies the engine of a changed row
	Zone   *time.Location // for devices without a zone. Default: UTC
	Log    *slog.Logger
	Now    func() time.Time
}

// Service implements the operators' acts on campaigns: plan, approve, start, steer and stop. The engine
// in package rollout carries the campaigns out. They communicate through the rows of the database.
type Service struct {
	o Options
}

// New returns a Service with the given options.
func New(o Options) *Service {
	if o.Events == nil {
		o.Events = new(fleet.Events)
	}
	if o.Linked == nil {
		o.Linked = func(_ context.Context, a, b fleet.Principal) (bool, error) { return a.Same(b), nil }
	}
	if o.Limits == nil {
		o.Limits = func(context.Context, []firmware.Image) (firmware.Limits, error) { return firmware.Limits{}, nil }
	}
	o.Authority = KeptRights(o.Authority)
	if o.Wake == nil {
		o.Wake = func() {}
	}
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	return &Service{o: o}
}

// DryRun plans a campaign without storing it.
func (s *Service) DryRun(ctx context.Context, by fleet.Principal, p Plan) (DryRun, error) {
	if err := by.MaySomewhere(fleet.RoleViewer, "plan_campaign"); err != nil {
		return DryRun{}, err
	}
	made, err := s.plan(fleet.WithScope(ctx, by), by, uuid.Must(uuid.NewV7()), p)
	return made.dry, err
}

// Create stores a plan as a draft, with the present audience.
func (s *Service) Create(ctx context.Context, by fleet.Principal, p Plan) (Campaign, error) {
	if err := by.MaySomewhere(fleet.RoleOperator, "make_campaign"); err != nil {
		return Campaign{}, err
	}
	ctx = fleet.WithScope(ctx, by)
	now := s.o.Now()
	c := Campaign{ID: uuid.Must(uuid.NewV7()), State: Draft, CreatedBy: by, CreatedAt: now, EditedBy: by, EditedAt: now}
	made, err := s.plan(ctx, by, c.ID, p)
	if err != nil {
		return Campaign{}, err
	}
	if err := made.mayUpdate(by); err != nil {
		return Campaign{}, err
	}
	if err := made.fill(&c); err != nil {
		return Campaign{}, err
	}
	if err := s.o.Store.CreateCampaign(ctx, by, &c, made.waves, made.deployments); err != nil {
		return Campaign{}, err
	}
	s.announce(c.ID)
	return c, nil
}

// Edit replaces the plan of a campaign that has not started and resolves its audience again; an
// approval ends. In a running campaign only pace, windows, thresholds and the end can change,
// and if it needed approval, they can only be tightened.
func (s *Service) Edit(ctx context.Context, by fleet.Principal, id uuid.UUID, p Plan) (Campaign, error) {
	ctx = fleet.WithScope(ctx, by)
	if err := s.maySteer(ctx, by, id, "change_campaign"); err != nil {
		return Campaign{}, err
	}
	c, err := s.Campaign(ctx, id)
	if err != nil {
		return Campaign{}, err
	}
	if err := mayChange(by, c, "change_campaign"); err != nil {
		return Campaign{}, err
	}
	switch c.State {
	case Draft, AwaitingApproval, Denied, Scheduled:
		return s.replan(ctx, by, c, p)
	case Running, Paused:
		return s.editRunning(ctx, by, c, p)
	}
	return Campaign{}, errState(c, "changed")
}

func (s *Service) replan(ctx context.Context, by fleet.Principal, c Campaign, p Plan) (Campaign, error) {
	if c.RollbackOf != uuid.Nil {
		return Campaign{}, fleet.Refuse(fleet.ErrConflict, "rollback_is_fixed")
	}
	made, err := s.plan(ctx, by, c.ID, p)
	if err != nil {
		return Campaign{}, err
	}
	if err := made.mayUpdate(by); err != nil {
		return Campaign{}, err
	}
	if err := made.fill(&c); err != nil {
		return Campaign{}, err
	}
	c.State, c.Reason, c.Approval, c.StartedBy, c.TakenOverBy = Draft, fleet.Reason{}, nil, nil, nil
	c.EditedBy, c.EditedAt = by, s.o.Now()
	if err := s.o.Store.ReplanCampaign(ctx, by, &c, made.waves, made.deployments); err != nil {
		return Campaign{}, err
	}
	s.announce(c.ID)
	return c, nil
}

// editRunning keeps the approved digest: a change during the run either makes the campaign more
// careful or needs no approval.
func (s *Service) editRunning(ctx context.Context, by fleet.Principal, c Campaign, p Plan) (Campaign, error) {
	if err := p.Normalize(s.o.Now()); err != nil {
		return Campaign{}, err
	}
	p.Within = c.Plan.Within
	if err := RunningEdit(c.Plan, p); err != nil {
		return Campaign{}, err
	}
	if c.Plan.ApprovalRequired && Loosens(c.Plan, p) {
		return Campaign{}, fleet.Refuse(fleet.ErrConflict, "loosening_needs_approval", "name", c.Plan.Name)
	}
	return s.change(ctx, by, c.ID, "campaign.edit", func(c *Campaign) error {
		if c.State != Running && c.State != Paused {
			return errState(*c, "changed")
		}
		c.keepPlanned()
		c.Plan = p
		return nil
	})
}

// changeTries is the number of tries for a change that conflicts with one of the engine.
const changeTries = 5

// A changeAct names a change of a campaign in an error.
type changeAct string

// A language model may start and discard its own draft, and nothing else.
const (
	actStart   changeAct = "start_campaign"
	actDiscard changeAct = "discard_campaign"
	actSteer   changeAct = "steer_campaign"
)

var changeActs = map[string]changeAct{"campaign.start": actStart, "campaign.discard": actDiscard}

// mayChange refuses changes by a language model, except to its own draft. Running and approved
// campaigns belong to the people who decided about them.
func mayChange(by fleet.Principal, c Campaign, act string) error {
	if err := by.MayAsMaker(c.CreatedBy, act); err != nil || !by.Kind.IsModel() {
		return err
	}
	switch c.State {
	case Draft, AwaitingApproval, Denied:
		return nil
	}
	return fleet.Refuse(fleet.ErrForbidden, "person_needed.act", "act", fleet.Because("act."+act), "actor", by.Name)
}

// change applies a principal's change to a campaign. The principal must be allowed to act on
// all of its devices.
func (s *Service) change(ctx context.Context, by fleet.Principal, id uuid.UUID, action string,
	f func(*Campaign) error) (
	Campaign, error) {
	ctx = fleet.WithScope(ctx, by)
	act := string(cmp.Or(changeActs[action], actSteer))
	if err := s.maySteer(ctx, by, id, act); err != nil {
		return Campaign{}, err
	}
	return s.store(ctx, by, id, action, func(c *Campaign) error {
		if err := mayChange(by, *c, act); err != nil {
			return err
		}
		return f(c)
	})
}

// store reads a campaign, changes it and stores it.
func (s *Service) store(ctx context.Context, by fleet.Principal, id uuid.UUID, action string,
	f func(*Campaign) error) (
	Campaign, error) {
	for try := 1; ; try++ {
		c, err := s.Campaign(ctx, id)
		if err != nil {
			return Campaign{}, err
		}
		if err := f(&c); err != nil {
			return Campaign{}, err
		}
		err = s.o.Store.ChangeCampaign(ctx, by, action, &c)
		if err == nil {
			s.announce(id)
			return c, nil
		}
		if !errors.Is(err, fleet.ErrConflict) || try == changeTries {
			return Campaign{}, err
		}
	}
}

// maySteer returns nil if the principal may act on every device of the campaign.
func (s *Service) maySteer(ctx context.Context, by fleet.Principal, id uuid.UUID, act string) error {
	if err := by.MaySomewhere(fleet.RoleOperator, act); err != nil || by.Scope == nil {
		return err
	}
	find := func(ctx context.Context) error {
		_, err := s.o.Store.Campaign(ctx, id)
		return err
	}
	if err := find(ctx); err != nil {
		return err
	}
	return by.MayOnAll(ctx, find, fleet.RoleOperator, act)
}

func (s *Service) announce(id uuid.UUID) {
	s.o.Wake()
	s.o.Events.Publish(fleet.Event{Kind: fleet.EventCampaign, At: s.o.Now(), Subject: id.String()})
}

func errState(c Campaign, verb string) error {
	return fleet.Refuse(fleet.ErrConflict, "wrong_state", "name", c.Plan.Name,
		"state", fleet.Because("state."+string(c.State)), "verb", fleet.Because("verb."+verb))
}
