package fleettest

import (
	"strings"

	"pgregory.net/rapid"

	"fleetd/fleet"
)

// QueryWords are the words that generated queries use for names, boards and tags.
var QueryWords = []string{"lab", "other", "device", "x tag:lab y", "front", "Lab", "tag:lab", "none", "a", "äb c"}

// Query draws a query over id, name, board, chip and tag and, unless forScope is set, over
// fields that a scope may not use. The terms include quoted and unquoted ones, quotes inside
// words, negated terms, alternatives, quoted texts of other terms, and text that only looks
// like an operator. Each query is valid and may be empty.
func Query(t *rapid.T, label string, forScope bool) fleet.Query {
	fields := []string{"", "", "tag:", "tag:", "name:", "id:", "board:", "TAG:", "chip:"}
	if !forScope {
		fields = append(fields, "version>", "seen<", "-hold", "presence:", "OR", "(", "|", `\`, "AND", "NOT")
	}
	for { // until a query is valid
		var terms []string
		for range rapid.IntRange(0, 3).Draw(t, label+": terms") {
			term := rapid.SampledFrom(fields).Draw(t, label+": field")
			switch term {
			case "version>":
				term += "1"
			case "seen<":
				term += "52w"
			case "-hold", "OR", "(", "|", "AND", "NOT":
			default:
				term += queryValues(t, label)
			}
			if rapid.IntRange(0, 2).Draw(t, label+": not") == 0 {
				term = "-" + term
			}
			terms = append(terms, term)
		}
		text := strings.Join(terms, rapid.SampledFrom([]string{" ", "  ", "\u00a0", "\u3000", "\t"}).Draw(t, label+": blank"))
		parse := fleet.ParseQuery
		if forScope {
			parse = fleet.ParseScope
		}
		if q, err := parse(text); err == nil {
			return q
		}
	}
}

// queryValues draws alternatives in one of the spellings that the language allows.
func queryValues(t *rapid.T, label string) string {
	var all []string
	for range rapid.IntRange(1, 2).Draw(t, label+": values") {
		v := rapid.SampledFrom(QueryWords).Draw(t, label+": value")
		switch rapid.IntRange(0, 5).Draw(t, label+": spelling") {
		case 0:
			v = `"` + v + `"`
		case 1:
			v = v[:1] + `"` + v[1:] + `"`
		case 2:
			v = `"z ` + v + `"` + `" z"`
		case 3:
			v = `"` + v + `\"` // the language has no escapes
		case 4:
			v = `"` + v + `"*`
		}
		all = append(all, v)
	}
	return strings.Join(all, ",")
}
