package ui

import (
	"context"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/i18n"
)

// PathFind finds devices, campaigns, calls and pages: GET q.
const PathFind = "/find"

// A FindPage is the results of a search: GET [PathFind]. The dialog of Ctrl-K shows its list.
type FindPage struct {
	Query     string
	Acts      []FoundAct
	Pages     []FoundPage
	Devices   []fleet.Device
	More      bool // more devices match
	Campaigns []campaign.Campaign
	Records   []FoundRecord
}

// A FoundPage is a page of the console, by its key in the catalogue.
type FoundPage struct{ Key, Path string }

// Kinds of [FoundRecord].
const (
	FoundCall     = "call"
	FoundFanOut   = "fanout"
	FoundCampaign = "campaign"
)

// A FoundRecord is the object with a given UUID.
type FoundRecord struct{ Kind, ID, Title string }

func (r FoundRecord) path() string {
	switch r.Kind {
	case FoundCall:
		return CallPath(r.ID)
	case FoundFanOut:
		return FanOutPath(r.ID)
	}
	return CampaignPath(r.ID)
}

func (r FoundRecord) icon() string {
	switch r.Kind {
	case FoundCall:
		return "calls"
	case FoundFanOut:
		return "fanouts"
	}
	return "campaigns"
}

func (v FindPage) empty() bool {
	return len(v.Acts)+len(v.Pages)+len(v.Devices)+len(v.Campaigns)+len(v.Records) == 0
}

// findable are the pages without an entry in the navigation.
var findable = []pageLink{{"fanout.new", PathFanOutNew}, {"campaign.new", PathCampaignNew}, {"claim.action", PathClaim},
	{"rules.title", PathRules}, {"firmware.images", PathImages}, {"flasher.page", PathFlash}, {"help.title", PathHelp}, {"api.title", PathAPI},
	{"account.title", PathAccount}}

// FindPages returns the pages whose name contains the text, in any language: an operator with a
// Chinese console may type a name from an English colleague. Without a text it returns the pages of
// the navigation.
func FindPages(ctx context.Context, text string) []FoundPage {
	var all []pageLink
	for _, p := range nav {
		all = append(all, shownPages(ctx, p.pages)...)
	}
	if text != "" {
		all = append(all, findable...)
	}
	var found []FoundPage
	for _, l := range all {
		for _, lang := range i18n.Langs {
			if strings.Contains(strings.ToLower(i18n.Text(lang, l.key)), strings.ToLower(text)) {
				found = append(found, FoundPage{l.key, l.path})
				break
			}
		}
	}
	return found
}
