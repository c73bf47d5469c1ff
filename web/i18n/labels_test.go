package i18n

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// notOurs are words between quotation marks that are not labels of the console: words of other
// programs' pages, examples, states, and terms that a text explains.
var notOurs = []string{"Install", "Erase device", "高级选项", "旧设备", "或", "非", "离线", "无", "fleetd token create", "device"}

// properNames are labels that are names too: texts use them without marks.
var properNames = []string{"URL", "OTA URL", "WebSocket", "CSV file", "ESP-IDF", "SHA-256", "JSON path"}

var quoted = regexp.MustCompile(`“([^“”]*)”`)

// A text that mentions a button refers to it by the key of its label, so the two cannot differ.
func TestTextsNameLabelsByTheirKeys(t *testing.T) {
	all := map[string]message{}
	names, err := fs.Glob(files, "messages/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := load(files, name, all); err != nil {
			t.Fatal(err)
		}
	}
	labels := englishLabels(all)
	references := 0
	for key, m := range all {
		for _, lang := range Langs {
			for _, text := range m[lang].texts() {
				references += len(label.FindAllString(text, -1))
				for _, found := range quoted.FindAllStringSubmatch(text, -1) {
					words := label.ReplaceAllString(placeholder.ReplaceAllString(found[1], ""), "")
					if words != "" && !slices.Contains(notOurs, words) {
						t.Errorf("%s has %q between quotation marks: name the label as “{=KEY}”, or add it to notOurs", key, found[1])
					}
				}
				if lang == English {
					for _, l := range labelsIn(text, labels) {
						t.Errorf("%s has the label %q in its midst: name it as “{=%s}”", key, l, labels[l])
					}
				}
			}
		}
	}
	if references < 10 {
		t.Errorf("only %d labels are named", references)
	}
}

// englishLabels are the keys of short texts that begin with a capital and end without a full stop,
// like the labels of buttons, tabs, columns and headings.
func englishLabels(all map[string]message) map[string]string {
	labels := map[string]string{}
	for key, m := range all {
		text := strings.TrimSuffix(m[English][0], "…")
		if len(m[English]) == 1 && len(text) > 2 && len(text) < 45 && unicode.IsUpper(rune(text[0])) &&
			!strings.ContainsAny(text, "{.:") && !slices.Contains(properNames, text) {
			labels[text] = key
		}
	}
	return labels
}

// labelsIn finds literal labels after the beginning of a sentence.
func labelsIn(text string, labels map[string]string) (found []string) {
	for l := range labels {
		for from := 0; ; {
			i := strings.Index(text[from:], l)
			if i < 0 {
				break
			}
			at, end := from+i, from+i+len(l)
			from = end
			before, after := text[:at], text[end:]
			within := strings.HasSuffix(before, " ") && !strings.HasSuffix(before, ". ") && !strings.HasSuffix(before, ": ")
			if within && (after == "" || !isWord(rune(after[0]))) {
				found = append(found, l)
			}
		}
	}
	return found
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '/' }

// A referenced label reads as on the screen, without the dots of a label that opens a form. A
// reference to a message that is not a label stops the build.
func TestNamedLabels(t *testing.T) {
	text := func(en, zh string) message { return message{English: {en}, Chinese: {zh}} }
	all := map[string]message{"a": text("Pause…", "暂停…"), "b": text("Press “{=a}”, {name}.", "{name}，请按“{=a}”。")}
	if err := nameLabels(all); err != nil {
		t.Fatal(err)
	}
	if got := all["b"]; got[English][0] != "Press “Pause”, {name}." || got[Chinese][0] != "{name}，请按“暂停”。" {
		t.Errorf("%v", got)
	}
	for _, of := range []string{"none", "plural", "filled"} {
		all := map[string]message{"plural": {English: {"one", "{n}"}, Chinese: {"{n}"}}, "filled": text("{n}", "{n}"),
			"b": text("{="+of+"}", "{="+of+"}")}
		if nameLabels(all) == nil {
			t.Errorf("the label %q was named", of)
		}
	}
}
