package ui

import (
	"cmp"
	"context"
	"io"
	"strings"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// because returns a reason in the language of the page and in the viewer's zone, for text outside
// of elements.
func because(ctx context.Context, r fleet.Reason) string { return i18n.Unmarked(reasonText(ctx, r)) }

// reasonText is because with its foreign parts marked, for [phrase].
func reasonText(ctx context.Context, r fleet.Reason) string {
	switch r.Code {
	case fleet.PresenceConnected: // a program has no address
		if address, _ := r.Params["address"].(string); address == "" {
			return t(ctx, "device.connected")
		}
	case campaign.ReasonDeviceReported: // foreign text: shown in quotation marks
		return t(ctx, "campaign.device_says", "words", foreignParam(r, "detail"))
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
		return t(ctx, "campaign.job.failed", "why", cmp.Or(why(ctx, code), mark(code)),
			"words", foreignParam(r, "detail"))
	}
	return i18n.BecauseMarked(page(ctx).Lang, page(ctx).Zone, "reason.", r)
}

// problemText returns a refusal's code that is shown as a fact, in the language of the page, with
// its foreign parts marked.
func problemText(ctx context.Context, r fleet.Reason) string {
	return i18n.ErrorMarked(page(ctx).Lang, page(ctx).Zone, &fleet.Error{Code: r.Code, Params: r.Params})
}

func foreignParam(r fleet.Reason, name string) string {
	text, _ := r.Params[name].(string)
	return mark(text)
}

// phrase renders a text with marked foreign parts.
func phrase(text string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		var b strings.Builder
		for _, p := range i18n.Pieces(text) {
			if p.Foreign {
				b.WriteString(`<span class="foreign">` + templ.EscapeString(p.Text) + `</span>`)
			} else {
				b.WriteString(templ.EscapeString(p.Text))
			}
		}
		_, err := io.WriteString(w, b.String())
		return err
	})
}

// mark marks text as foreign within one of the console's texts.
func mark(text string) string { return i18n.Mark(text) }
