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

// TestChinesePagesHoldNoEnglish looks at the sample pages as the browser test
// chinese.test.mjs looks at a live fleet: the samples have the states and
// reasons that a simulated fleet rarely comes to.
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
				if english := englishSentence.FindString(n.Data); english != "" {
					t.Errorf("%q in <%s class=%q>", english, n.Parent.Data, attr(n.Parent, "class"))
				}
			}
		})
	}
}

// englishSentence is four words in a row.
var englishSentence = regexp.MustCompile(`[A-Za-z][A-Za-z'’]+(?:[,;:]?\s+[A-Za-z][A-Za-z'’]+){3,}`)

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
