package rollout_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// memStore is a rollout store in memory with the guarantees of the real one: optimistic
// revisions, one active deployment per device, dispatches only of running campaigns. Methods
// that no test uses panic.
type memStore struct {
	campaign.RolloutStore

	// fail runs before each write. lost runs after it: an error from lost means that the change
	// is stored and its reply lost.
	fail, lost func(op string) error
	// watch sees the state of the store after each dispatch and opened wave.
	watch func(op string, campaignID uuid.UUID, device fleet.DeviceID)

	mu           sync.Mutex
	polls        map[fleet.DeviceID]fleet.Device // polls that are not stored yet
	unregistered []fleet.DeviceID                // devices whose poll had effects before it was stored
	lead         sync.Mutex
	loseLead     func() // ends the right to lead, as a lost connection does
	campaigns    map[uuid.UUID]campaign.Campaign
	waves        map[uuid.UUID][]campaign.Wave
	deployments  map[uuid.UUID]campaign.Deployment
	events       map[uuid.UUID][]campaign.DeploymentEvent
	links        map[string]firmware.Link
	revoked      map[uuid.UUID]int // links of deployments that were revoked, by attempt
	devices      map[fleet.DeviceID]fleet.Device
	images       map[string]firmware.Image
	releases     map[uuid.UUID]firmware.Release
	quarantines  map[fleet.DeviceID]campaign.Quarantine
	dispatches   []campaign.Dispatch
}

func newMemStore() *memStore {
	return &memStore{polls: make(map[fleet.DeviceID]fleet.Device), campaigns: map[uuid.UUID]campaign.Campaign{},
		waves:       map[uuid.UUID][]campaign.Wave{},
		deployments: map[uuid.UUID]campaign.Deployment{},
		events:      map[uuid.UUID][]campaign.DeploymentEvent{}, links: map[string]firmware.Link{},
		revoked: map[uuid.UUID]int{},
		devices: map[fleet.DeviceID]fleet.Device{}, images: map[string]firmware.Image{},
		releases:    map[uuid.UUID]firmware.Release{},
		quarantines: map[fleet.DeviceID]campaign.Quarantine{}}
}

// write runs a change unless the test wants it to fail.
func (s *memStore) write(ctx context.Context, op string, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.fail != nil {
		if err := s.fail(op); err != nil {
			return err
		}
	}
	s.mu.Lock()
	err := do()
	s.mu.Unlock()
	if err == nil && s.lost != nil {
		err = s.lost(op)
	}
	return err
}

func (s *memStore) saw(op string, campaignID uuid.UUID, device fleet.DeviceID) {
	if s.watch != nil {
		s.watch(op, campaignID, device)
	}
}

func (s *memStore) Lead(ctx context.Context, run func(context.Context) error) error {
	for !s.lead.TryLock() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	defer s.lead.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.loseLead = cancel
	s.mu.Unlock()
	return run(ctx)
}

func (s *memStore) OpenCampaigns(ctx context.Context) ([]campaign.Campaign, error) {
	return s.campaignsWhere(func(c campaign.Campaign) bool { return c.State.Open() }), nil
}

func (s *memStore) campaignsWhere(which func(campaign.Campaign) bool) (list []campaign.Campaign) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.campaigns {
		if which(c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b campaign.Campaign) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID.String(), b.ID.String()))
	})
	return list
}

func (s *memStore) Campaigns(ctx context.Context, f campaign.Filter) (fleet.Page[campaign.Campaign], error) {
	return fleet.Page[campaign.Campaign]{Items: s.campaignsWhere(func(c campaign.Campaign) bool {
		return slices.Contains(
			f.States, c.State)
	})}, nil
}

func (s *memStore) Campaign(ctx context.Context, id uuid.UUID) (campaign.Campaign, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.campaigns[id]
	if !ok {
		return c, fleet.ErrNotFound
	}
	return c, nil
}

func (s *memStore) ChangeCampaign(ctx context.Context, by fleet.Principal, action string, c *campaign.Campaign) error {
	return s.write(ctx, "campaign", func() error {
		row := s.campaigns[c.ID]
		if row.Revision != c.Revision {
			return fleet.Refuse(fleet.ErrConflict, "campaign_changed")
		}
		targets, skipped := row.Targets, row.Skipped
		row = *c
		row.Targets, row.Skipped = targets, skipped
		row.Revision++
		s.campaigns[c.ID] = row
		c.Revision++
		return nil
	})
}

