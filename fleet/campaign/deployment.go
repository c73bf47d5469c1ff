package campaign

import (
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

// DeploymentState is the state of one device's part in a campaign.
//
// pending -> queued -> dispatching -> sent -> downloading -> downloaded -> rebooting ->
// booted -> verifying -> succeeded
//
//	queued -> offered (pull) -> downloading ...
//
// Evidence may skip states forward. A failed attempt that may be repeated returns to queued,
// with [Deployment.NotBefore] set.
type DeploymentState string

const (
	DeploymentPending DeploymentState = "pending" // its wave has not opened
	// Waits for its turn, its window, the device, or the end of a back-off.
	DeploymentQueued      DeploymentState = "queued"
	DeploymentDispatching DeploymentState = "dispatching" // link and intent are stored; the call is about to be written
	DeploymentSent        DeploymentState = "sent"        // the call was written
	DeploymentOffered     DeploymentState = "offered"     // in the answer to a boot poll
	DeploymentAmbiguous   DeploymentState = "ambiguous"   // notified, but nothing was fetched; a fetch may still come
	DeploymentDownloading DeploymentState = "downloading"
	DeploymentDownloaded  DeploymentState = "downloaded" // every byte was sent
	DeploymentRebooting   DeploymentState = "rebooting"  // sent a clean DISCONNECT after the last byte
	DeploymentBooted      DeploymentState = "booted"     // its boot poll named the image
	DeploymentVerifying   DeploymentState = "verifying"  // connected and listed its tools; checks and soak

	DeploymentSucceeded  DeploymentState = "succeeded"
	DeploymentFailed     DeploymentState = "failed"      // download broke, image refused, or device stayed on its old build
	DeploymentTimedOut   DeploymentState = "timed_out"   // a step took too long; Reason names it
	DeploymentRolledBack DeploymentState = "rolled_back" // installed the image, but returned with the old build
	DeploymentWrongBuild DeploymentState = "wrong_build" // returned with neither the image nor the old build
	DeploymentUnhealthy  DeploymentState = "unhealthy"   // runs the image but fails its checks
	DeploymentRejected   DeploymentState = "rejected"    // the device refused
	DeploymentSkipped    DeploymentState = "skipped"     // never dispatched because it did not fit; see Skip
	DeploymentCanceled   DeploymentState = "canceled"    // withdrawn before it was dispatched
	DeploymentExpired    DeploymentState = "expired"     // the campaign ended before its turn
	DeploymentAborted    DeploymentState = "aborted"     // its link was revoked in flight
	DeploymentRemoved    DeploymentState = "removed"     // the device was retired meanwhile
)

// DeploymentStates lists every state, in the order of the funnel, outcomes last.
var DeploymentStates = []DeploymentState{DeploymentPending, DeploymentQueued, DeploymentOffered, DeploymentDispatching,
	DeploymentSent, DeploymentAmbiguous, DeploymentDownloading, DeploymentDownloaded, DeploymentRebooting,
	DeploymentBooted,
	DeploymentVerifying, DeploymentSucceeded, DeploymentFailed, DeploymentTimedOut, DeploymentRolledBack,
	DeploymentWrongBuild, DeploymentUnhealthy, DeploymentRejected, DeploymentSkipped, DeploymentCanceled,
	DeploymentExpired, DeploymentAborted, DeploymentRemoved}

// Final reports whether the state is an outcome.
func (s DeploymentState) Final() bool { return !s.Waiting() && !s.Active() }

// Waiting reports whether the device has not been notified of the image yet.
func (s DeploymentState) Waiting() bool { return s == DeploymentPending || s == DeploymentQueued }

// Active reports whether an attempt is under way. A device has at most one active deployment at
// any time, across all campaigns.
func (s DeploymentState) Active() bool {
	switch s {
	case DeploymentDispatching, DeploymentSent, DeploymentOffered, DeploymentAmbiguous, DeploymentDownloading,
		DeploymentDownloaded, DeploymentRebooting, DeploymentBooted, DeploymentVerifying:
		return true
	}
	return false
}

// InFlight reports whether the deployment counts against a campaign's max_in_flight: the
// upgrade may make the device busy or unreachable.
func (s DeploymentState) InFlight() bool { return s.Active() && s != DeploymentVerifying }

// Failed reports whether the state is an outcome that counts against the campaign. Skipped,
// canceled, expired, aborted and removed devices give no information about the image.
func (s DeploymentState) Failed() bool {
	switch s {
	case DeploymentFailed, DeploymentTimedOut, DeploymentRolledBack, DeploymentWrongBuild, DeploymentUnhealthy,
		DeploymentRejected:
		return true
	}
	return false
}

// Verdict reports whether the state is a success or a failure of the image. Rates are shares of
// verdicts.
func (s DeploymentState) Verdict() bool { return s == DeploymentSucceeded || s.Failed() }

// FailureClass groups failures by the required reaction.
type FailureClass string

const (
	FailureDownload   FailureClass = "download"    // retried: the transfer broke or stalled
	FailureTimeout    FailureClass = "timeout"     // retried: a step took too long
	FailureBusy       FailureClass = "busy"        // retried: the device had no time for the call
	FailureImage      FailureClass = "image"       // the device refused the image after the last byte
	FailureRejected   FailureClass = "rejected"    // the device answered the call with an error
	FailureRolledBack FailureClass = "rolled_back" // the new build did not stay
	FailureWrongBuild FailureClass = "wrong_build"
	FailureUnhealthy  FailureClass = "unhealthy"
)

// FailureClasses lists every class, in display order.
var FailureClasses = []FailureClass{FailureDownload, FailureTimeout, FailureBusy, FailureImage, FailureRejected,
	FailureRolledBack, FailureWrongBuild, FailureUnhealthy}

// Retried reports whether a failed attempt of this class may be repeated automatically.
func (c FailureClass) Retried() bool {
	return c == FailureDownload || c == FailureTimeout || c == FailureBusy
}

// A Deployment is one device's part in a campaign.
type Deployment struct {
	ID       uuid.UUID
	Campaign uuid.UUID
	Device   fleet.DeviceID
	Board    string // at planning, for rates per board
	Wave     int    // 0-based; -1 if skipped at planning
	State    DeploymentState
	Skip     firmware.SkipReason // if skipped
	Late     bool                // succeeded after it had been given up

	Joined      bool   // joined a continuous campaign while it ran: the digest does not cover the device
	Image       string // SHA-256 of its image; "" if skipped without one
	ImageSize   int64
	TargetELF   string
	ToVersion   string
	FromELF     string // build at planning, updated at dispatch
	FromVersion string
	Force       bool // a boot poll must offer it with force because the version is not newer

	Attempt int // attempts begun; the current one has this number
	// Attempts that were made and failed, including the last; [Plan.MaxAttempts] bounds these.
	// Attempts that were never sent do not count.
	Failures   int
	Offers     int // made in answers to boot polls, across all attempts
	Class      FailureClass
	Reason     fleet.Reason // why it failed, or what it waits for: a code of [Reasons]; or why it was skipped
	NotBefore  *time.Time   // queued: back-off or jitter
	Deadline   *time.Time   // active: when the current step times out
	GetAt      *time.Time   // current attempt: first use of its link
	BytesSent  int64        // current attempt
	Percent    *int         // current attempt, as the device reports it; nil without reports
	Booted     bool         // a boot poll named the image: the device runs it
	Baseline   Baseline
	Reconnects int  // verifying: connections lost and restored since
	Away       bool // verifying: not connected
	Checked    bool // verifying: every health check passed
	Probed     bool // the step's request to the device was sent

	CreatedAt  time.Time
	UpdatedAt  time.Time
	SentAt     *time.Time // current attempt
	FinishedAt *time.Time
	// DispatchedAt is when its first attempt began, see [Cohorts]; nil before, and again if the
	// device could not be reached then.
	DispatchedAt *time.Time
	Revision     int64 // of the row
}

// ReportsProgress reports whether the device has sent progress reports in the current attempt,
// as the included firmware does.
func (d *Deployment) ReportsProgress() bool { return d.Percent != nil }

// Link returns the link of the current attempt, without its token.
func (d Deployment) Link() firmware.Link {
	return firmware.Link{Deployment: d.ID, Campaign: d.Campaign, Device: d.Device, Attempt: d.Attempt, Image: d.Image,
		Size: d.ImageSize}
}

// A Baseline is the state of a device before its upgrade, as far as it was known.
type Baseline struct {
	Inventory string            `json:"inventory,omitempty"`
	FreeHeap  int64             `json:"free_heap,omitempty"` // minimum_free_heap_size of the boot poll; 0 if unknown
	Slot      string            `json:"slot,omitempty"`
	Answers   map[string]string `json:"answers,omitempty"` // text of the answer, by index of the health check
}

// A DeploymentEvent is one observation about a deployment, with the resulting transition, if any.
type DeploymentEvent struct {
	ID         uuid.UUID
	Deployment uuid.UUID
	At         time.Time
	Attempt    int
	Kind       fleet.EvidenceKind
	Reason     fleet.Reason    // details of the evidence, or why the attempt is repeated
	From, To   DeploymentState // equal without a transition
}

// A Quarantine excludes a device from all campaigns for a while.
type Quarantine struct {
	Device fleet.DeviceID
	Reason fleet.Reason
	Since  time.Time
	Until  time.Time
}
