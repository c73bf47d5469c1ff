package ui

import (
	"context"
	"encoding/json"
	"strings"

	"fleetd/web/i18n"
)

// head is what the frame needs to know of its page.
type head struct {
	Title  string // in the page's language
	Crumbs []link // the way here, without the page itself
	Here   string // short title at the end of the way; "" is Title
	Events string // address of the live stream; "" for none
	Script string // name of a script that this page alone needs
	Charts bool   // may need the chart library, which the script fetches once a chart comes into view
}

type link struct{ Text, URL string }

// here is what the page is called at the end of its breadcrumbs.
func (h head) here() string {
	if h.Here != "" {
		return h.Here
	}
	return h.Title
}

// A navItem is a place of the console. Minor ones stand in the account menu on
// a phone, whose bar has room for five.
type navItem struct {
	icon, key, path string
	minor           bool
}

var nav = []navItem{
	{"overview", "nav.overview", PathHome, false},
	{"devices", "nav.devices", PathDevices, false},
	{"calls", "nav.calls", PathCalls, false},
	{"fanouts", "nav.fanouts", PathFanOuts, true},
	{"approvals", "approvals.title", PathApprovals, false},
	{"firmware", "firmware.nav", PathFirmware, true},
	{"campaigns", "campaign.title", PathCampaigns, false},
	{"settings", "nav.settings", PathSettings, true},
}

// current reports whether the page lies under the item, as aria-current has it.
func (n navItem) current(ctx context.Context) string {
	here := path(ctx)
	switch {
	case here == n.path, n.path == PathDevices && here == PathClaim:
		return "page"
	case n.path != PathHome && strings.HasPrefix(here, n.path+"/"):
		return "true"
	}
	return "false"
}

func path(ctx context.Context) string {
	if u := page(ctx).URL; u != nil {
		return u.Path
	}
	return ""
}

// here is the address of the page itself, to come back to.
func here(ctx context.Context) string {
	if u := page(ctx).URL; u != nil {
		return u.RequestURI()
	}
	return PathHome
}

// htmxConfig switches off all that the policy forbids, and lets answers with
// an error status be shown: they are pages that say what went wrong.
const htmxConfig = `{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,` +
	`"selfRequestsOnly":true,"historyCacheSize":0,"refreshOnHistoryMiss":true,"scrollBehavior":"auto",` +
	`"responseHandling":[{"code":"204","swap":false},{"code":"[23]..","swap":true},{"code":"[45]..","swap":true,"error":true}]}`

// scriptTexts are the messages the script fills in, as JSON.
func scriptTexts(ctx context.Context) string {
	texts := make(map[string][2]string, len(i18n.JSKeys))
	for _, key := range i18n.JSKeys {
		texts[key] = [2]string{i18n.Raw(page(ctx).Lang, key, 1), i18n.Raw(page(ctx).Lang, key, 2)}
	}
	b, _ := json.Marshal(texts) // strings always marshal
	return string(b)
}

func htmlTheme(ctx context.Context) string {
	if th := page(ctx).Theme; th == "light" || th == "dark" {
		return th
	}
	return "auto"
}

func pageTitle(ctx context.Context, title string) string {
	if title == "" {
		return t(ctx, "app.name")
	}
	return title + " · " + t(ctx, "app.name")
}

func pressed(on bool) string {
	if on {
		return "true"
	}
	return "false"
}
