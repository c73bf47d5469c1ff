package postgres

import (
	"strconv"
	"strings"
)

// A where collects the conditions of a statement and their arguments. Values
// never become part of the text.
type where struct {
	conds []string
	args  []any
}

// arg adds a value and returns its placeholder.
func (w *where) arg(v any) string {
	w.args = append(w.args, v)
	return "$" + strconv.Itoa(len(w.args))
}

// and adds a condition, in which each ? is replaced by the next value.
func (w *where) and(cond string, values ...any) {
	for _, v := range values {
		cond = strings.Replace(cond, "?", w.arg(v), 1)
	}
	w.conds = append(w.conds, cond)
}

// andText adds a condition on a text unless the text is empty.
func (w *where) andText(cond, value string) {
	if value != "" {
		w.and(cond, cleanText(value))
	}
}

// String returns the whole clause; without conditions it is empty.
func (w *where) String() string {
	if len(w.conds) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.conds, " AND ")
}

// likeEscaper escapes the wildcards of LIKE.
var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
