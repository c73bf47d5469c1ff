package i18n_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fleetd/web/i18n"
)

// A codeSite is a place in the source that creates a code.
type codeSite struct {
	pos    string
	by     string // "Refuse", "NewCallError", "Because" or "newFault"
	nested bool   // within the arguments of another code
	code   string // with its case; * for parts that are unknown before run time
	params []string
}

// source is the content of the repository's Go files, without tests, about codes.
type source struct {
	consts map[string]string   // string constants by name
	typed  map[string][]string // values of string constants by the name of their type
	sites  []codeSite
	words  map[string][]string // literal arguments of functions that turn them into codes
}

// makers are the functions that use an argument as part of a code, with the index of that argument.
var makers = map[string]int{"errState": 1, "notDone": 0, "notKept": 0}

func readSource(t *testing.T) *source {
	s := &source{consts: map[string]string{}, typed: map[string][]string{}, words: map[string][]string{}}
	files := map[string]*ast.File{}
	set := token.NewFileSet()
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		files[name] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		s.readConsts(f)
	}
	for _, f := range files {
		s.readNouns(f)
		s.readSites(set, f, nil)
	}
	if len(s.sites) < 300 {
		t.Fatalf("only %d places make codes; is the source there?", len(s.sites))
	}
	return s
}

func (s *source) readConsts(f *ast.File) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			for i, name := range v.Names {
				if i >= len(v.Values) {
					continue
				}
				if text, ok := literal(v.Values[i]); ok {
					s.consts[name.Name] = text
					if of, ok := v.Type.(*ast.Ident); ok && f.Name.Name != "plugin" && f.Name.Name != "cluster" &&
						f.Name.Name != "schedule" { // their states are in no code
						s.typed[of.Name] = append(s.typed[of.Name], text)
					}
				}
			}
		}
	}
}

// readNouns finds the nouns of the operations of REST, which are a field of their table.
func (s *source) readNouns(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		pair, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "noun" {
			if noun, ok := literal(pair.Value); ok {
				s.words["noun"] = append(s.words["noun"], noun)
			}
		}
		return true
	})
}

func literal(e ast.Expr) (string, bool) {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		text, err := strconv.Unquote(lit.Value)
		return text, err == nil
	}
	return "", false
}

// actCheckers name the refused act in their refusals.
var actCheckers = map[string]bool{"May": true, "MaySomewhere": true, "MayOn": true, "MayOnDevice": true, "MayOnAll": true,
	"mayOn": true, "maySteer": true, "mayManage": true, "mayEndWait": true}

func (s *source) readSites(set *token.FileSet, root ast.Node, within *codeSite) {
	ast.Inspect(root, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		name := calledName(call)
		if actCheckers[name] && len(call.Args) > 0 { // the act is the last argument
			if act, ok := literal(call.Args[len(call.Args)-1]); ok {
				s.words["May"] = append(s.words["May"], act)
			}
		}
		if at, ok := makers[name]; ok && len(call.Args) > at {
			if word, ok := literal(call.Args[at]); ok {
				s.words[name] = append(s.words[name], word)
			}
		}
		first := map[string]int{"Refuse": 1, "NewCallError": 0, "Because": 0, "newFault": 1}
		at, ok := first[name]
		if !ok || len(call.Args) <= at || call.Ellipsis.IsValid() { // a maker that forwards its arguments
			return true
		}
		site := codeSite{pos: set.Position(call.Pos()).String(), by: name, nested: within != nil,
			code: s.value(call.Args[at])}
		if name == "newFault" { // of package espimage
			site.code = "image_" + strings.ReplaceAll(s.value(call.Args[0]), " ", "_") + "." + site.code
			site.code = strings.Replace(site.code, "image_no_app_descriptor_at_32", "image_no_app_descriptor", 1)
			site.code = strings.Replace(site.code, "image_manifest", "manifest_unreadable", 1)
		}
		for i := at + 1; i+1 < len(call.Args); i += 2 {
			site.params = append(site.params, s.value(call.Args[i]))
		}
		s.sites = append(s.sites, site)
		for _, arg := range call.Args[at+1:] {
			s.readSites(set, &ast.ParenExpr{X: arg}, &site)
		}
		return false
	})
}

func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if of, ok := f.X.(*ast.Ident); ok && of.Name == "i18n" {
			return "" // makes text of codes
		}
		return f.Sel.Name
	}
	return ""
}

