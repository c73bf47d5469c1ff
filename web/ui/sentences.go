package ui

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"

	"fleetd/fleet/campaign"
	"fleetd/web/i18n"
)

// A sentence is one that fleetd itself puts on record, in English: the English
// text of a message said.*, its placeholders filled.
type sentence struct {
	name  string
	form  *regexp.Regexp
	names []string
	fixed int // letters that are not filled in
}

var placeholder = regexp.MustCompile(`\\\{([a-z]+)\\\}`)

// sentences are all of them, those with most words of their own first: one may
// be the beginning of another.
var sentences = sync.OnceValue(func() (all []sentence) {
	for _, key := range i18n.Keys() {
		if name, ok := strings.CutPrefix(key, "said."); ok {
			all = append(all, readSentence(name, i18n.Raw(i18n.English, key, 2)))
		}
	}
	slices.SortStableFunc(all, func(a, b sentence) int { return cmp.Compare(b.fixed, a.fixed) })
	return all
})

func readSentence(name, text string) sentence {
	form := regexp.QuoteMeta(text)
	s := sentence{name: name, fixed: len(placeholder.ReplaceAllString(form, ""))}
	for _, m := range placeholder.FindAllStringSubmatch(form, -1) {
		s.names = append(s.names, m[1])
	}
	s.form = regexp.MustCompile(`^(?s:` + placeholder.ReplaceAllString(form, "(.+?)") + `)$`)
	return s
}

// said is a sentence of fleetd's in the language of the page, its states in
// words. What is none of them stays as it is.
func said(ctx context.Context, text string) string {
	for _, s := range sentences() {
		if m := s.form.FindStringSubmatch(text); m != nil {
			return s.in(ctx, m[1:])
		}
	}
	return text
}

// in fills the sentence with what was found in it, of which a few are
// sentences, or states, themselves.
func (s sentence) in(ctx context.Context, found []string) string {
	args := make([]any, 0, 2*len(found))
	for i, name := range s.names {
		v := found[i]
		switch {
		case name == "outcome" && slices.Contains(campaign.DeploymentStates, campaign.DeploymentState(v)):
			v = t(ctx, "campaign.dep."+v)
		case name == "outcome", name == "scope", name == "limit":
			v = said(ctx, v)
		}
		args = append(args, name, v)
	}
	return t(ctx, "said."+s.name, args...)
}
