package campaign

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// A Filter selects campaigns for a list. Zero fields do not filter.
type Filter struct {
	States  []State
	Release uuid.UUID
	Limit   int
	Cursor  string
}

// A DeploymentFilter selects deployments of one campaign. Zero fields do not filter.
type DeploymentFilter struct {
	Campaign uuid.UUID
	States   []DeploymentState
	Class    FailureClass
	Skip     firmware.SkipReason
	Board    string
	Wave     *int
	Device   fleet.DeviceID
	Limit    int
	Cursor   string // lists are sorted by device
}

// Progress is the state of a campaign's deployments in numbers.
type Progress struct {
	ByState map[DeploymentState]int
	ByWave  []map[DeploymentState]int // by wave number
	// SoakUntil is, by wave number, when the last of the verifying devices has been healthy for
	// long enough; zero if none verifies.
	SoakUntil []time.Time
	ByBoard   map[string]map[DeploymentState]int
	// Reached counts for each step the deployments whose latest attempt has evidence of it or
	// of a later one: planned (all except those skipped at planning), notified, get,
	// downloaded, goodbye, boot_poll, initialize, succeeded.
	Reached  map[FunnelStep]int
	Skipped  []firmware.Misfits // without details and samples; see [firmware.SortMisfits]
	Failures []FailureGroup     // most first
	Late     int                // successes after the deployment had been given up
	// Rate counts the outcomes by minute, for the last hour.
	Rate    []RateBucket
	Cohorts Cohorts // the input of abort rules
}

// A FunnelStep is a step of an upgrade that evidence proves.
type FunnelStep string

// The funnel steps, in order. A deployment counts in every step up to the furthest.
const (
	FunnelPlanned    FunnelStep = "planned"
	FunnelNotified   FunnelStep = "told" // the value is part of REST
	FunnelGet        FunnelStep = "get"
	FunnelDownloaded FunnelStep = "downloaded"
	FunnelGoodbye    FunnelStep = "goodbye"
	FunnelBootPoll   FunnelStep = "boot_poll"
	FunnelInitialize FunnelStep = "initialize"
	FunnelSucceeded  FunnelStep = "succeeded"
)

// FunnelSteps lists the steps in order.
var FunnelSteps = []FunnelStep{FunnelPlanned, FunnelNotified, FunnelGet, FunnelDownloaded, FunnelGoodbye,
	FunnelBootPoll, FunnelInitialize, FunnelSucceeded}

// A FailureGroup is the group of devices that failed in the same way.
type FailureGroup struct {
	State  DeploymentState
	Class  FailureClass
	Reason fleet.Reason // of one of them
	Count  int
	Sample []fleet.DeviceID
}

// A RateBucket counts the outcomes of one minute.
type RateBucket struct {
	At                time.Time
	Succeeded, Failed int
}

// A DeploymentConflict is a waiting or active deployment of a device in another campaign.
type DeploymentConflict struct {
	Device   fleet.DeviceID
	Campaign uuid.UUID
	Name     string // of the campaign
	State    DeploymentState
}

// A DeploymentChange is a deployment to store, with the events that led to it. Its Revision is
// the one it was read with; the stored row gets the next one.
type DeploymentChange struct {
	Deployment Deployment
	Events     []DeploymentEvent
}

// A Dispatch begins an attempt. It has the deployment to store (dispatching or offered, with
// its new attempt) and the link for the attempt.
type Dispatch struct {
	DeploymentChange
	Link firmware.Link
}

// Store stores campaigns, their waves and deployments. Every write returns [fleet.ErrConflict]
// (campaign_changed) if the row changed meanwhile.
type Store interface {
	// CreateCampaign stores a campaign with its waves and deployments.
	CreateCampaign(ctx context.Context, by fleet.Principal, c *Campaign, waves []Wave, targets []Deployment) error
	// ReplanCampaign replaces plan, digest, waves and deployments of a campaign that has not started.
	ReplanCampaign(ctx context.Context, by fleet.Principal, c *Campaign, waves []Wave, targets []Deployment) error
	// ChangeCampaign stores all of c except its devices and their counts, with an audit entry
	// for the action ("campaign.start"; "" writes none), and increments c.Revision.
	ChangeCampaign(ctx context.Context, by fleet.Principal, action string, c *Campaign) error
	Campaign(ctx context.Context, id uuid.UUID) (Campaign, error)
	Campaigns(ctx context.Context, f Filter) (fleet.Page[Campaign], error) // newest first
	OpenCampaigns(ctx context.Context) ([]Campaign, error)                 // [State.Open], oldest first
	Waves(ctx context.Context, campaign uuid.UUID) ([]Wave, error)
	SaveWave(ctx context.Context, w Wave) error
	// PlannedTargets returns the parts of a campaign's deployments that the digest covers, and
	// the deployments that joined it.
	PlannedTargets(ctx context.Context, campaign uuid.UUID) ([]PlannedTarget, error)
	CampaignProgress(ctx context.Context, campaign uuid.UUID) (Progress, error)
	// Cohorts returns the part of CampaignProgress that abort rules use.
	Cohorts(ctx context.Context, campaign uuid.UUID) (Cohorts, error)

	Deployments(ctx context.Context, f DeploymentFilter) (fleet.Page[Deployment], error)
	Deployment(ctx context.Context, campaign uuid.UUID, device fleet.DeviceID) (Deployment, error)
	DeploymentByID(ctx context.Context, id uuid.UUID) (Deployment, error)
	DeploymentEvents(ctx context.Context, deployment uuid.UUID) ([]DeploymentEvent, error) // oldest first
	// EventsOf returns the latest events of several deployments, oldest first.
	EventsOf(ctx context.Context, deployments []uuid.UUID) (map[uuid.UUID][]DeploymentEvent, error)
	DeviceDeployments(ctx context.Context, device fleet.DeviceID, limit int) ([]Deployment, error) // newest first
	// Conflicts returns which of the devices have a deployment that is active, or that waits in
	// an open campaign other than the given one.
	Conflicts(ctx context.Context, except uuid.UUID, devices []fleet.DeviceID) ([]DeploymentConflict, error)
	// Rollbacks returns for each device of a campaign its previous build, from its deployments
	// that reached booted or later.
	Rollbacks(ctx context.Context, campaign uuid.UUID) ([]Deployment, error)
}

