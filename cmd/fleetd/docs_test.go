package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// repository is the root of the module, as seen from this package's tests.
const repository = "../.."

// A goPackage is what "go list" says about a package of the module.
type goPackage struct {
	ImportPath, Name, Dir string
	GoFiles               []string
	Imports, Deps         []string // without those of its tests
}

func goPackages(t *testing.T) (all []goPackage) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Dir = repository
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p goPackage
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 20 {
		t.Fatalf("go list found %d packages only", len(all))
	}
	return all
}

// A package says what it is for in the file where one looks first.
func TestPackageComments(t *testing.T) {
	const least = 3 // lines
	for _, p := range goPackages(t) {
		lines := 0
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil,
				parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc == nil || !strings.HasPrefix(f.Doc.Text(), "Package ") && !strings.HasPrefix(f.Doc.Text(), "Command ") {
				continue // a generator's mark is no package comment
			}
			if name != "doc.go" && name != p.Name+".go" && name != filepath.Base(p.Dir)+".go" {
				t.Errorf("%s: the package comment is in %s, want it in doc.go or %s.go", p.ImportPath, name, p.Name)
			}
			lines += strings.Count(f.Doc.Text(), "\n")
		}
		if lines < least {
			t.Errorf("%s has a package comment of %d lines, want %d: what it is for, what it does not know, its locks",
				p.ImportPath, lines, least)
		}
	}
}

// most is the number of files up to which a package has one vocabulary. Generated files and those of
// tests do not count.
const most = 42

// larger are the packages with more files, and why they are one package.
var larger = map[string]string{
	"fleetd/fleet/postgres": "one type, with a file per subject",
	"fleetd/web/api":        "one type, with a file per subject",
	"fleetd/web/ui":         "a file per component",
}

// A package of more than about 40 files is two packages: see Style in CONTRIBUTING.md.
func TestPackagesAreSmall(t *testing.T) {
	for _, p := range goPackages(t) {
		files := 0
		for _, name := range p.GoFiles {
			if !strings.HasSuffix(name, "_templ.go") && !strings.HasSuffix(name, ".gen.go") {
				files++
			}
		}
		switch why := larger[p.ImportPath]; {
		case files > most && why == "":
			t.Errorf("%s has %d files, want at most %d: divide it by its words", p.ImportPath, files, most)
		case files <= most && why != "":
			t.Errorf("%s has %d files: remove it from the list of larger packages", p.ImportPath, files)
		}
	}
}

// CONTRIBUTING.md has each package in its table, and no other.
func TestContributingListsPackages(t *testing.T) {
	text := readDoc(t, "CONTRIBUTING.md")
	listed := map[string]bool{}
	cell := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(text) {
		first, _, row := strings.Cut(strings.TrimPrefix(line, "| `"), " |")
		if !row || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range cell.FindAllStringSubmatch("`"+first, -1) {
			listed[m[1]] = true
			if strings.HasPrefix(m[1], "make ") || strings.HasPrefix(m[1], "--") {
				continue // the tables of commands and of flags
			}
			if info, err := os.Stat(filepath.Join(repository, m[1])); err != nil || !info.IsDir() {
				t.Errorf("CONTRIBUTING.md lists `%s`, which is no directory", m[1])
			}
		}
	}
	for _, p := range goPackages(t) {
		if name := strings.TrimPrefix(p.ImportPath, "fleetd/"); !listed[name] {
			t.Errorf("CONTRIBUTING.md does not list `%s` in its table of packages", name)
		}
	}
}

// A link of docs/security.md that names something in a Go file.
var codeLink = regexp.MustCompile("\\[`([^`\\]]+)`\\]\\(([^)]+)\\)")

// Each promise of docs/security.md names a test that exists.
func TestSecurityPromises(t *testing.T) {
	text := readDoc(t, "docs/security.md")
	promises, _, ok := strings.Cut(text, "\n## What is not promised\n")
	if !ok {
		t.Fatal("docs/security.md does not say what is not promised")
	}
	rows := 0
	held := false // in a table of promises
	for line := range strings.Lines(promises) {
		switch {
		case !strings.HasPrefix(line, "|"):
			held = false
		case strings.HasPrefix(line, "| Promise | Held by |"):
			held = true
		case held && !strings.HasPrefix(line, "|---"):
			rows++
			links := codeLink.FindAllStringSubmatch(line, -1)
			if len(links) == 0 {
				t.Errorf("no test holds this promise: %s", line)
			}
			for _, link := range links {
				file := filepath.Join(repository, "docs", link[2])
				if !strings.HasPrefix(link[1], "Test") || !strings.HasSuffix(file, "_test.go") || !declared(t, file)[link[1]] {
					t.Errorf("there is no test %s in %s, which this promise names: %s", link[1], link[2], line)
				}
			}
		}
	}
	if rows < 25 {
		t.Errorf("docs/security.md has %d promises only: did the form of its tables change?", rows)
	}
}

// Links between our documents lead to files that exist.
func TestDocumentLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	docs, err := filepath.Glob(repository + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range append(docs, repository+"/README.md", repository+"/CONTRIBUTING.md",
		repository+"/firmware/README.md") {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links %s: %v", strings.TrimPrefix(doc, repository+"/"), m[1], err)
			}
		}
	}
}

// declared are the names that a Go file declares; nothing if there is no such file.
func declared(t *testing.T, file string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return names
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			names[name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names[n.Name] = true
					}
				}
			}
		}
	}
	return names
}

func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
