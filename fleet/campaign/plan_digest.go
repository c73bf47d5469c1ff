package campaign

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Digest identifies exactly what a plan does: it covers every field, and which device gets
// which image in which wave. Skipped devices get none and do not count. For a continuous plan
// it also covers the images that devices which join later may get. It does not depend on the
// order of JSON keys, which the database changes.
func Digest(p Plan, targets []Deployment, images []string) string {
	all := make([]PlannedTarget, 0, len(targets))
	for _, d := range targets {
		if d.Wave >= 0 && d.State != DeploymentSkipped {
			all = append(all, PlannedTarget{Device: d.Device, Wave: d.Wave, Image: d.Image})
		}
	}
	return digest(p, all, images)
}

func digest(p Plan, targets []PlannedTarget, images []string) string {
	h := sha256.New()
	h.Write(canonicalPlan(p))
	targets = slices.Clone(targets)
	slices.SortFunc(targets, func(x, y PlannedTarget) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.Wave, y.Wave), cmp.Compare(x.Image, y.Image))
	})
	for _, d := range targets {
		fmt.Fprintf(h, "\n%s %d %s", d.Device, d.Wave, d.Image)
	}
	if p.Continuous {
		for _, image := range slices.Sorted(slices.Values(images)) {
			fmt.Fprintf(h, "\n%s", image)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// canonicalPlan encodes a plan as JSON with sorted keys, one spelling of numbers, and times in UTC.
func canonicalPlan(p Plan) []byte {
	p.StartAt, p.EndAt = inUTC(p.StartAt), inUTC(p.EndAt)
	text, err := json.Marshal(p)
	if err != nil { // Normalize refuses plans that contain broken JSON
		return fmt.Appendf(nil, "%+v", p)
	}
	return onlySpelling(text)
}

// onlySpelling returns valid JSON in its canonical spelling.
func onlySpelling(text []byte) []byte {
	v, err := decodeNumbers(text)
	if err != nil {
		return text
	}
	out, err := json.Marshal(oneSpelling(v))
	if err != nil {
		return text
	}
	return out
}

func oneSpelling(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, member := range v {
			v[key] = oneSpelling(member)
		}
	case []any:
		for i, item := range v {
			v[i] = oneSpelling(item)
		}
	case json.Number:
		return spellNumber(v)
	}
	return v
}

// spellNumber writes 1, 1.0 and 1e0 alike.
func spellNumber(n json.Number) any {
	const exact = 1 << 53
	if _, err := strconv.ParseInt(string(n), 10, 64); err == nil && n != "-0" {
		return n
	}
	f, err := n.Float64()
	if err != nil {
		return n
	}
	if f == float64(int64(f)) && f > -exact && f < exact {
		return int64(f)
	}
	return f
}

func decodeNumbers(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	utc := t.UTC()
	return &utc
}
