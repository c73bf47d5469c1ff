package ui_test

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"fleetd/web/i18n"
)

// TestChinesePagesHoldNoEnglish checks the sample pages in the same way as the browser test
// chinese.test.mjs checks a live fleet: the samples have states and reasons that a simulated fleet
// rarely reaches.
func TestChinesePagesHoldNoEnglish(t *testing.T) {
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			var buf bytes.Buffer
			if err := s.page.Render(pageContext(i18n.Chinese, s), &buf); err != nil {
				t.Fatal(err)
			}
			doc, err := html.Parse(&buf)
			if err != nil {
				t.Fatal(err)
			}
			for n := range doc.Descendants() {
				if n.Type != html.TextNode || written(n) {
					continue
				}
				for _, fault := range []*regexp.Regexp{englishSentence, programName, noSpace} {
					if found := fault.FindString(dates.ReplaceAllString(n.Data, "")); found != "" {
						t.Errorf("%q in <%s class=%q>", found, n.Parent.Data, attr(n.Parent, "class"))
					}
				}
			}
		})
	}
}

// englishSentence is four words in a row.
var englishSentence = regexp.MustCompile(`[A-Za-z][A-Za-z'’]+(?:[,;:]?\s+[A-Za-z][A-Za-z'’]+){3,}`)

// programName is the programs' name for a row of a plan, or for a role.
var programName = regexp.MustCompile(`[a-z_]+\[\d+\]|(需要|角色是|角色为) ?(viewer|operator|admin)\b`)

// noSpace is a Latin word or a number next to a Chinese character without a space. Dates have no
// spaces.
var (
	noSpace = regexp.MustCompile(`\p{Han}[A-Za-z0-9].{0,12}|.{0,12}[A-Za-z0-9]\p{Han}`)
	dates   = regexp.MustCompile(`(\d+年)?\d+月(\d+日)?`)
)

// TestChineseFaultsAreFound checks that the patterns find faults.
func TestChineseFaultsAreFound(t *testing.T) {
	for text, fault := range map[string]*regexp.Regexp{"waves[0].percent 为 0": programName, "需要 operator 角色": programName,
		"音量须为0": noSpace, "volume须为 0": noSpace, "设备 the device went away": englishSentence} {
		if !fault.MatchString(text) {
			t.Errorf("%q is not found", text)
		}
	}
	if good := dates.ReplaceAllString("2026年8月2日 06:00，操作员的角色是查看者，第 1 批", ""); noSpace.MatchString(good) ||
		programName.MatchString(good) {
		t.Errorf("%q is a fault", good)
	}
}

// written reports whether devices, operators or programs wrote the text.
func written(n *html.Node) bool {
	for p := range n.Ancestors() {
		if slices.Contains([]string{"code", "pre", "kbd", "samp", "svg", "script", "style", "title", "textarea", "option",
			"datalist"}, p.Data) || attr(p, "lang") == "en" || slices.Contains(strings.Fields(attr(p, "class")), "foreign") {
			return true
		}
	}
	return false
}
