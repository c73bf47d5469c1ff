package campaign

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// A DryRun describes the effects of a campaign before it starts.
type DryRun struct {
	Within    string // see [Plan]
	Matched   int
	Targets   int
	Offline   int // of the targets
	Waves     []PlannedWave
	Images    []PlannedImage
	Skipped   []firmware.Misfits // see [firmware.SortMisfits]
	Conflicts []PlannedConflict
	Warnings  []PlanWarning
	Digest    string
	// FirstDispatch is when the first device could be notified: now, the start, or
	// when the first window opens; nil if no window opens before the end.
	FirstDispatch *time.Time
	Estimate      time.Duration // for the whole campaign if every device were online; 0 if unknown
}

// A PlannedWave is a wave with its devices.
type PlannedWave struct {
	WavePlan
	Size    int
	ByBoard []fleet.DeviceCount
	Sample  []fleet.DeviceID
}

// A PlannedImage is an image and the number of devices that get it.
type PlannedImage struct {
	Image firmware.Image
	Count int
}

// A PlannedConflict is another campaign that includes part of the audience.
type PlannedConflict struct {
	Campaign uuid.UUID
	Name     string
	Waiting  int // these can be taken over
	Active   int // these cannot
	Sample   []fleet.DeviceID
}

// A PlanWarning is a point to consider before the start, with a stable code.
type PlanWarning struct {
	Code   string
	Detail string
}

const (
	planPage       = 1000 // devices read at a time
	planSampleSize = 5
)

// MaxDevices bounds the audience of a campaign.
const MaxDevices = 100_000

// planned is a plan with its audience resolved.
type planned struct {
	plan        Plan
	waves       []Wave
	deployments []Deployment
	dry         DryRun
	images      []string // that its devices may get
	readOnly    int      // devices on which the planning principal is not an operator
}

// fill copies the plan to the campaign.
func (p *planned) fill(c *Campaign) error {
	if p.dry.Targets == 0 && !p.plan.Continuous {
		if len(p.dry.Skipped) == 0 {
			return fleet.Refuse(fleet.ErrInvalid, "empty_audience.update", "matched", p.dry.Matched)
		}
		return fleet.Refuse(fleet.ErrInvalid, "empty_audience.update_most", "matched", p.dry.Matched,
			"skip", p.dry.Skipped[0].Reason)
	}
	c.Images, c.Planned = p.images, nil
	c.Plan, c.Digest, c.Targets, c.Skipped, c.Wave = p.plan, p.dry.Digest, p.dry.Targets, p.dry.Matched-p.dry.Targets, 0
	return nil
}

// mayUpdate refuses a plan that includes devices on which the principal is not an operator.
func (p *planned) mayUpdate(by fleet.Principal) error {
	if p.readOnly == 0 {
		return nil
	}
	return fleet.Refuse(fleet.ErrForbidden, "audience_not_yours", "devices", p.readOnly,
		"matched", p.dry.Matched, "actor", by.Name)
}

// plan normalizes a plan and resolves its present audience.
func (s *Service) plan(ctx context.Context, by fleet.Principal, id uuid.UUID, p Plan) (planned, error) {
	now := s.o.Now()
	if err := p.Normalize(now); err != nil {
		return planned{}, err
	}
	for i, c := range p.HealthChecks {
		if s.o.Redacts != nil && s.o.Redacts(c.Tool, c.Arguments) {
			return planned{}, fleet.Refuse(fleet.ErrInvalid, "invalid_arguments.redacted", "tool", c.Tool).
				At(fmt.Sprintf("health_checks[%d].arguments", i))
		}
	}
	p.Within = by.Within(fleet.RoleOperator).Text
	p.ApprovalRequired = p.ApprovalRequired || s.o.RequireApproval
	if p.Release == uuid.Nil {
		return planned{}, fleet.Refuse(fleet.ErrInvalid, "release_missing").At("release_id")
	}
	r, err := s.o.Firmware.Release(ctx, p.Release)
	if err != nil {
		return planned{}, err
	}
	if r.State != firmware.ReleaseReleased && r.State != firmware.ReleaseDraft {
		return planned{}, errReleaseState(r)
	}
	a := newPlanner(s, id, p, now)
	a.by = by
	if a.limits, err = s.o.Limits(ctx, r.Images); err != nil {
		return planned{}, err
	}
	if err := a.resolve(ctx, r); err != nil {
		return planned{}, err
	}
	inventories, err := a.targetInventories(ctx)
	if err != nil {
		return planned{}, err
	}
	if err := p.mayCheck(by, inventories); err != nil {
		return planned{}, err
	}
	if err := a.assign(); err != nil {
		return planned{}, err
	}
	return a.result(r), nil
}

