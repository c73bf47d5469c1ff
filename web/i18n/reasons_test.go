package i18n_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
	"fleetd/fleet/endpoint"
	"fleetd/fleet/firmware"
	"fleetd/fleet/plugin"
	"fleetd/web/i18n"
)

// reasonParams are all codes of reasons with their parameters.
func reasonParams(t *testing.T) map[string][]string {
	all := make(map[string][]string)
	for _, table := range []map[string][]string{fleet.PresenceReasons, fleet.CauseReasons, fleet.UploadReasons,
		call.WaitReasons, call.BehalfReasons,
		firmware.Reasons, campaign.Reasons} {
		for code, names := range table {
			if _, twice := all[code]; twice {
				t.Errorf("two packages have the code %s", code)
			}
			all[code] = names
		}
	}
	return all
}

// Every code has a message, every message has a code, and a message uses only the parameters of its
// code. Package i18n's own test checks that both languages have the same placeholders.
func TestReasonsHaveMessages(t *testing.T) {
	placeholder := regexp.MustCompile(`\{([a-z_]+)\}`)
	codes := reasonParams(t)
	for code, names := range codes {
		if !i18n.Has("reason." + code) {
			t.Errorf("the code %s has no message", code)
			continue
		}
		for _, l := range i18n.Langs {
			for _, m := range placeholder.FindAllStringSubmatch(i18n.Raw(l, "reason."+code, 2), -1) {
				if !slices.Contains(names, m[1]) {
					t.Errorf("reason.%s in %s: {%s} is no parameter of the code", code, l, m[1])
				}
			}
		}
	}
	for _, key := range i18n.Keys() {
		if code, ok := strings.CutPrefix(key, "reason."); ok && codes[code] == nil {
			t.Errorf("no code has the message %s", key)
		}
	}
}

// The reasons of plug-ins are also errors, and have their messages. A message uses only the
// parameters of its code.
func TestPluginReasonsHaveMessages(t *testing.T) {
	for code, names := range plugin.Reasons {
		found := false
		for _, key := range i18n.Keys() {
			if key != "error.code."+code && !strings.HasPrefix(key, "error.code."+code+".") {
				continue
			}
			found = true
			for _, name := range i18n.Placeholders(key) {
				if !slices.Contains(names, name) {
					t.Errorf("%s: {%s} is no parameter of the code", key, name)
				}
			}
		}
		if !found {
			t.Errorf("the code %s has no message", code)
		}
	}
}

// Every reason why a connection of an endpoint ended has its message, which uses only the parameters
// of its code. No other code has one.
func TestEndpointReasonsHaveMessages(t *testing.T) {
	const prefix = "endpoint.reason."
	for code, names := range endpoint.Reasons {
		if !i18n.Has(prefix + code) {
			t.Errorf("the code %s has no message", code)
			continue
		}
		for _, name := range i18n.Placeholders(prefix + code) {
			if !slices.Contains(names, name) {
				t.Errorf("%s%s: {%s} is no parameter of the code", prefix, code, name)
			}
		}
	}
	for _, key := range i18n.Keys() {
		if code, ok := strings.CutPrefix(key, prefix); ok && endpoint.Reasons[code] == nil {
			t.Errorf("no code has the message %s", key)
		}
	}
}

// madeElsewhere are codes that no call of fleet.Because contains: they are written by SQL, chosen
// from a table, or in rows of earlier versions.
var madeElsewhere = []string{campaign.ReasonBusyIn, campaign.ReasonTakenOver, campaign.ReasonWaveNamed,
	campaign.ReasonRequeuedBy, campaign.ReasonLegacyText, fleet.CauseKicked, fleet.PresenceWatched,
	campaign.ReasonRuleFired, campaign.ReasonLimitShare, campaign.ReasonLimitFirst}

// Every code is created somewhere, with exactly the parameters in its table.
func TestReasonsAreMadeWithTheirParameters(t *testing.T) {
	made := make(map[string]bool)
	for _, code := range madeElsewhere {
		made[code] = true
	}
	codes := reasonParams(t)
	for _, dir := range []string{"fleet", "fleet/call", "fleet/picture", "fleet/firmware", "fleet/campaign", "fleet/rollout", "fleet/enrolment", "fleet/telemetry",
		"broker", "broker/edge", "broker/link", "mcp/host"} {
		files := parse(t, filepath.Join("../..", dir))
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok { // constants in variables, as in tables
					if code, known := constants[id.Name]; known && id.Obj == nil {
						made[code] = true
					}
				}
				call, ok := n.(*ast.CallExpr)
				if !ok || nameOf(call.Fun) != "Because" && nameOf(call.Fun) != "failedCheck" &&
					nameOf(call.Fun) != "CauseOf" || len(call.Args) == 0 {
					return true
				}
				code, known := constants[nameOf(call.Args[0])]
				if !known {
					return true // chosen at run time
				}
				made[code] = true
				if got, want := paramNames(call), slices.Sorted(slices.Values(codes[code])); !slices.Equal(got, want) {
					t.Errorf("%s: %s is made with %v, its table says %v", dir, code, got, want)
				}
				return true
			})
		}
	}
	for code := range maps.Keys(codes) {
		if !made[code] && !strings.HasPrefix(code, "outcome_") {
			t.Errorf("nothing makes the code %s", code)
		}
	}
}

// constants are the codes by the names of their constants.
var constants = make(map[string]string)

func parse(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("found %d files in %s: %v", len(names), dir, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	for _, f := range files {
		ast.Inspect(f, addConstant)
	}
	return files
}

func addConstant(n ast.Node) bool {
	spec, ok := n.(*ast.ValueSpec)
	if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 || spec.Type != nil {
		return true
	}
	name := spec.Names[0].Name
	lit, ok := spec.Values[0].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING || !slices.ContainsFunc([]string{"Reason", "Fit", "Transfer", "Presence", "Cause"},
		func(p string) bool { return strings.HasPrefix(name, p) }) {
		return true
	}
	constants[name], _ = strconv.Unquote(lit.Value)
	return true
}

func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func paramNames(call *ast.CallExpr) (names []string) {
	first := 1
	if nameOf(call.Fun) == "CauseOf" {
		first = 2 // after the text
	}
	for i := first; i < len(call.Args); i += 2 {
		if lit, ok := call.Args[i].(*ast.BasicLit); ok {
			name, _ := strconv.Unquote(lit.Value)
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Every condition has its texts, which use only its parameters.
func TestAlertsHaveMessages(t *testing.T) {
	for _, c := range alert.Conditions {
		for _, key := range []string{"alert.kind." + string(c.Kind), "alert.what." + string(c.Kind)} {
			if !i18n.Has(key) {
				t.Errorf("there is no message %s", key)
				continue
			}
			for _, name := range i18n.Placeholders(key) {
				if !slices.Contains(c.Params, name) {
					t.Errorf("%s: {%s} is no parameter of the condition", key, name)
				}
			}
		}
	}
}