func (s *memStore) Waves(ctx context.Context, id uuid.UUID) ([]campaign.Wave, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.waves[id]), nil
}

func (s *memStore) SaveWave(ctx context.Context, w campaign.Wave) error {
	return s.write(ctx, "wave", func() error {
		w.Size = s.waves[w.Campaign][w.Number].Size
		s.waves[w.Campaign][w.Number] = w
		return nil
	})
}

func (s *memStore) CampaignProgress(ctx context.Context, id uuid.UUID) (campaign.Progress, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := campaign.Progress{ByState: map[campaign.DeploymentState]int{},
		ByBoard: map[string]map[campaign.DeploymentState]int{}}
	for range s.waves[id] {
		p.ByWave = append(p.ByWave, map[campaign.DeploymentState]int{})
	}
	for _, d := range s.deployments {
		if d.Campaign != id {
			continue
		}
		p.ByState[d.State]++
		if d.Wave >= 0 {
			p.ByWave[d.Wave][d.State]++
		}
		if p.ByBoard[d.Board] == nil {
			p.ByBoard[d.Board] = map[campaign.DeploymentState]int{}
		}
		p.ByBoard[d.Board][d.State]++
	}
	return p, nil
}

func (s *memStore) Cohorts(ctx context.Context, id uuid.UUID) (campaign.Cohorts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return campaign.CohortsOf(s.where(func(d campaign.Deployment) bool { return d.Campaign == id })), nil
}

func (s *memStore) where(which func(campaign.Deployment) bool) (list []campaign.Deployment) {
	for _, d := range s.deployments {
		if which(d) {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b campaign.Deployment) int {
		return cmp.Or(cmp.Compare(a.Wave, b.Wave), cmp.Compare(a.Device, b.Device), cmp.Compare(a.ID.String(), b.ID.String()))
	})
	return list
}

func (s *memStore) Deployments(ctx context.Context, f campaign.DeploymentFilter) (fleet.Page[campaign.Deployment],
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fleet.Page[campaign.Deployment]{Items: s.where(func(d campaign.Deployment) bool {
		return d.Campaign == f.Campaign && (len(f.States) == 0 || slices.Contains(f.States, d.State))
	})}, nil
}

func (s *memStore) DeploymentByID(ctx context.Context, id uuid.UUID) (campaign.Deployment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.deployments[id]
	if !ok {
		return d, fleet.ErrNotFound
	}
	return d, nil
}

func (s *memStore) LiveDeployments(ctx context.Context) ([]campaign.Deployment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.where(func(d campaign.Deployment) bool {
		return s.campaigns[d.Campaign].State.Open() && (d.State == campaign.DeploymentQueued || d.State.Active())
	}), nil
}

func (s *memStore) activeElsewhere(d campaign.Deployment) bool {
	for _, o := range s.deployments {
		if o.Device == d.Device && o.ID != d.ID && o.State.Active() {
			return true
		}
	}
	return false
}

func (s *memStore) event(d campaign.Deployment, kind fleet.EvidenceKind, from campaign.DeploymentState, at time.Time) {
	s.events[d.ID] = append(s.events[d.ID], campaign.DeploymentEvent{ID: uuid.New(), Deployment: d.ID, At: at,
		Attempt: d.Attempt, Kind: kind, From: from, To: d.State})
}

func (s *memStore) OpenWave(ctx context.Context, c *campaign.Campaign, wave int, at time.Time) (
	opened []campaign.Deployment, err error) {
	err = s.write(ctx, "open wave", func() error {
		pending := s.where(func(d campaign.Deployment) bool {
			return d.Campaign == c.ID && d.Wave == wave && d.State == campaign.DeploymentPending
		})
		for _, d := range pending {
			d.State, d.UpdatedAt = campaign.DeploymentQueued, at
			d.Revision++
			if s.hasPart(d, c.Plan.Supersede) {
				d.State, d.Skip, d.FinishedAt = campaign.DeploymentSkipped, firmware.SkipBusy, &at
			} else {
				if c.Plan.Supersede {
					s.supersede(d, at)
				}
				opened = append(opened, d)
			}
			s.deployments[d.ID] = d
			s.event(d, fleet.EvidenceWaveOpened, campaign.DeploymentPending, at)
		}
		s.saw("open wave", c.ID, "")
		return nil
	})
	return opened, err
}

func (s *memStore) hasPart(d campaign.Deployment, supersede bool) bool {
	for _, o := range s.deployments {
		if o.Device == d.Device && o.Campaign != d.Campaign &&
			(o.State.Active() || o.State == campaign.DeploymentQueued && !supersede && s.campaigns[o.Campaign].State.Open()) {
			return true
		}
	}
	return false
}