// A planner divides an audience into devices that get an image and those that do not.
type planner struct {
	s    *Service
	id   uuid.UUID
	plan Plan
	now  time.Time
	by   fleet.Principal

	limits           firmware.Limits
	readOnly         int // devices on which by is not an operator
	matched, offline int
	incomparable     int // of the targets: their own version cannot be compared
	rolledBack       int // of the targets: they installed the build before but did not keep it
	deployments      []Deployment
	candidates       []WaveCandidate // of the deployments with an image, in the same order
	targets          []int           // their indexes in deployments
	inventories      map[string]bool // ids, of the targets; read only to judge a model's health checks
	images           map[string]*PlannedImage
	leftOut          firmware.LeftOut
	conflicts        map[uuid.UUID]*PlannedConflict
}

func newPlanner(s *Service, id uuid.UUID, p Plan, now time.Time) *planner {
	return &planner{s: s, id: id, plan: p, now: now, inventories: map[string]bool{}, images: map[string]*PlannedImage{},
		conflicts: map[uuid.UUID]*PlannedConflict{}}
}

func (a *planner) resolve(ctx context.Context, r firmware.Release) error {
	ids, err := a.audience(ctx)
	if err != nil {
		return err
	}
	for page := range slices.Chunk(ids, planPage) {
		if err := a.page(ctx, r, page); err != nil {
			return err
		}
	}
	return nil
}

