package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
)

// DeploymentView is a device's part in a campaign.
type DeploymentView struct {
	DeviceID      fleet.DeviceID           `json:"device_id"`
	CampaignID    uuid.UUID                `json:"campaign_id" format:"uuid"`
	Board         string                   `json:"board"`
	Wave          *int                     `json:"wave" doc:"Counted from 0; null if it was left out from the start"`
	State         campaign.DeploymentState `json:"state" enum:"pending,queued,offered,dispatching,sent,ambiguous,downloading,downloaded,rebooting,booted,verifying,succeeded,failed,timed_out,rolled_back,wrong_build,unhealthy,rejected,skipped,canceled,expired,aborted,removed"`
	Attempts      int                      `json:"attempts" doc:"Attempts begun so far"`
	Failures      int                      `json:"failures" doc:"Attempts that failed; max_attempts bounds these"`
	FailureClass  *campaign.FailureClass   `json:"failure_class" enum:"download,timeout,busy,image,rejected,rolled_back,wrong_build,unhealthy"`
	Reason        string                   `json:"reason" doc:"Why it failed, or what it waits for"`
	ReasonCode    string                   `json:"reason_code" doc:"Reason code of reason; empty if there is none" example:"download_stalled"`
	ReasonParams  map[string]any           `json:"reason_params" doc:"Parameters of the code: text, whole numbers, or a code with its own. Names end in _ms, _bytes and _at"`
	Skip          *firmware.SkipReason     `json:"skip" doc:"Why it was left out"`
	Late          bool                     `json:"late" doc:"It succeeded after the campaign had given up on it"`
	Image         string                   `json:"image" doc:"SHA-256; empty if the release has no image for the device"`
	ImageSize     int64                    `json:"image_size"`
	BytesSent     int64                    `json:"bytes_sent" doc:"Of the current attempt"`
	Percent       *int                     `json:"percent" doc:"Progress that the device reports, 0 to 100; null if it reports none, like stock firmware"`
	ToVersion     string                   `json:"to_version"`
	ToELFSHA256   string                   `json:"to_elf_sha256"`
	FromVersion   string                   `json:"from_version"`
	FromELFSHA256 string                   `json:"from_elf_sha256"`
	Force         bool                     `json:"force" doc:"The version is not newer than what it runs"`
	Reconnects    int                      `json:"reconnects" doc:"While the device is watched"`
	NotBefore     *time.Time               `json:"not_before" doc:"It waits until this time"`
	Deadline      *time.Time               `json:"deadline" doc:"When the current step times out"`
	CreatedAt     time.Time                `json:"created_at"`
	UpdatedAt     time.Time                `json:"updated_at"`
	SentAt        *time.Time               `json:"sent_at"`
	FinishedAt    *time.Time               `json:"finished_at"`
	Evidence      []observedView           `json:"evidence" nullable:"false" doc:"Observations, oldest first; in lists only the latest 100"`
}

type observedView struct {
	At           time.Time                `json:"at"`
	Kind         fleet.EvidenceKind       `json:"kind"`
	Detail       string                   `json:"detail"`
	DetailCode   string                   `json:"detail_code" doc:"Reason code of detail; empty if there is none"`
	DetailParams map[string]any           `json:"detail_params" doc:"Parameters of the code"`
	Attempt      int                      `json:"attempt"`
	From         campaign.DeploymentState `json:"from"`
	To           campaign.DeploymentState `json:"to" doc:"Same as from if nothing changed"`
}

func observed(e campaign.DeploymentEvent) observedView {
	return observedView{At: utc(e.At), Kind: e.Kind, Detail: because(e.Reason), DetailCode: e.Reason.Code,
		DetailParams: paramsOf(e.Reason), Attempt: e.Attempt, From: e.From, To: e.To}
}

func deployment(d campaign.Deployment, events []campaign.DeploymentEvent) DeploymentView {
	v := DeploymentView{DeviceID: d.Device, CampaignID: d.Campaign, Board: d.Board, State: d.State, Attempts: d.Attempt,
		Failures:     d.Failures,
		FailureClass: orNil(d.Class), Reason: because(d.Reason), ReasonCode: d.Reason.Code,
		ReasonParams: paramsOf(d.Reason), Skip: orNil(d.Skip), Late: d.Late, Image: d.Image,
		ImageSize: d.ImageSize,
		BytesSent: d.BytesSent, Percent: d.Percent, ToVersion: d.ToVersion, ToELFSHA256: d.TargetELF,
		FromVersion: d.FromVersion, FromELFSHA256: d.FromELF,
		Force: d.Force, Reconnects: d.Reconnects, NotBefore: utcOrNil(d.NotBefore), Deadline: utcOrNil(d.Deadline),
		CreatedAt: utc(d.CreatedAt), UpdatedAt: utc(d.UpdatedAt), SentAt: utcOrNil(d.SentAt),
		FinishedAt: utcOrNil(d.FinishedAt),
		Evidence:   viewed(events, observed)}
	if d.Wave >= 0 {
		v.Wave = &d.Wave
	}
	return v
}

