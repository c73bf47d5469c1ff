package i18n

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
)

//go:embed messages/*.json
var files embed.FS

// catalogue is read once. The files are part of the program, so an error in one is an error in the
// build and stops the start.
var catalogue = mustLoad(files)

// forms are the plural forms of one text: one and other, or only other. Three forms are the name of
// the parameter that selects the form, if that is not n, then one and other.
type forms []string

type message map[Lang]forms

// texts returns the forms without the name of the parameter.
func (f forms) texts() []string { return f[max(0, len(f)-2):] }

// count returns the name of the parameter that selects the form.
func (f forms) count() string {
	if len(f) == 3 {
		return f[0]
	}
	return "n"
}

func (f forms) form(args []any) string {
	texts := f.texts()
	if len(texts) == 2 && f.countIsOne(args) {
		return texts[0]
	}
	return texts[len(texts)-1]
}

func (f forms) countIsOne(args []any) bool {
	for i := 0; i+1 < len(args); i += 2 {
		if args[i] == f.count() {
			return args[i+1] == 1 || args[i+1] == int64(1)
		}
	}
	return false
}

// UnmarshalJSON accepts "text", ["one text", "other texts"] and
// ["count", "one text", "other texts"].
func (f *forms) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*f = make(forms, 1)
		return json.Unmarshal(b, &(*f)[0])
	}
	var list []string
	if err := json.Unmarshal(b, &list); err != nil || len(list) < 2 || len(list) > 3 {
		return fmt.Errorf(`want "text", ["one", "other"] or ["count", "one", "other"]: %s`, b)
	}
	*f = list
	return nil
}

func mustLoad(files fs.FS) map[string]message {
	all := make(map[string]message)
	names, err := fs.Glob(files, "messages/*.json")
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		if err := load(files, name, all); err != nil {
			panic(fmt.Errorf("i18n: %s: %w", name, err))
		}
	}
	if err := nameLabels(all); err != nil {
		panic(fmt.Errorf("i18n: %w", err))
	}
	return all
}

// label is a reference to the label of a button, tab or heading by the key of its message:
// {=campaign.act.resume}. The text therefore shows the same label as the screen.
var label = regexp.MustCompile(`\{=([a-z0-9_.]+)\}`)

// nameLabels replaces the references by the labels. It omits the dots at the end of a label that
// opens a form.
func nameLabels(all map[string]message) error {
	for key, m := range all {
		for lang, f := range m {
			for i, text := range f {
				var err error
				f[i] = label.ReplaceAllStringFunc(text, func(place string) string {
					of := label.FindStringSubmatch(place)[1]
					named := all[of][lang]
					if len(named) != 1 || placeholder.MatchString(named[0]) || label.MatchString(named[0]) {
						err = fmt.Errorf("%s names the label %s, which is not a message with one fixed text", key, of)
						return place
					}
					return strings.TrimSuffix(named[0], "…")
				})
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func load(files fs.FS, name string, into map[string]message) error {
	b, err := fs.ReadFile(files, name)
	if err != nil {
		return err
	}
	var rows map[string][]forms
	if err := json.Unmarshal(b, &rows); err != nil {
		return err
	}
	for key, texts := range rows {
		if len(texts) != len(Langs) {
			return fmt.Errorf("%s has %d texts, want one for each of %v", key, len(texts), Langs)
		}
		if _, ok := into[key]; ok {
			return fmt.Errorf("%s is defined twice", key)
		}
		m := make(message, len(Langs))
		for i, l := range Langs {
			m[l] = texts[i]
		}
		into[key] = m
	}
	return nil
}

// Keys lists all messages, for the test that finds unused ones.
func Keys() []string { return slices.Sorted(maps.Keys(catalogue)) }

var placeholder = regexp.MustCompile(`\{([a-z_]+)\}`)

// Placeholders lists the parameters of a message.
func Placeholders(key string) []string {
	var names []string
	for _, f := range catalogue[key] {
		for _, text := range f.texts() {
			names = append(names, placeholdersIn(text)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func placeholdersIn(text string) []string {
	var names []string
	for _, found := range placeholder.FindAllStringSubmatch(text, -1) {
		names = append(names, found[1])
	}
	return names
}
