package ui

import (
	"cmp"
	"context"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// because writes a reason in the language of the page and in the zone of the reader's clock.
func because(ctx context.Context, r fleet.Reason) string {
	switch r.Code {
	case campaign.ReasonDeviceReported: // foreign text: shown in quotation marks
		return t(ctx, "campaign.device_says", "words", r.Params["detail"])
	case campaign.ReasonSkippedFor:
		if skip, _ := r.Params["skip"].(string); i18n.Has("campaign.skip." + skip) {
			return skipText(ctx, firmware.SkipReason(skip))
		}
	case campaign.ReasonJobAccepted:
		return t(ctx, "campaign.job.accepted")
	case campaign.ReasonJobDone:
		return t(ctx, "campaign.job.done")
	case campaign.ReasonJobProgress:
		percent, _ := r.Params["percent"].(int64)
		return t(ctx, "campaign.job.progress", "p", percentText(ctx, float64(percent)/100))
	case campaign.ReasonJobFailed:
		code, _ := r.Params["error"].(string)
		return t(ctx, "campaign.job.failed", "why", cmp.Or(why(ctx, code), code), "words", r.Params["detail"])
	}
	return i18n.Because(page(ctx).Lang, page(ctx).Zone, "reason.", r)
}