// RolloutStore has the methods that the campaign engine needs in addition to [Store].
type RolloutStore interface {
	Store
	firmware.Store
	DevicesByID(ctx context.Context, ids []fleet.DeviceID) ([]fleet.Device, error)
	DeviceIDs(ctx context.Context, q fleet.Query) ([]fleet.DeviceID, error)

	// LiveDeployments returns the queued and active deployments of open campaigns.
	LiveDeployments(ctx context.Context) ([]Deployment, error)
	// OpenWave changes the pending deployments of a wave to queued and returns them. A
	// deployment whose device is active or queued in another open campaign becomes skipped
	// (busy). If the plan supersedes, the waiting deployments in other open campaigns, queued
	// or pending, become canceled instead (superseded).
	OpenWave(ctx context.Context, c *Campaign, wave int, at time.Time) ([]Deployment, error)
	// SaveDeployments stores changes, each with its events or not at all, and returns the ids
	// of those that changed meanwhile and were not stored. The image and the target of a
	// deployment never change. A refused row does not affect the others, and the error is about
	// that row: [fleet.ErrConflict] (device_active) if it would be active while its device is
	// active in another campaign.
	SaveDeployments(ctx context.Context, changes []DeploymentChange) (stale []uuid.UUID, err error)
	// DispatchDeployments stores dispatches and their links in one transaction. It omits and
	// returns those that changed meanwhile, whose campaign is not running, or whose device is
	// active in another campaign.
	DispatchDeployments(ctx context.Context, all []Dispatch) (refused []uuid.UUID, err error)
	// EndWaiting changes all pending and queued deployments of a campaign to a final state,
	// with one event each, and returns how many. With untriedOnly it excludes those that were
	// dispatched before and wait for another attempt.
	EndWaiting(ctx context.Context, campaign uuid.UUID, to DeploymentState, kind fleet.EvidenceKind, reason fleet.Reason,
		at time.Time, untriedOnly bool) (int, error)
	// AddTargets adds deployments to a running continuous campaign. It omits devices that
	// already have one in it.
	AddTargets(ctx context.Context, campaign uuid.UUID, targets []Deployment) (int, error)
	// Requeue changes final deployments of a campaign back to queued for a retry. Without
	// states it covers all failures, without devices all devices. It excludes deployments that
	// succeeded or were skipped at planning.
	Requeue(ctx context.Context, by fleet.Principal, campaign uuid.UUID, states []DeploymentState,
		devices []fleet.DeviceID,
		at time.Time) (int, error)
	// RevokeLinks revokes the links of deployments. No GET is served after it has returned.
	RevokeLinks(ctx context.Context, deployments []uuid.UUID, at time.Time) error
	// FailedAttempts counts a device's failed attempts since the given time, in all campaigns.
	FailedAttempts(ctx context.Context, device fleet.DeviceID, since time.Time) (int, error)
	Quarantine(ctx context.Context, q Quarantine) error
	// OffersSince counts the offers made to devices since the given time.
	OffersSince(ctx context.Context, devices []fleet.DeviceID, since time.Time) (map[fleet.DeviceID]int, error)
}

// QuarantineStore stores the devices that failed too often.
type QuarantineStore interface {
	Quarantines(ctx context.Context, now time.Time) ([]Quarantine, error) // current ones, latest first
	QuarantineOf(ctx context.Context, device fleet.DeviceID, now time.Time) (*Quarantine, error)
	QuarantinesOf(ctx context.Context, devices []fleet.DeviceID, now time.Time) (map[fleet.DeviceID]Quarantine, error)
	ClearQuarantine(ctx context.Context, by fleet.Principal, device fleet.DeviceID) error
}
