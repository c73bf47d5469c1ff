package ui

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/a-h/templ/parser/v2"
	"github.com/a-h/templ/parser/v2/visitor"

	"fleetd/web/i18n"
)

var (
	literal = regexp.MustCompile(`"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)"`)
	prefix  = regexp.MustCompile(`"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*\.)"\s*[+,]`)
)

// TestEveryMessageIsUsed finds messages that no Go or templ file contains, as a whole or by a
// prefix that is completed at run time ("state."+state).
func TestEveryMessageIsUsed(t *testing.T) {
	used, prefixes := make(map[string]bool), make(map[string]bool)
	look := func(name string, d fs.DirEntry, err error) error {
		if err != nil || !isSource(name) {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range literal.FindAllStringSubmatch(string(b), -1) {
			used[m[1]] = true
		}
		for _, m := range prefix.FindAllStringSubmatch(string(b), -1) {
			prefixes[m[1]] = true
		}
		return nil
	}
	for _, root := range []string{"..", "../../cmd/fleetd/server"} { // texts on devices are on no page
		if err := filepath.WalkDir(root, look); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range i18n.Keys() {
		ofCode := strings.HasPrefix(key, "error.code.") || strings.HasPrefix(key, "call.error.") // see i18n
		if !ofCode && !used[key] && !hasPrefix(key, prefixes) {
			t.Errorf("the message %s is not used", key)
		}
	}
}

func isSource(name string) bool {
	return strings.HasSuffix(name, ".templ") ||
		strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_templ.go") && !strings.HasSuffix(name, "_test.go")
}

func hasPrefix(key string, prefixes map[string]bool) bool {
	for i, r := range key {
		if r == '.' && prefixes[key[:i+1]] {
			return true
		}
	}
	return false
}

// TestNoTextInTemplates finds literal text in a template, which would exist in one language only.
func TestNoTextInTemplates(t *testing.T) {
	files, err := filepath.Glob("*.templ")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d templates: %v", len(files), err)
	}
	for _, name := range files {
		if name == "styleguide.templ" { // for developers
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseString(string(b))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		checkTexts(t, name, file)
	}
}

// visible are the attributes whose values people read or hear.
var visible = map[string]bool{"title": true, "alt": true, "placeholder": true, "aria-label": true}

// verbatim are the elements with literal input, in any language.
var verbatim = map[string]bool{"code": true, "pre": true, "kbd": true}

func checkTexts(t *testing.T, name string, file *parser.TemplateFile) {
	inside := ""
	v := visitor.New()
	element, text := v.Element, v.Text
	v.Element = func(n *parser.Element) error {
		before := inside
		if verbatim[n.Name] {
			inside = n.Name
		}
		defer func() { inside = before }()
		for _, a := range n.Attributes {
			if c, ok := a.(*parser.ConstantAttribute); ok && visible[c.Key.String()] && hasLetter(c.Value) {
				t.Errorf("%s: %s=%q has one language only", name, c.Key, c.Value)
			}
		}
		return element(n)
	}
	v.Text = func(n *parser.Text) error {
		if inside == "" && hasLetter(n.Value) {
			t.Errorf("%s: the text %q has one language only", name, n.Value)
		}
		return text(n)
	}
	if err := file.Visit(v); err != nil {
		t.Fatal(err)
	}
}

func hasLetter(s string) bool { return strings.ContainsFunc(s, unicode.IsLetter) }
