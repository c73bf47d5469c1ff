package ui_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/a-h/templ/parser/v2"
	"github.com/a-h/templ/parser/v2/visitor"
	"golang.org/x/net/html"

	"fleetd/web/i18n"
)

// withoutHelp are the forms with several fields that need no help, by the pattern of their address,
// with the reason.
var withoutHelp = map[string]string{
	`^/sign-in$`:                              "name and password",
	`^/campaigns/[^/]+/abort$`:                "explains itself where it opens",
	`^/devices/[^/]+/tools/`:                  "the tool describes itself, above the form",
	`^/bulk$ all,d`:                           "selects rows of the list",
	`^/firmware/(images|releases)/.*/revoke$`: "explains itself where it opens",
}

// notOnSamples are templates whose forms with several fields need none, and are on no sample page.
var notOnSamples = map[string]string{
	"device_logs.templ": "the level of a log: says itself what it does",
	"tools.templ":       "a device that is offline or in a conversation: the tool describes itself",
}

// A sampleForm is a form of a sample page.
type sampleForm struct {
	page, action string
	fields       []string // visible ones
	helped       bool
}

// postForms returns the forms of all sample pages that change something.
func postForms(t *testing.T) (all []sampleForm) {
	t.Helper()
	for _, s := range samples {
		var buf bytes.Buffer
		if err := s.page.Render(pageContext(i18n.English, s), &buf); err != nil {
			t.Fatal(err)
		}
		doc, err := html.Parse(&buf)
		if err != nil {
			t.Fatal(err)
		}
		for n := range doc.Descendants() {
			if n.Data == "form" && attr(n, "method") == "post" {
				all = append(all, sampleForm{s.name, attr(n, "action"), visibleFields(n), hasHelp(n)})
			}
		}
	}
	return all
}

func visibleFields(form *html.Node) (names []string) {
	for n := range form.Descendants() {
		field := n.Data == "input" || n.Data == "select" || n.Data == "textarea"
		if field && attr(n, "type") != "hidden" && attr(n, "name") != "" && !hasAttr(n, "hidden") &&
			!hasAttr(n, "disabled") {
			names = append(names, attr(n, "name"))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func hasAttr(n *html.Node, key string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == key })
}

// hasHelp reports whether a help comes before the form, in its element or in one around it.
func hasHelp(form *html.Node) bool {
	for n := form; n != nil; n = n.Parent {
		for s := n.PrevSibling; s != nil; s = s.PrevSibling {
			if s.Data == "aside" && strings.HasPrefix(attr(s, "class"), "form-help") {
				return true
			}
		}
	}
	return false
}

// TestFormsHaveHelp finds forms with several fields that say nowhere what they do and what to type.
func TestFormsHaveHelp(t *testing.T) {
	used := make(map[string]bool)
	for _, f := range postForms(t) {
		if len(f.fields) < 2 || f.helped {
			continue
		}
		why := ""
		for pattern := range withoutHelp {
			address, fields, _ := strings.Cut(pattern, " ")
			if regexp.MustCompile(address).MatchString(f.action) && strings.Contains(strings.Join(f.fields, ","), fields) {
				why = pattern
			}
		}
		if used[why] = true; why == "" {
			t.Errorf("%s: the form of %s (%s) has no formHelp before it", f.page, f.action, strings.Join(f.fields, ", "))
		}
	}
	for pattern := range withoutHelp {
		if !used[pattern] {
			t.Errorf("withoutHelp has %s, which no form of a sample page needs", pattern)
		}
	}
}

// TestFormsAreOnSamplePages finds forms with several fields that TestFormsHaveHelp cannot see.
func TestFormsAreOnSamplePages(t *testing.T) {
	shown := postForms(t)
	files, err := filepath.Glob("*.templ")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range files {
		for _, fields := range formsOfFile(t, name) {
			found++
			sampled := slices.ContainsFunc(shown, func(f sampleForm) bool { return areMost(f.fields, fields) })
			if !sampled && notOnSamples[name] == "" {
				t.Errorf("%s: no sample page has the form with %s", name, strings.Join(fields, ", "))
			}
		}
	}
	if found < 25 {
		t.Errorf("only %d forms were found", found)
	}
}

// formsOfFile returns the constant names of the visible fields of each form that has several.
func formsOfFile(t *testing.T, name string) (all [][]string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseString(string(b))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var fields []string
	inside := false
	v := visitor.New()
	element := v.Element
	v.Element = func(n *parser.Element) error {
		switch {
		case n.Name == "form" && constant(n, "method") == "post":
			fields, inside = nil, true
			err := element(n)
			if inside = false; len(fields) > 1 {
				all = append(all, fields)
			}
			return err
		case inside && (n.Name == "input" || n.Name == "select" || n.Name == "textarea"):
			if field := constant(n, "name"); field != "" && constant(n, "type") != "hidden" && !slices.Contains(fields, field) {
				fields = append(fields, field)
			}
		}
		return element(n)
	}
	if err := file.Visit(v); err != nil {
		t.Fatal(err)
	}
	return all
}

func constant(n *parser.Element, key string) string {
	for _, a := range n.Attributes {
		if c, ok := a.(*parser.ConstantAttribute); ok && c.Key.String() == key {
			return c.Value
		}
	}
	return ""
}

// areMost reports whether most of a form's fields are on a page. Some depend on the page's state.
func areMost(shown, fields []string) bool {
	n := 0
	for _, f := range fields {
		if slices.Contains(shown, f) {
			n++
		}
	}
	return 2*n > len(fields)
}

// TestHelpsAreUsed finds texts about forms that no page shows; every page has few sentences.
func TestHelpsAreUsed(t *testing.T) {
	files, err := filepath.Glob("*.templ")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, name := range append(files, "bulk.go", "device.go") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(b)
	}
	for _, key := range i18n.Keys() {
		name, ok := strings.CutPrefix(key, "help.form.")
		if !ok {
			continue
		}
		if !strings.Contains(source.String(), `"`+name+`"`) {
			t.Errorf("%s is on no page", key)
		}
		for _, l := range i18n.Langs {
			text := i18n.Text(l, key)
			if lines := strings.Count(text, "\n") + 1; lines > 3 {
				t.Errorf("%s (%s) has %d paragraphs, want at most 3", key, l, lines)
			}
			if strings.Count(text, "`")%2 != 0 {
				t.Errorf("%s (%s) has an example without an end", key, l)
			}
		}
	}
}
