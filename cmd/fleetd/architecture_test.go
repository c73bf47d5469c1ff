package main

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const architecture = "docs/architecture.md"

// A layer is one of those that docs/architecture.md puts the packages into.
type layer struct {
	number string
	group  string // the heading: packages of one layer in different groups do not import each other
}

var (
	layerHeading = regexp.MustCompile(`^### (Layer (\d): .+)`)
	packageRow   = regexp.MustCompile("^\\| `([^`]+)` \\|[^|]*\\|(?: ([^|]*)\\|)?$")
)

// The picture and the tables of docs/architecture.md have each package that a program
// uses, and no other; layers import as the arrows and the tables say.
func TestDocsArchitecturePackages(t *testing.T) {
	text := readDoc(t, architecture)
	layers, imports := packageTables(t, text)
	all := make(map[string]goPackage)
	used := make(map[string]bool) // by a program: the other packages are those of tests
	for _, p := range goPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, "fleetd/")
		all[name] = p
		if p.Name == "main" {
			used[name] = true
			for _, dep := range p.Deps {
				used[strings.TrimPrefix(dep, "fleetd/")] = true
			}
		}
	}
	for name := range all {
		if _, listed := layers[name]; used[name] && !listed {
			t.Errorf("%s lists no package %s: add it to the table of its layer and to the picture", architecture, name)
		}
	}
	for name := range layers {
		if _, exists := all[name]; !exists {
			t.Errorf("%s lists the package %s, which does not exist", architecture, name)
		} else if !used[name] {
			t.Errorf("%s lists the package %s, which only tests import", architecture, name)
		}
	}

	between := make(map[string]map[string]bool)
	for name, from := range layers {
		var within []string
		for _, imported := range all[name].Imports {
			imported = strings.TrimPrefix(imported, "fleetd/")
			to, listed := layers[imported]
			switch {
			case !listed: // another module, or a missing package
			case to.number == from.number && to.group != from.group:
				t.Errorf("%s imports %s: they are in two groups of layer %s in %s", name, imported, to.number, architecture)
			case to.number == from.number:
				within = append(within, path.Base(imported))
			case to.number < from.number:
				t.Errorf("%s of layer %s imports %s of layer %s, which is above it", name, from.number, imported, to.number)
			default:
				if between[from.number] == nil {
					between[from.number] = make(map[string]bool)
				}
				between[from.number][to.number] = true
			}
		}
		slices.Sort(within)
		if want := strings.Join(within, ", "); imports[name] != want {
			t.Errorf("%s says that %s imports %q from its layer, want %q", architecture, name, imports[name], want)
		}
	}
	checkPicture(t, text, layers, between)
}

// packageTables returns the layer of each package in the tables, and which packages of its
// layer it imports, as the tables say.
func packageTables(t *testing.T, text string) (layers map[string]layer, imports map[string]string) {
	t.Helper()
	layers, imports = make(map[string]layer), make(map[string]string)
	var current layer
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if h := layerHeading.FindStringSubmatch(line); h != nil {
			current = layer{number: h[2], group: h[1]}
		} else if strings.HasPrefix(line, "## ") {
			current = layer{}
		}
		row := packageRow.FindStringSubmatch(line)
		if row == nil || current.number == "" {
			continue
		}
		if _, twice := layers[row[1]]; twice {
			t.Errorf("%s lists the package %s twice", architecture, row[1])
		}
		layers[row[1]], imports[row[1]] = current, strings.TrimSpace(row[2])
	}
	return layers, imports
}