// outlookView is the reason why a device is not updating.
type outlookView struct {
	Deployment  *DeploymentView       `json:"deployment" doc:"Its latest deployment"`
	Campaign    *CampaignItem         `json:"campaign" doc:"That campaign"`
	BlockReason *campaign.BlockReason `json:"hindrance" example:"window_closed" doc:"What it is waiting for now"`
	Until       *time.Time            `json:"until" doc:"When that ends automatically, if known"`
	Quarantine  *quarantineView       `json:"quarantine"`
	Hold        *holdView             `json:"hold" doc:"Campaigns leave the device out until this ends"`
	Newer       []newerView           `json:"newer" nullable:"false" doc:"Releases with a matching image that it does not run, regardless of a hold"`
	RolledBack  []rolledBackView      `json:"rolled_back" nullable:"false" doc:"Newer releases with a matching image that the device installed but rolled back: offer them only as a deliberate second try"`
	Misfits     []misfitView          `json:"misfits" nullable:"false" doc:"Newer releases with an image for its board that does not fit; at most 3"`
	Failed      []failedView          `json:"failed" nullable:"false" doc:"Its latest failed deployments, one for each build that it does not run; at most 3"`
}

// TransformSchema marks the objects that may be null.
func (outlookView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "deployment", "campaign", "quarantine", "hold")
}

type newerView struct {
	ReleaseID uuid.UUID `json:"release_id" format:"uuid"`
	Version   string    `json:"version"`
}

type rolledBackView struct {
	ReleaseID  uuid.UUID  `json:"release_id" format:"uuid"`
	Version    string     `json:"version"`
	CampaignID uuid.UUID  `json:"campaign_id" format:"uuid"`
	FinishedAt *time.Time `json:"finished_at"`
}

type misfitView struct {
	ReleaseID    uuid.UUID           `json:"release_id" format:"uuid"`
	Version      string              `json:"version"`
	Skip         firmware.SkipReason `json:"skip" doc:"Why, as in a report of which devices fit"`
	Reason       string              `json:"reason"`
	ReasonCode   string              `json:"reason_code" doc:"Reason code of reason; empty if there is none"`
	ReasonParams map[string]any      `json:"reason_params" doc:"Parameters of the code"`
}

type failedView struct {
	CampaignID   uuid.UUID                `json:"campaign_id" format:"uuid"`
	ToVersion    string                   `json:"to_version"`
	State        campaign.DeploymentState `json:"state"`
	Reason       string                   `json:"reason"`
	ReasonCode   string                   `json:"reason_code" doc:"Reason code of reason; empty if there is none"`
	ReasonParams map[string]any           `json:"reason_params" doc:"Parameters of the code"`
	FinishedAt   *time.Time               `json:"finished_at"`
}

func outlook(o campaign.Outlook, events []campaign.DeploymentEvent) outlookView {
	v := outlookView{BlockReason: orNil(o.BlockReason), Until: utcOrNil(o.Until),
		Newer: viewed(o.Newer, func(r firmware.Release) newerView { return newerView{r.ID, r.Version} })}
	v.RolledBack = viewed(o.RolledBack, func(r campaign.RolledBackRelease) rolledBackView {
		return rolledBackView{r.Release.ID, r.Release.Version, r.Deployment.Campaign, utcOrNil(r.Deployment.FinishedAt)}
	})
	v.Misfits = viewed(o.Misfits, func(m campaign.Misfit) misfitView {
		return misfitView{m.Release.ID, m.Release.Version, m.Skip, because(m.Reason), m.Reason.Code, paramsOf(m.Reason)}
	})
	v.Failed = viewed(o.Failed, func(d campaign.Deployment) failedView {
		return failedView{d.Campaign, d.ToVersion, d.State, because(d.Reason), d.Reason.Code, paramsOf(d.Reason),
			utcOrNil(d.FinishedAt)}
	})
	v.Hold = hold(o.Hold)
	if o.Deployment != nil {
		v.Deployment = ptr(deployment(*o.Deployment, events))
	}
	if o.Campaign != nil {
		v.Campaign = ptr(campaignItem(*o.Campaign))
	}
	if o.Quarantine != nil {
		v.Quarantine = ptr(quarantine(*o.Quarantine))
	}
	return v
}

type quarantineView struct {
	DeviceID     fleet.DeviceID `json:"device_id"`
	Reason       string         `json:"reason"`
	ReasonCode   string         `json:"reason_code" doc:"Reason code of reason"`
	ReasonParams map[string]any `json:"reason_params" doc:"Parameters of the code"`
	Since        time.Time      `json:"since"`
	Until        time.Time      `json:"until" doc:"It ends automatically at this time"`
}

func quarantine(q campaign.Quarantine) quarantineView {
	return quarantineView{DeviceID: q.Device, Reason: because(q.Reason), ReasonCode: q.Reason.Code,
		ReasonParams: paramsOf(q.Reason), Since: utc(q.Since), Until: utc(q.Until)}
}
