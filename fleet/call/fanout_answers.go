package call

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/sheet"
)

// A FanOutOutcome is a device's answer, or the reason for its absence.
type FanOutOutcome struct {
	Device     fleet.DeviceID
	Name       string // current name of the device
	Call       uuid.UUID
	State      fleet.CallState
	Text       string           // of the answer; foreign text
	Structured json.RawMessage  // of the answer; nil without one
	Error      *fleet.CallError // nil without one
	FinishedAt *time.Time
}

// Limits of a field of answers.
const (
	maxFieldBytes   = 200
	maxFields       = 60
	maxFieldDepth   = 6
	maxGroupedBytes = 64 << 10 // of one answer; a longer answer is not searched
)

// An AnswerGrouping selects how to group answers, and which groups to return.
type AnswerGrouping struct {
	// Field is the path of a value in the answers' JSON, such as "audio_speaker.volume"; ""
	// groups by the whole answer.
	Field  string
	Offset int // groups to skip
	Limit  int
}

// AnswerGroups are devices grouped by their answers, largest group first.
type AnswerGroups struct {
	Groups []FanOutAnswer
	Total  int      // total number of groups
	Fields []string // that the answers contain and can be grouped by
}

// AnswerGroups groups a fan-out's devices by their answers.
func (s *FanOuts) AnswerGroups(ctx context.Context, id uuid.UUID, by AnswerGrouping) (AnswerGroups, error) {
	if len(by.Field) > maxFieldBytes {
		return AnswerGroups{}, fleet.Refuse(fleet.ErrInvalid, "invalid_answer_field", "limit", maxFieldBytes).At("by")
	}
	by.Offset, by.Limit = max(by.Offset, 0), fleet.ClampLimit(by.Limit)
	if by.Field != "" {
		return s.groupByField(ctx, id, by)
	}
	var g AnswerGroups
	var err error
	if g.Groups, g.Total, err = s.store.AnswerPage(ctx, id, by.Offset, by.Limit); err != nil {
		return AnswerGroups{}, err
	}
	// A few answers suffice to find the fields: one tool gives similar answers on all devices.
	n := 0
	err = s.store.EachOutcome(ctx, id, func(o FanOutOutcome) bool {
		if o.State == fleet.CallSucceeded {
			g.Fields = append(g.Fields, answerFields(o)...)
			n++
		}
		return n < 5
	})
	slices.Sort(g.Fields)
	g.Fields = slices.Compact(g.Fields)
	return g, err
}

// groupByField groups in memory: a fan-out has at most [MaxFanOutDevices], and only the groups
// stay in memory.
func (s *FanOuts) groupByField(ctx context.Context, id uuid.UUID, by AnswerGrouping) (AnswerGroups, error) {
	type key struct {
		state   fleet.CallState
		failure string // error code, if there is no answer; value is then its message
		value   string
		field   bool // the answer has the field
	}
	groups, fields := map[key]*FanOutAnswer{}, map[string]bool{}
	err := s.store.EachOutcome(ctx, id, func(o FanOutOutcome) bool {
		k := key{state: o.State}
		if o.State == fleet.CallSucceeded {
			k.value, k.field = answerField(o, by.Field)
			if len(fields) == 0 {
				for _, f := range answerFields(o) {
					fields[f] = true
				}
			}
		} else if k.value = fleet.CleanText(o.Text, maxFieldBytes); k.value == "" && o.Error != nil {
			k.failure, k.value = o.Error.Code, o.Error.Message
		}
		g := groups[k]
		if g == nil {
			g = &FanOutAnswer{State: o.State, Text: k.value, NoField: o.State == fleet.CallSucceeded && !k.field}
			if k.failure != "" {
				g.Text, g.Error = "", o.Error
			}
			groups[k] = g
		}
		if g.Count++; len(g.Sample) < fleet.SkippedSample {
			g.Sample, g.CallIDs = append(g.Sample, o.Device), append(g.CallIDs, o.Call)
		}
		return true
	})
	if err != nil {
		return AnswerGroups{}, err
	}
	all := slices.Collect(maps.Values(groups))
	slices.SortFunc(all, func(a, b *FanOutAnswer) int {
		if a.Count != b.Count {
			return b.Count - a.Count
		}
		return cmp.Or(strings.Compare(string(a.State)+a.Text, string(b.State)+b.Text),
			slices.Compare(a.Sample, b.Sample))
	})
	g := AnswerGroups{Total: len(all), Fields: slices.Sorted(maps.Keys(fields))}
	from := min(by.Offset, len(all))
	for _, a := range all[from:min(from+by.Limit, len(all))] {
		g.Groups = append(g.Groups, *a)
	}
	return g, nil
}