// value returns the text of an expression, with * for parts that are not constant.
func (s *source) value(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := literal(e)
		return text
	case *ast.BinaryExpr:
		return s.value(e.X) + s.value(e.Y)
	case *ast.Ident:
		if text, ok := s.consts[e.Name]; ok {
			return text
		}
	case *ast.SelectorExpr:
		if text, ok := s.consts[e.Sel.Name]; ok {
			return text
		}
	}
	return "*"
}

// variants returns the codes that a code with unknown parts can be.
func (s *source) variants(code string) []string {
	var of []string
	prefix, rest, _ := strings.Cut(code, "*")
	switch prefix {
	case "act.":
		of = slices.Concat(s.words["May"], s.typed["changeAct"])
	case "verb.":
		of = s.words["errState"]
	case "blob_store.":
		of = s.words["notDone"]
	case "upload_not_kept.":
		of = s.words["notKept"]
	case "part.":
		for _, kind := range s.typed["PartKind"] {
			if kind != "data" { // there may be several in the files
				of = append(of, kind)
			}
		}
	case "type.":
		of = []string{"integer", "number", "string", "boolean"}
	case "state.":
		for _, name := range []string{"State", "DeploymentState", "ReleaseState", "FanOutState", "CallState", "ApprovalState"} {
			of = append(of, s.typed[name]...)
		}
	case "invalid_upstream_url.":
		of = []string{"missing", "form", "credentials", "scheme"}
	case "weak_password.":
		of = []string{"common", "name", "pattern"}
	case "image_in_use.":
		of = []string{"release", "campaign"}
	case "image_":
		of = []string{"size", "magic", "no_app_descriptor", "chip_id", "segment_bounds", "truncated", "checksum", "sha256",
			"partition_table", "bootloader", "otadata", "layout"}
	case "unknown_":
		of = s.words["noun"]
	case "unsigned.":
		of = s.typed["SignatureProblem"]
	case "invalid_": // of any field, by its case
		return []string{"any" + code[strings.LastIndexByte(code, '.'):]}
	case "": // of a row of a list of serial numbers
		return s.typed["LineCode"]
	default:
		return nil
	}
	codes := make([]string, len(of))
	for i, word := range of {
		codes[i] = prefix + word + rest
	}
	return codes
}

// onRecord reports whether a code is a recorded reason, with a message reason.*.
func (s *source) onRecord(site codeSite) bool {
	if site.code != "*" {
		return !site.nested && i18n.Has("reason."+site.code)
	}
	return slices.ContainsFunc([]string{"fleet/campaign/", "fleet/rollout/", "fleet/presence"}, func(part string) bool {
		return strings.Contains(filepath.ToSlash(site.pos), part)
	})
}

// TestEveryCodeHasAMessage finds codes without a text in the catalogue, texts with placeholders
// that their code does not fill, and texts without a code. [TestBothLanguagesAreWhole] checks that
// each text exists in every language.
func TestEveryCodeHasAMessage(t *testing.T) {
	s := readSource(t)
	used := map[string]bool{"error.code.legacy": true} // created by migration 0018
	for _, site := range s.sites {
		if site.by == "Because" && s.onRecord(site) {
			continue // checked by TestReasonsAreMadeWithTheirParameters
		}
		codes := []string{site.code}
		if strings.Contains(site.code, "*") {
			if codes = s.variants(site.code); len(codes) == 0 {
				t.Errorf("%s: which codes are %q? Add them to variants", site.pos, site.code)
			}
		}
		for _, code := range codes {
			key, ok := messageOf(site.by, code)
			if !ok && site.by == "Because" && !site.nested { // a reason of another subject, such as a deployment's
				ok = slices.ContainsFunc(i18n.Keys(), func(k string) bool { return strings.HasSuffix(k, "."+code) })
			}
			if used[key] = true; !ok {
				t.Errorf("%s: the catalogue has no message %s", site.pos, key)
				continue
			}
			for _, name := range i18n.Placeholders(key) {
				if !slices.Contains(site.params, name) {
					t.Errorf("%s: the message %s has {%s}, which the code has not", site.pos, key, name)
				}
			}
		}
	}
	for _, key := range i18n.Keys() {
		if (strings.HasPrefix(key, "error.code.") || strings.HasPrefix(key, "call.error.")) && !used[key] {
			t.Errorf("no code has the message %s", key)
		}
	}
}

func messageOf(by, code string) (key string, ok bool) {
	prefix := "error.code."
	if by == "NewCallError" {
		prefix = "call.error."
	}
	keys := []string{prefix + code}
	if _, which, ok := strings.Cut(code, "."); ok {
		keys = append(keys, prefix+"any."+which)
	}
	for _, key := range keys {
		if i18n.Has(key) {
			return key, true
		}
	}
	return keys[0], false
}
