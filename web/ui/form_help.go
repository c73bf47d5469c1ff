package ui

import (
	"context"
	"io"
	"strings"

	"github.com/a-h/templ"
)

// formLinks are the pages of the console that help to fill in a form, by the name of its help: the
// key of the link's text, and the address.
var formLinks = map[string][2]string{
	"alert_settings": {"webhooks.title", PathWebhooks},
	"fanout":         {"help.query", PathHelp},
	"flash_build":    {"firmware.images", PathImages},
	"image_upload":   {"flasher.page", PathFlash},
	"import":         {"nav.devices", PathDevices},
	"name":           {"places.title", PathPlaces},
	"operator":       {"help.query", PathHelp},
	"policy":         {"policy.try", PathPolicies + "#try"},
	"rule":           {"claim.waiting", PathClaim},
	"schedule":       {"help.query", PathHelp},
	"silence":        {"help.query", PathHelp},
	"token":          {"policy.title", PathPolicies},
	"upstream":       {"upstreams.match", PathUpstreams + "#match"},
	"webhook":        {"help.query", PathHelp},
}

// helpParagraphs returns the sentences of a help; each is a line of its message.
func helpParagraphs(ctx context.Context, name string) []string {
	return strings.Split(t(ctx, "help.form."+name), "\n")
}

// withCode renders one of the console's texts with its examples, which are between backticks.
func withCode(text string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		var b strings.Builder
		for i, part := range strings.Split(text, "`") {
			if i%2 == 1 {
				b.WriteString("<code>" + templ.EscapeString(part) + "</code>")
			} else {
				b.WriteString(templ.EscapeString(part))
			}
		}
		_, err := io.WriteString(w, b.String())
		return err
	})
}
