package ui

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"fleetd/web/i18n"
)

// head is the frame's data about its page.
type head struct {
	Title  string // of the document, in the page's language; differs between the tabs of one object
	Crumbs []link // the path to the page, without the page itself
	Events string // address of the live stream; "" for none
	Script string // name of a script that this page alone needs
	Style  string // a style sheet of the page
}

type link struct{ Text, URL string }

// A navEntry is an entry of the navigation: a page, or a group of pages with links to each other below
// the bar. The entry links to the first.
type navEntry struct {
	icon, key string
	pages     []pageLink
	more      []string // addresses of its other pages
}

type pageLink struct{ key, path string }

var nav = []navEntry{
	{"overview", "nav.overview", []pageLink{{"nav.overview", PathHome}, {"changes.nav", PathChanges}, {"dashboards.title", PathDashboards}},
		[]string{PathAlerts}},
	{"devices", "nav.devices", []pageLink{{"nav.devices", PathDevices}, {"places.title", PathPlaces}, {"catalogue.title", PathTools}},
		[]string{PathClaim, PathRules, PathBulk, PathImport, PathHistory, PathPictures}},
	{"calls", "nav.activity", []pageLink{{"nav.calls", PathCalls}, {"nav.fanouts", PathFanOuts},
		{"schedules.title", PathSchedules},
		{"conversation.title", PathConversations}, {"approvals.title", PathApprovals}, {"audit.title", PathAudit}}, nil},
	{"firmware", "nav.releases", []pageLink{{"firmware.nav", PathFirmware}, {"campaign.title", PathCampaigns}},
		[]string{PathFlash}},
	{"settings", "nav.settings", []pageLink{{"nav.general", PathSettings}, {"policy.title", PathPolicies},
		{"upstreams.title", PathUpstreams}, {"plugins.title", PathPlugins}, {"endpoints.title", PathEndpoints},
		{"alerts.title", PathAlertSettings}, {"webhooks.title", PathWebhooks}, {"log_streams.title", PathLogStreams},
		{"redaction.title", PathRedaction},
		{"serials.title", PathSerials}, {"keys.title", PathKeys},
		{"cluster.title", PathCluster}, {"settings.system", PathSystem}}, nil},
}

// adminPages are shown only to admins.
var adminPages = []string{PathPlugins, PathEndpoints, PathWebhooks, PathLogStreams, PathRedaction, PathSystem}

// shownPages returns the pages that the viewer may see.
func shownPages(ctx context.Context, pages []pageLink) []pageLink {
	return slices.DeleteFunc(slices.Clone(pages), func(l pageLink) bool {
		return slices.Contains(adminPages, l.path) && !page(ctx).Admin || l.path == PathCluster && !page(ctx).InCluster
	})
}

func (p navEntry) path() string { return p.pages[0].path }

// current returns the aria-current of the entry: whether the page is one of its pages or below one.
func (p navEntry) current(ctx context.Context) string {
	if path(ctx) == p.path() {
		return "page"
	}
	for _, l := range p.pages {
		if l.above(path(ctx)) {
			return "true"
		}
	}
	for _, above := range p.more {
		if (pageLink{path: above}).above(path(ctx)) {
			return "true"
		}
	}
	return "false"
}

// above reports whether here is the page or below it.
func (l pageLink) above(here string) bool {
	return here == l.path || l.path != PathHome && strings.HasPrefix(here, l.path+"/")
}

func (l pageLink) current(ctx context.Context) string {
	if path(ctx) == l.path {
		return "page"
	}
	return "false"
}

// siblings returns the pages of the page's entry. A page further down has none: its breadcrumbs
// link back.
func siblings(ctx context.Context) []pageLink {
	for _, p := range nav {
		if len(p.pages) > 1 && slices.ContainsFunc(p.pages, func(l pageLink) bool { return l.path == path(ctx) }) {
			return shownPages(ctx, p.pages)
		}
	}
	return nil
}

func path(ctx context.Context) string {
	if u := page(ctx).URL; u != nil {
		return u.Path
	}
	return ""
}

// here returns the address of the page itself, to return to.
func here(ctx context.Context) string {
	if u := page(ctx).URL; u != nil {
		return u.RequestURI()
	}
	return PathHome
}

// htmxConfig disables all features that the policy forbids, and shows responses with an error
// status: they are pages that explain the error.
const htmxConfig = `{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,` +
	`"selfRequestsOnly":true,"historyCacheSize":0,"refreshOnHistoryMiss":true,"scrollBehavior":"auto",` +
	`"responseHandling":[{"code":"204","swap":false},{"code":"[23]..","swap":true},{"code":"[45]..","swap":true,"error":true}]}`

// scriptTexts returns the messages that the script fills in, as JSON.
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
		title = t(ctx, "app.name")
	} else {
		title += " · " + t(ctx, "app.name")
	}
	if n := page(ctx).Alerts.Open; n > 0 { // the script updates the count
		title = "(" + strconv.Itoa(n) + ") " + title
	}
	return title
}

func pressed(on bool) string {
	if on {
		return "true"
	}
	return "false"
}
