package fleet

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// CampaignsOptions configures [Campaigns]. Store, Firmware and Devices are required.
type CampaignsOptions struct {
	Store       CampaignStore
	Firmware    ReleaseStore
	Devices     DeviceStore
	Inventories InventoryStore
	Quarantines QuarantineStore
	// Requeue and the like are the engine's; see [RolloutStore.Requeue].
	Requeue func(ctx context.Context, by Actor, campaign uuid.UUID, states []DeploymentState, devices []DeviceID, at time.Time) (int, error)
	Events  *Events
	Wake    func() // tells the engine that a row changed
	Zone    *time.Location
	Log     *slog.Logger
	Now     func() time.Time
}

// Campaigns is what operators do with campaigns: plan, approve, start, steer
// and stop them. The engine in package rollout carries them out; the two meet
// in the rows.
type Campaigns struct {
	CampaignStore
	QuarantineStore
	o CampaignsOptions
}

// NewCampaigns returns the service.
func NewCampaigns(o CampaignsOptions) *Campaigns {
	return &Campaigns{CampaignStore: o.Store, QuarantineStore: o.Quarantines, o: o}
}

// CampaignsOf names the campaign that each device has a live part in.
func (s *Campaigns) CampaignsOf(ctx context.Context, ids []DeviceID) (map[DeviceID]uuid.UUID, error) {
	return nil, errNotBuilt
}

// A DryRun says what a campaign would do, before it does.
type DryRun struct {
	Matched   int
	Targets   int
	Offline   int // of the targets
	Waves     []PlannedWave
	Images    []PlannedImage
	Skipped   []Misfits // most first
	Conflicts []PlannedConflict
	Warnings  []PlanWarning
	Digest    string
	// FirstDispatch is when the first device could be told: now, the start, or
	// when the first window opens; nil if no window opens before the end.
	FirstDispatch *time.Time
	Estimate      time.Duration // of the whole, if every device were online; 0 if unknown
}

// A PlannedWave is a wave with its devices.
type PlannedWave struct {
	WavePlan
	Size    int
	ByBoard []DeviceCount
	Sample  []DeviceID
}

// A PlannedImage is an image and how many devices are to get it.
type PlannedImage struct {
	Image Image
	Count int
}

// A PlannedConflict is another campaign that has part of the audience.
type PlannedConflict struct {
	Campaign uuid.UUID
	Name     string
	Waiting  int // these can be taken over
	Active   int // these cannot
	Sample   []DeviceID
}

// A PlanWarning is something to think of before the start, by a stable code:
// "board_not_stated", "unsigned", "single_wave", "no_window", ...
type PlanWarning struct {
	Code   string
	Detail string
}

// DryRun plans without keeping anything.
func (s *Campaigns) DryRun(ctx context.Context, by Actor, p CampaignPlan) (DryRun, error) {
	return DryRun{}, errNotBuilt
}

// Create keeps a plan, with the audience as it is now, as a draft.
func (s *Campaigns) Create(ctx context.Context, by Actor, p CampaignPlan) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Edit replaces the plan of a campaign that was not started, and resolves its
// audience again; an approval ends. Of one that runs, only pace, windows,
// thresholds and the end can change, and if it was approved, only be tightened.
func (s *Campaigns) Edit(ctx context.Context, by Actor, id uuid.UUID, p CampaignPlan) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Start starts a draft, or asks for its approval if it needs one.
func (s *Campaigns) Start(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Approve gives a second person's word for the plan with this digest. A
// campaign that waits for it starts.
func (s *Campaigns) Approve(ctx context.Context, by Actor, id uuid.UUID, digest string) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Deny refuses to approve, with a reason.
func (s *Campaigns) Deny(ctx context.Context, by Actor, id uuid.UUID, reason string) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Discard ends a campaign that was not started.
func (s *Campaigns) Discard(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Pause stops dispatching; what is in flight goes on.
func (s *Campaigns) Pause(ctx context.Context, by Actor, id uuid.UUID, reason string) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Resume goes on with a paused campaign.
func (s *Campaigns) Resume(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Advance opens the next wave: past a gate, or without waiting for the rest of
// the open wave.
func (s *Campaigns) Advance(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Abort ends a campaign: links of attempts under way are revoked; devices that
// have downloaded run to their natural end. rollback then takes the devices
// that were updated back.
func (s *Campaigns) Abort(ctx context.Context, by Actor, id uuid.UUID, rollback bool) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// Retry queues devices again that failed; no states means all failures, no
// devices means all of them. It returns how many.
func (s *Campaigns) Retry(ctx context.Context, by Actor, id uuid.UUID, states []DeploymentState, devices []DeviceID) (Campaign, int, error) {
	return Campaign{}, 0, errNotBuilt
}

// Rollback makes a campaign that takes every device that this one updated back
// to the build it had before, and starts it unless it needs approval.
func (s *Campaigns) Rollback(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// PullNow reboots the online devices that wait for a boot poll.
func (s *Campaigns) PullNow(ctx context.Context, by Actor, id uuid.UUID) (Campaign, error) {
	return Campaign{}, errNotBuilt
}

// A FirmwareOutlook answers "why is this device not updating?".
type FirmwareOutlook struct {
	Deployment *Deployment // its latest; nil if it has none
	Campaign   *Campaign
	// Hindrance is what it waits for now; "" if nothing, or if there is no deployment.
	Hindrance  Hindrance
	Until      *time.Time // when the hindrance ends by itself, if that is known
	Quarantine *Quarantine
	// Newer are released releases with an image that would fit and is not the running build.
	Newer []Release
}

// Outlook says what is to be expected of a device's firmware.
func (s *Campaigns) Outlook(ctx context.Context, device DeviceID) (FirmwareOutlook, error) {
	return FirmwareOutlook{}, errNotBuilt
}
