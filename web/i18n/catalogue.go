package i18n

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
)

//go:embed messages/*.json
var files embed.FS

// catalogue is read once; the files are part of the program, so a mistake in
// one is a mistake in the build and stops the start.
var catalogue = mustLoad(files)

// forms are the plural forms of one text: one and other, or only other.
type forms []string

type message map[Lang]forms

func (f forms) form(args []any) string {
	if len(f) == 2 && countIsOne(args) {
		return f[0]
	}
	return f[len(f)-1]
}

func countIsOne(args []any) bool {
	for i := 0; i+1 < len(args); i += 2 {
		if args[i] == "n" {
			return args[i+1] == 1 || args[i+1] == int64(1)
		}
	}
	return false
}

// UnmarshalJSON accepts "text" and ["one text", "other texts"].
func (f *forms) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*f = make(forms, 1)
		return json.Unmarshal(b, &(*f)[0])
	}
	var list []string
	if err := json.Unmarshal(b, &list); err != nil || len(list) != 2 {
		return fmt.Errorf("want a text or the pair one, other: %s", b)
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
	return all
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

// Placeholders lists the parameters that a message names.
func Placeholders(key string) []string {
	var names []string
	for _, texts := range catalogue[key] {
		for _, text := range texts {
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