// answerJSON returns the answer as JSON: the structured answer of the device, or else its text
// if that is a JSON object or list.
func answerJSON(o FanOutOutcome) (v any) {
	text := []byte(o.Structured)
	if len(text) == 0 {
		text = []byte(strings.TrimSpace(o.Text))
	}
	if len(text) < 2 || len(text) > maxGroupedBytes || text[0] != '{' && text[0] != '[' {
		return nil
	}
	if json.Unmarshal(text, &v) != nil {
		return nil
	}
	return v
}

// answerField returns the value at a path of an answer, as text.
func answerField(o FanOutOutcome, path string) (string, bool) {
	v := answerJSON(o)
	for _, part := range strings.Split(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			inner, ok := in[part]
			if !ok {
				return "", false
			}
			v = inner
		case []any:
			n, err := strconv.Atoi(part)
			if err != nil || n < 0 || n >= len(in) {
				return "", false
			}
			v = in[n]
		default:
			return "", false
		}
	}
	if s, ok := v.(string); ok {
		return fleet.CleanText(s, maxFieldBytes), true
	}
	text, _ := json.Marshal(v) // decoded from JSON
	return fleet.CleanText(string(text), maxFieldBytes), true
}

// answerFields returns the paths of the plain values in an answer.
func answerFields(o FanOutOutcome) (fields []string) {
	var walk func(v any, path []string)
	walk = func(v any, path []string) {
		if len(fields) >= maxFields || len(path) > maxFieldDepth {
			return
		}
		switch in := v.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(in)) {
				if name != "" && !strings.Contains(name, ".") && fleet.CleanText(name, 60) == name {
					walk(in[name], append(slices.Clone(path), name))
				}
			}
		case []any:
			for i := range min(len(in), 3) {
				walk(in[i], append(slices.Clone(path), strconv.Itoa(i)))
			}
		default:
			if len(path) > 0 {
				fields = append(fields, strings.Join(path, "."))
			}
		}
	}
	walk(answerJSON(o), nil)
	return fields
}

// Failed returns the devices of a fan-out that did not succeed, in order.
func (s *FanOuts) Failed(ctx context.Context, id uuid.UUID) (ids []fleet.DeviceID, err error) {
	err = s.store.EachOutcome(ctx, id, func(o FanOutOutcome) bool {
		if o.State.Failed() {
			ids = append(ids, o.Device)
		}
		return true
	})
	return ids, err
}

// Export writes each device's answer as CSV, one line per device in the order of the devices.
// After an error the file is incomplete.
func (s *FanOuts) Export(ctx context.Context, w io.Writer, id uuid.UUID) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"device", "name", "state", "error", "answer", "call", "ended"}) // Error says what went wrong
	err := s.store.EachOutcome(ctx, id, func(o FanOutOutcome) bool {
		ended, failure := "", ""
		if o.Error != nil {
			failure = o.Error.Code
		}
		if o.FinishedAt != nil {
			ended = o.FinishedAt.UTC().Format(time.RFC3339)
		}
		cells := []string{string(o.Device), o.Name, string(o.State), failure, cmp.Or(o.Text, string(o.Structured)),
			o.Call.String(), ended}
		for i := range cells {
			cells[i] = sheet.Shield(cells[i])
		}
		return out.Write(cells) == nil
	})
	out.Flush()
	return cmp.Or(err, out.Error())
}