func (s *memStore) supersede(d campaign.Deployment, at time.Time) {
	for id, o := range s.deployments {
		if o.Device == d.Device && o.Campaign != d.Campaign && o.State.Waiting() && s.campaigns[o.Campaign].State.Open() {
			from := o.State
			o.State, o.Skip, o.FinishedAt = campaign.DeploymentCanceled, firmware.SkipSuperseded, &at
			o.Revision++
			s.deployments[id] = o
			s.event(o, fleet.EvidenceCanceled, from, at)
		}
	}
}

func (s *memStore) SaveDeployments(ctx context.Context, changes []campaign.DeploymentChange) (stale []uuid.UUID,
	err error) {
	err = s.write(ctx, "save", func() error {
		stale = nil
		for _, c := range changes {
			if !s.store(c) {
				stale = append(stale, c.Deployment.ID)
			}
		}
		return nil
	})
	return stale, err
}

func (s *memStore) store(c campaign.DeploymentChange) bool {
	d := c.Deployment
	for _, e := range c.Events {
		if p, pending := s.polls[d.Device]; pending && e.Kind == fleet.EvidenceBootPoll && e.At.Equal(*p.LastPoll) {
			s.unregistered = append(s.unregistered, d.Device)
		}
	}
	row, ok := s.deployments[d.ID]
	if !ok || row.Revision != d.Revision || d.State.Active() && s.activeElsewhere(d) {
		return false
	}
	d.Revision++
	s.deployments[d.ID] = d
	s.events[d.ID] = append(s.events[d.ID], c.Events...)
	return true
}

func (s *memStore) DispatchDeployments(ctx context.Context, all []campaign.Dispatch) (refused []uuid.UUID, err error) {
	err = s.write(ctx, "dispatch", func() error {
		refused = nil
		for _, d := range all {
			if s.campaigns[d.Deployment.Campaign].State != campaign.Running || !s.store(d.DeploymentChange) {
				refused = append(refused, d.Deployment.ID)
				continue
			}
			s.links[string(d.Link.TokenHash)] = d.Link
			s.dispatches = append(s.dispatches, d)
			s.saw("dispatch", d.Deployment.Campaign, d.Deployment.Device)
		}
		return nil
	})
	return refused, err
}

func (s *memStore) EndWaiting(ctx context.Context, campaignID uuid.UUID, to campaign.DeploymentState,
	kind fleet.EvidenceKind, reason fleet.Reason, at time.Time, untriedOnly bool) (n int, err error) {
	err = s.write(ctx, "end waiting", func() error {
		n = 0
		for id, d := range s.deployments {
			if d.Campaign != campaignID || !d.State.Waiting() || untriedOnly && d.Attempt > 0 {
				continue
			}
			from := d.State
			d.State, d.Reason, d.FinishedAt, d.NotBefore, d.Deadline = to, reason, &at, nil, nil
			d.Revision++
			s.deployments[id] = d
			s.event(d, kind, from, at)
			n++
		}
		return nil
	})
	return n, err
}

func (s *memStore) PlannedTargets(ctx context.Context, campaignID uuid.UUID) (all []campaign.PlannedTarget, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.where(func(d campaign.Deployment) bool { return d.Campaign == campaignID && d.Wave >= 0 }) {
		all = append(all, campaign.PlannedTarget{Device: d.Device, Wave: d.Wave, Image: d.Image, Board: d.Board,
			Joined: d.Joined, Open: d.FinishedAt == nil})
	}
	return all, nil
}

func (s *memStore) AddTargets(ctx context.Context, campaignID uuid.UUID, targets []campaign.Deployment) (n int,
	err error) {
	err = s.write(ctx, "add targets", func() error {
		n = 0
		for _, t := range targets {
			if len(s.where(func(d campaign.Deployment) bool { return d.Campaign == campaignID && d.Device == t.Device })) > 0 {
				continue
			}
			t.Revision = 1
			s.deployments[t.ID] = t
			s.waves[campaignID][t.Wave].Size++
			n++
		}
		c := s.campaigns[campaignID]
		c.Targets += n
		s.campaigns[campaignID] = c
		return nil
	})
	return n, err
}