func (a *planner) audience(ctx context.Context) ([]fleet.DeviceID, error) {
	ids := slices.Clone(a.plan.Devices)
	if len(ids) == 0 {
		q, err := a.query()
		if err != nil {
			return nil, err
		}
		if ids, err = a.s.o.Devices.DeviceIDs(ctx, q); err != nil {
			return nil, err
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) > MaxDevices {
		return nil, fleet.Refuse(fleet.ErrInvalid, "audience_too_large.campaign", "matched", len(ids), "limit", MaxDevices)
	}
	return ids, nil
}

// query returns the query for the audience. For a continuous plan it is limited to the maker's
// filter; for a one-time plan that reaches further, see [planned.mayUpdate].
func (a *planner) query() (fleet.Query, error) {
	if a.plan.Continuous {
		return a.plan.Audience()
	}
	return fleet.ParseQuery(a.plan.Query)
}

func (a *planner) page(ctx context.Context, r firmware.Release, ids []fleet.DeviceID) error {
	devices, err := a.s.o.Devices.DevicesByID(ctx, ids)
	if err != nil {
		return err
	}
	quarantined, err := a.s.o.Quarantines.QuarantinesOf(ctx, ids, a.now)
	if err != nil {
		return err
	}
	busy, err := a.busy(ctx, ids)
	if err != nil {
		return err
	}
	var rolledBack map[fleet.DeviceID][]string
	if a.s.o.RolledBack != nil {
		if rolledBack, err = a.s.o.RolledBack(ctx, ids, firmware.Builds(r.Images)); err != nil {
			return err
		}
	}
	slices.SortFunc(devices, func(x, y fleet.Device) int { return cmp.Compare(x.ID, y.ID) })
	for _, d := range devices {
		dep := a.take(d, r, busy[d.ID], quarantined)
		if dep.State == DeploymentPending && slices.Contains(rolledBack[d.ID], dep.TargetELF) {
			a.rolledBack++
		}
	}
	return nil
}

// busy returns the devices that have a part in another campaign.
func (a *planner) busy(ctx context.Context, ids []fleet.DeviceID) (map[fleet.DeviceID]DeploymentConflict, error) {
	conflicts, err := a.s.o.Store.Conflicts(ctx, a.id, ids)
	if err != nil {
		return nil, err
	}
	of := make(map[fleet.DeviceID]DeploymentConflict, len(conflicts))
	for _, c := range conflicts {
		if have, ok := of[c.Device]; !ok || !have.State.Active() {
			of[c.Device] = c
		}
	}
	return of, nil
}

func (a *planner) take(d fleet.Device, r firmware.Release, other DeploymentConflict,
	quarantined map[fleet.DeviceID]Quarantine) Deployment {
	a.matched++
	if !a.by.RoleOn(d).Allows(fleet.RoleOperator) {
		a.readOnly++
	}
	img, reason, detail := firmware.FitDevice(d, r, firmware.FitOptions{Mode: a.plan.Mode,
		AllowDowngrade: a.plan.AllowDowngrade, Limits: a.limits}, a.now)
	if reason == firmware.SkipNone {
		if q, ok := quarantined[d.ID]; ok {
			reason, detail = firmware.SkipQuarantined, q.Reason
		}
	}
	if reason == firmware.SkipNone && other.Device != "" {
		a.conflict(other)
		if other.State.Active() || !a.plan.Supersede {
			reason, detail = firmware.SkipBusy, fleet.Because(ReasonFitBusy, "name", other.Name)
		}
	}
	dep := newDeployment(a.id, d, a.now)
	if reason != firmware.SkipNone {
		a.leaveOut(&dep, reason, detail)
	} else {
		a.target(&dep, d, img)
	}
	a.deployments = append(a.deployments, dep)
	return dep
}

func newDeployment(campaign uuid.UUID, d fleet.Device, now time.Time) Deployment {
	return Deployment{ID: uuid.Must(uuid.NewV7()), Campaign: campaign, Device: d.ID, Board: d.Board,
		State:   DeploymentPending,
		FromELF: d.ELFSHA256, FromVersion: d.Version, CreatedAt: now, UpdatedAt: now, Wave: -1}
}

// aim sets the image that the device gets.
func (d *Deployment) aim(img firmware.Image) {
	d.Image, d.ImageSize, d.TargetELF, d.ToVersion = img.SHA256, img.Size, img.ELFSHA256, img.Version
	d.Force = !VersionNewer(img.Version, d.FromVersion)
}

// VersionNewer reports whether a stock device that runs from regards to as newer. It compares
// strictly, part by part, and more parts are newer.
func VersionNewer(to, from string) bool {
	return slices.Compare(fleet.VersionKey(to), fleet.VersionKey(from)) > 0
}

func (a *planner) leaveOut(dep *Deployment, reason firmware.SkipReason, detail fleet.Reason) {
	dep.State, dep.Skip, dep.Reason, dep.FinishedAt = DeploymentSkipped, reason, detail, &a.now
	a.leftOut.Add(dep.Device, dep.Board, reason, detail)
}

func (a *planner) target(dep *Deployment, d fleet.Device, img firmware.Image) {
	dep.aim(img)
	if d.Presence != fleet.PresenceOnline && d.Presence != fleet.PresenceUnresponsive {
		a.offline++
	}
	if !fleet.ComparableVersion(d.Version) {
		a.incomparable++
	}
	if d.InventoryID != "" && len(a.plan.HealthChecks) > 0 && a.by.Kind.IsModel() {
		a.inventories[d.InventoryID] = true
	}
	use := a.images[img.SHA256]
	if use == nil {
		use = &PlannedImage{Image: img}
		a.images[img.SHA256] = use
	}
	use.Count++
	a.targets = append(a.targets, len(a.deployments))
	a.candidates = append(a.candidates, WaveCandidate{ID: d.ID, Board: d.Board, Version: d.Version})
}

func (a *planner) conflict(c DeploymentConflict) {
	group := a.conflicts[c.Campaign]
	if group == nil {
		group = &PlannedConflict{Campaign: c.Campaign, Name: c.Name}
		a.conflicts[c.Campaign] = group
	}
	if c.State.Active() {
		group.Active++
	} else {
		group.Waiting++
	}
	if len(group.Sample) < planSampleSize {
		group.Sample = append(group.Sample, c.Device)
	}
}

// assign distributes the devices to the waves.
func (a *planner) assign() error {
	if len(a.candidates) == 0 {
		return nil
	}
	waves, err := AssignWaves(a.id, a.plan.Waves, a.candidates)
	if err != nil {
		return err
	}
	for i, at := range a.targets {
		a.deployments[at].Wave = waves[i]
	}
	return nil
}

func (a *planner) result(r firmware.Release) planned {
	p := planned{plan: a.plan, deployments: a.deployments, readOnly: a.readOnly, images: a.planImages(r)}
	p.dry = DryRun{Within: a.plan.Within, Matched: a.matched, Targets: len(a.targets), Offline: a.offline,
		Digest: Digest(a.plan, a.deployments, p.images)}
	for n, w := range a.plan.Waves {
		wave, shown := a.wave(n, w)
		p.waves, p.dry.Waves = append(p.waves, wave), append(p.dry.Waves, shown)
	}
	p.dry.Images = sortedByCount(a.images, func(i *PlannedImage) int { return i.Count })
	p.dry.Skipped = a.leftOut.List()
	p.dry.Conflicts = sortedByCount(a.conflicts, func(c *PlannedConflict) int { return c.Waiting + c.Active })
	p.dry.Warnings = a.warnings(r)
	p.dry.FirstDispatch = a.firstDispatch()
	p.dry.Estimate = a.estimate(p.waves)
	return p
}

func (a *planner) wave(n int, w WavePlan) (Wave, PlannedWave) {
	wave := Wave{Campaign: a.id, Number: n, Plan: w, State: WavePending}
	shown := PlannedWave{WavePlan: w}
	boards := map[string]int{}
	for _, at := range a.targets {
		d := &a.deployments[at]
		if d.Wave != n {
			continue
		}
		wave.Size++
		boards[d.Board]++
		if len(shown.Sample) < planSampleSize {
			shown.Sample = append(shown.Sample, d.Device)
		}
	}
	shown.Size = wave.Size
	for _, b := range slices.Sorted(maps.Keys(boards)) {
		shown.ByBoard = append(shown.ByBoard, fleet.DeviceCount{Value: b, Count: boards[b]})
	}
	slices.SortStableFunc(shown.ByBoard, func(x, y fleet.DeviceCount) int { return y.Count - x.Count })
	return wave, shown
}

func sortedByCount[K comparable, T any](groups map[K]*T, count func(*T) int) []T {
	out := make([]T, 0, len(groups))
	for _, g := range groups {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(x, y T) int { return cmp.Compare(count(&y), count(&x)) })
	return out
}

// A ConflictStore finds the devices that open campaigns reserve.
type ConflictStore interface {
	Conflicts(ctx context.Context, except uuid.UUID, devices []fleet.DeviceID) ([]DeploymentConflict, error)
	QuarantinesOf(ctx context.Context, devices []fleet.DeviceID, now time.Time) (map[fleet.DeviceID]Quarantine, error)
}

// Unavailable returns a function for [firmware.Options]. It finds the devices that are reserved
// by a quarantine or an open campaign.
func Unavailable(s ConflictStore) func(context.Context, []fleet.DeviceID, time.Time) (
	map[fleet.DeviceID]firmware.Misfits, error) {
	return func(ctx context.Context, ids []fleet.DeviceID, now time.Time) (map[fleet.DeviceID]firmware.Misfits, error) {
		kept := make(map[fleet.DeviceID]firmware.Misfits)
		quarantined, err := s.QuarantinesOf(ctx, ids, now)
		if err != nil {
			return nil, err
		}
		for id, q := range quarantined {
			kept[id] = firmware.Misfits{Reason: firmware.SkipQuarantined, Detail: q.Reason}
		}
		busy, err := s.Conflicts(ctx, uuid.Nil, ids)
		for _, c := range busy {
			kept[c.Device] = firmware.Misfits{Reason: firmware.SkipBusy, Detail: fleet.Because(ReasonFitBusy, "name", c.Name)}
		}
		return kept, err
	}
}

// PartsOf returns a function for [fleet.DevicesOptions]. It finds the parts that a device has
// in open campaigns.
func PartsOf(s ConflictStore) func(context.Context, fleet.DeviceID) ([]fleet.CampaignPart, error) {
	return func(ctx context.Context, id fleet.DeviceID) ([]fleet.CampaignPart, error) {
		busy, err := s.Conflicts(ctx, uuid.Nil, []fleet.DeviceID{id})
		parts := make([]fleet.CampaignPart, 0, len(busy))
		for _, c := range busy {
			parts = append(parts, fleet.CampaignPart{Campaign: c.Campaign, Name: c.Name, Active: c.State.Active()})
		}
		return parts, err
	}
}
