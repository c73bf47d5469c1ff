package campaign

import (
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/ohler55/ojg/jp"

	"fleetd/fleet"
)

// AssertionOps lists the operators of an [Assertion].
var AssertionOps = []string{"eq", "ne", "lt", "le", "gt", "ge", "exists", "matches", "unchanged"}

// opReasons maps operators to the codes of failed comparisons.
var opReasons = map[string]string{"eq": ReasonCheckEq, "ne": ReasonCheckNe, "lt": ReasonCheckLt, "le": ReasonCheckLe,
	"gt": ReasonCheckGt, "ge": ReasonCheckGe, "matches": ReasonCheckMatches}

// A CheckError is the finding of a health check.
type CheckError struct{ Reason fleet.Reason }

func (e *CheckError) Error() string { return e.Reason.Code }

func failedCheck(code string, params ...any) error {
	return &CheckError{fleet.Because(code, params...)}
}

// CheckAssertions compares the text of a tool's answer with assertions. Its error is a
// [*CheckError] for the first one that fails. baseline is the text of the answer before the
// upgrade, or "". Both texts are untrusted.
func CheckAssertions(as []Assertion, answerText, baseline string) error {
	answer := answerValue(answerText)
	for _, a := range as {
		if err := a.check(answer, baseline); err != nil {
			return err
		}
	}
	return nil
}

// Each ".." of a path finds a value once for every value above it, so the number of values
// found grows exponentially with the number of descents and with the answer's depth.
const (
	maxDescents    = 2
	maxAnswerDepth = 64
)

// answerValue returns the JSON in a text, or the text itself.
func answerValue(text string) any {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil || deeper(v, maxAnswerDepth) {
		return text
	}
	return v
}

// deeper reports whether a value is nested more than levels deep.
func deeper(v any, levels int) bool {
	if levels < 0 {
		return true
	}
	below := func(v any) bool { return deeper(v, levels-1) }
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, below)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), below)
	}
	return false
}

// check compares every value at the path with the assertion.
func (a Assertion) check(answer any, baseline string) error {
	path, err := jp.ParseString(a.Path)
	if err != nil {
		return failedCheck(ReasonCheckBadPath, "path", a.Path, "detail", err.Error())
	}
	found := path.Get(answer)
	switch {
	case len(found) == 0:
		return failedCheck(ReasonCheckNoPath, "path", a.Path)
	case a.Op == "exists":
		return nil
	case a.Op == "unchanged":
		return a.unchanged(found, path, baseline)
	}
	var want any
	if err := json.Unmarshal(a.Value, &want); err != nil {
		return failedCheck(ReasonCheckNoValue, "path", a.Path, "op", a.Op)
	}
	for _, got := range found {
		if err := a.holds(got, want); err != nil {
			return err
		}
	}
	return nil
}

func (a Assertion) unchanged(found []any, path jp.Expr, baseline string) error {
	if baseline == "" {
		return failedCheck(ReasonCheckNoBaseline, "path", a.Path)
	}
	if before := path.Get(answerValue(baseline)); !reflect.DeepEqual(before, found) {
		return failedCheck(ReasonCheckChanged, "path", a.Path, "before", shown(before...), "value", shown(found...))
	}
	return nil
}

// holds compares one value.
func (a Assertion) holds(got, want any) error {
	ok := false
	switch a.Op {
	case "eq":
		ok = reflect.DeepEqual(got, want)
	case "ne":
		ok = !reflect.DeepEqual(got, want)
	case "matches":
		pattern, _ := want.(string)
		re, err := compilePattern(pattern)
		if err != nil {
			return failedCheck(ReasonCheckBadPattern, "path", a.Path, "detail", err.Error())
		}
		ok = re.MatchString(textOf(got))
	case "lt", "le", "gt", "ge":
		order, comparable := compareValues(got, want)
		if !comparable {
			return failedCheck(ReasonCheckIncomparable, "path", a.Path, "value", shown(got), "want", shown(want))
		}
		ok = a.ordered(order)
	default:
		return failedCheck(ReasonCheckUnknownOp, "path", a.Path, "op", fleet.CleanText(a.Op, 20))
	}
	if !ok {
		return failedCheck(opReasons[a.Op], "path", a.Path, "value", shown(got), "want", shown(want))
	}
	return nil
}

func (a Assertion) ordered(order int) bool {
	switch a.Op {
	case "lt":
		return order < 0
	case "le":
		return order <= 0
	case "gt":
		return order > 0
	}
	return order >= 0
}

// compareValues compares numbers; devices write some of them as text.
func compareValues(got, want any) (order int, ok bool) {
	x, okX := number(got)
	y, okY := number(want)
	return cmp.Compare(x, y), okX && okY
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case string:
		f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
		return f, err == nil && f == f
	}
	return 0, false
}

func textOf(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	text, _ := json.Marshal(v)
	return string(text)
}

// shown formats values for use in a sentence.
func shown(vs ...any) string {
	const longest = 80
	texts := make([]string, 0, len(vs))
	for _, v := range vs[:min(len(vs), 3)] {
		text, _ := json.Marshal(v)
		texts = append(texts, fleet.CleanText(string(text), longest))
	}
	if len(vs) > len(texts) {
		texts = append(texts, "…")
	}
	return strings.Join(slices.Clip(texts), ", ")
}

// InventoryGate returns an error that names the tools which the device must not lose, were
// offered before and are missing now. forbid lists names; "*" at the end matches any ending, so
// "*" alone forbids every loss. If the inventory before the upgrade is unknown, nothing was lost.
func InventoryGate(before, after *fleet.Inventory, forbid []string) error {
	if before == nil || len(forbid) == 0 {
		return nil
	}
	if after == nil {
		after = &fleet.Inventory{}
	}
	var lost []string
	for _, t := range fleet.DiffInventories(before, after).Removed {
		if slices.ContainsFunc(forbid, func(pattern string) bool { return matchesEnding(pattern, t.Name) }) {
			lost = append(lost, t.Name)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	slices.Sort(lost)
	const shown = 5
	if more := len(lost) - shown; more > 0 {
		return failedCheck(ReasonCheckToolsLostAnd, "tools", strings.Join(lost[:shown], ", "), "more", more)
	}
	return failedCheck(ReasonCheckToolsLost, "tools", strings.Join(lost, ", "))
}

func matchesEnding(pattern, name string) bool {
	if start, any := strings.CutSuffix(pattern, "*"); any {
		return strings.HasPrefix(name, start)
	}
	return pattern == name
}

// HeapGate returns an error if the free heap after the upgrade is below percent of that before.
// Both are in bytes; 0 means unknown and passes, and so does percent 0.
func HeapGate(before, after int64, percent int) error {
	if percent <= 0 || before <= 0 || after <= 0 || float64(after)*100 >= float64(before)*float64(percent) {
		return nil
	}
	return failedCheck(ReasonCheckHeap, "after_bytes", after, "before_bytes", before,
		"share", strconv.FormatFloat(100*float64(after)/float64(before), 'f', 0, 64), "least", percent)
}