func (s *memStore) Requeue(ctx context.Context, by fleet.Principal, campaignID uuid.UUID,
	states []campaign.DeploymentState,
	devices []fleet.DeviceID, at time.Time) (n int, err error) {
	err = s.write(ctx, "requeue", func() error {
		for id, d := range s.deployments {
			if d.Campaign != campaignID || !d.State.Failed() {
				continue
			}
			from := d.State
			d.State, d.Class, d.Reason, d.NotBefore, d.FinishedAt, d.Failures = campaign.DeploymentQueued, "",
				fleet.Reason{}, nil, nil, 0
			d.Revision++
			s.deployments[id] = d
			s.event(d, fleet.EvidenceRetry, from, at)
			n++
		}
		return nil
	})
	return n, err
}

func (s *memStore) RevokeLinks(ctx context.Context, ids []uuid.UUID, at time.Time) error {
	return s.write(ctx, "revoke", func() error {
		for _, id := range ids {
			s.revoked[id] = s.deployments[id].Attempt
		}
		return nil
	})
}

// served reports whether the web server would serve the attempt's link.
func (s *memStore) served(id uuid.UUID, attempt int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.deployments[id]
	return s.revoked[id] < attempt && s.images[d.Image].RevokedAt == nil
}

func (s *memStore) FailedAttempts(ctx context.Context, device fleet.DeviceID, since time.Time) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for id, events := range s.events {
		for _, e := range events {
			if s.deployments[id].Device == device && e.At.After(since) && e.From.Active() &&
				(e.To.Failed() || e.Kind == fleet.EvidenceRetry) {
				n++
			}
		}
	}
	return n, nil
}

func (s *memStore) Quarantine(ctx context.Context, q campaign.Quarantine) error {
	return s.write(ctx, "quarantine", func() error { s.quarantines[q.Device] = q; return nil })
}

func (s *memStore) OffersSince(ctx context.Context, devices []fleet.DeviceID, since time.Time) (map[fleet.DeviceID]int,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[fleet.DeviceID]int{}
	for id, events := range s.events {
		for _, e := range events {
			if d := s.deployments[id].Device; e.Kind == fleet.EvidenceOffered && e.At.After(since) && slices.Contains(devices,
				d) {
				counts[d]++
			}
		}
	}
	return counts, nil
}

func (s *memStore) DevicesByID(ctx context.Context, ids []fleet.DeviceID) (list []fleet.Device, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if d, ok := s.devices[id]; ok {
			list = append(list, d)
		}
	}
	return list, nil
}

func (s *memStore) DeviceIDs(ctx context.Context, q fleet.Query) ([]fleet.DeviceID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := slices.Sorted(maps.Keys(s.devices))
	return slices.DeleteFunc(ids, func(id fleet.DeviceID) bool {
		_, ok := q.Match(s.devices[id], nil, time.Now())
		return !ok
	}), nil
}

func (s *memStore) Image(ctx context.Context, sha string) (firmware.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	img, ok := s.images[sha]
	if !ok {
		return img, fleet.ErrNotFound
	}
	return img, nil
}

func (s *memStore) Release(ctx context.Context, id uuid.UUID) (firmware.Release, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.releases[id]
	if !ok {
		return r, fleet.ErrNotFound
	}
	return r, nil
}

// quarantineStore and inventoryStore implement the other interfaces of the store.
type quarantineStore struct {
	campaign.QuarantineStore
	s *memStore
}

func (q quarantineStore) QuarantinesOf(ctx context.Context, ids []fleet.DeviceID, now time.Time) (
	map[fleet.DeviceID]campaign.Quarantine, error) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	of := map[fleet.DeviceID]campaign.Quarantine{}
	for _, id := range ids {
		if row, ok := q.s.quarantines[id]; ok && now.Before(row.Until) {
			of[id] = row
		}
	}
	return of, nil
}

type inventoryStore struct {
	fleet.InventoryStore
	byID map[string]*fleet.Inventory
}

func (i inventoryStore) Inventory(ctx context.Context, id string) (*fleet.Inventory, error) {
	inv, ok := i.byID[id]
	if !ok {
		return nil, fmt.Errorf("inventory %s: %w", id, fleet.ErrNotFound)
	}
	return inv, nil
}

func (s *memStore) Deployment(_ context.Context, c uuid.UUID, device fleet.DeviceID) (campaign.Deployment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.deployments {
		if d.Campaign == c && d.Device == device {
			return d, nil
		}
	}
	return campaign.Deployment{}, fleet.ErrNotFound
}

func (s *memStore) DeploymentEvents(_ context.Context, id uuid.UUID) ([]campaign.DeploymentEvent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events[id]), nil
}