// checkPicture compares the picture with the tables, and its arrows with the imports
// between layers.
func checkPicture(t *testing.T, text string, layers map[string]layer, between map[string]map[string]bool) {
	t.Helper()
	_, picture, found := strings.Cut(text, "\n```\n+-- ")
	picture, _, closed := strings.Cut(picture, "\n```\n")
	if !found || !closed {
		t.Fatalf("%s has no picture of the packages", architecture)
	}
	drawn := make(map[string]string) // layers by package
	number := ""
	title := regexp.MustCompile(`^(?:\+-- )?(\d) [A-Z]`)
	for line := range strings.Lines(picture) {
		if m := title.FindStringSubmatch(line); m != nil {
			number = m[1]
		}
		if strings.HasPrefix(line, "|") {
			for _, name := range regexp.MustCompile(`\b[a-z][a-z0-9/]*`).FindAllString(line, -1) {
				drawn[name] = number
			}
		}
	}
	for name, l := range layers {
		if drawn[name] != l.number {
			t.Errorf("the picture of %s has %s in layer %q, want %s", architecture, name, drawn[name], l.number)
		}
	}
	for word, number := range drawn {
		if layers[word].number == "" {
			t.Errorf("the picture of %s has %s in layer %s, which no table has", architecture, word, number)
		}
	}

	arrows := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^ +\|  (\d) imports (.*)$`).FindAllStringSubmatch(picture, -1) {
		arrows[m[1]] = strings.Join(regexp.MustCompile(`\d`).FindAllString(m[2], -1), " ")
	}
	for from, to := range between {
		if want := strings.Join(slices.Sorted(maps.Keys(to)), " "); arrows[from] != want {
			t.Errorf("the picture of %s says that layer %s imports the layers %q, want %q", architecture, from, arrows[from],
				want)
		}
	}
}

// A place in the code, as docs/architecture.md names it: "fleet/call/service.go: Service.Make".
var codePlace = regexp.MustCompile("`([a-z][\\w./-]*\\.go): ([^`]+)`")

// Each place in the code that docs/architecture.md names exists. A walk names one in
// each step.
func TestDocsArchitecturePlaces(t *testing.T) {
	text := readDoc(t, architecture)
	places := codePlace.FindAllStringSubmatch(text, -1)
	if len(places) < 150 {
		t.Errorf("%s names %d places in the code only: did their form change?", architecture, len(places))
	}
	known := make(map[string]map[string]bool)
	for _, p := range places {
		file, name := p[1], p[2]
		if known[file] == nil {
			known[file] = declared(t, filepath.Join(repository, file))
		}
		if !known[file][name] {
			t.Errorf("%s names `%s: %s`, which that file does not declare", architecture, file, name)
		}
	}

	walks := strings.Split(text, "\n## ")
	walks = slices.DeleteFunc(walks, func(s string) bool { return !strings.HasPrefix(s, "Walk ") })
	if len(walks) != 5 {
		t.Errorf("%s has %d walks, want 5", architecture, len(walks))
	}
	step := regexp.MustCompile(`(?m)^\d+\. `)
	for _, walk := range walks {
		heading, body, _ := strings.Cut(walk, "\n")
		for i, s := range step.Split(body, -1)[1:] {
			if !codePlace.MatchString(s) {
				t.Errorf("%s: step %d of %q names no place in the code", architecture, i+1, heading)
			}
		}
	}
}

// docs/architecture.md names each part that the server starts and stops, and no other.
func TestDocsArchitectureParts(t *testing.T) {
	_, section, found := strings.Cut(readDoc(t, architecture), "\nAll parts, in their order:\n")
	section, _, _ = strings.Cut(section, "\nIf a part ")
	if !found {
		t.Fatalf("%s does not list the parts of the server", architecture)
	}
	listed := make(map[string]bool)
	for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(section, -1) {
		listed[m[1]] = true
	}
	files, err := filepath.Glob(filepath.Join(repository, "cmd/fleetd/server/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	registered := make(map[string]bool)
	part := regexp.MustCompile(`(?:stages|parts)\.(?:run|add|onStop)\("([^"]+)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range part.FindAllStringSubmatch(string(source), -1) {
			registered[strings.TrimSpace(m[1])] = true
		}
	}
	for name := range registered {
		if !listed[name] {
			t.Errorf("%s does not name the part %q of the server", architecture, name)
		}
	}
	for name := range listed {
		if !registered[name] {
			t.Errorf("%s names the part %q, which the server does not have", architecture, name)
		}
	}
}
