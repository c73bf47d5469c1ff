package api

import (
	"net/url"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/trend"
)

// Figures over REST: an hour that has ended, the refusals, and what a scope shows.
func TestTrends(t *testing.T) {
	w := newWorld(t)
	v := decode[TrendsView](t, w.get(t, "/trends"), 200)
	if v.Since != nil || len(v.Times) < 56 || len(v.Hours) != len(v.Times) || v.Step != 3*3600_000 ||
		len(v.Metrics) != 0 {
		t.Errorf("before the first hour: %+v", v)
	}
	token := w.scoped(t, fleet.RoleViewer, "tag:in")
	if r := w.as(t, fleet.RoleOperator, "PATCH", "/devices/a085e3112233", `{"tags":["in"]}`); r.status != 200 {
		t.Fatalf("answered %d", r.status)
	}
	hour := time.Now().UTC().Truncate(time.Hour)
	count := func(at time.Time) {
		t.Helper()
		if _, err := w.store.CountTrends(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	count(hour.Add(time.Minute))             // the scope is counted from this hour on
	count(hour.Add(time.Hour + time.Hour/2)) // as if it had ended
	// The range reaches into the future, as far as the clock of the service allows.
	when := "from=" + hour.Add(-time.Hour).Format(time.RFC3339) + "&to=" + hour.Add(time.Hour).Format(time.RFC3339)
	versions := func(v TrendsView) (sum float64) {
		for _, m := range v.Metrics {
			for _, s := range m.Series {
				if n := s.Values[len(s.Values)-1]; n != nil && m.Metric == trend.Versions {
					sum += *n
				}
			}
		}
		return sum
	}
	whole := decode[TrendsView](t, w.get(t, "/trends?metric=versions,crashes&"+when), 200)
	tagged := decode[TrendsView](t, w.get(t, "/trends?of=tag:in&"+when), 200)
	if len(whole.Metrics) != 2 || versions(whole) < 2 || versions(tagged) != 1 || whole.Since == nil {
		t.Errorf("%v devices, %v of them tagged: %+v", versions(whole), versions(tagged), whole)
	}
	bearer := []string{"Authorization", "Bearer " + token}
	scoped := decode[TrendsView](t, w.as(t, "", "GET", "/trends?"+when, "", bearer...), 200)
	if versions(scoped) != 1 || len(scoped.Metrics) != len(trend.Metrics) {
		t.Errorf("a scope of one device has %+v", scoped)
	}
	for of, code := range map[string]string{"board:bread-compact-wifi": "trend_outside_scope", "tag:in": "trend_outside_scope",
		"board:none": "trend_outside_scope", "filter:none": "unknown_filter"} {
		if p := w.as(t, "", "GET", "/trends?of="+of, "", bearer...).problem(t); p.Code != code {
			t.Errorf("in a scope, %s is answered %d %s, want %s", of, p.Status, p.Code, code)
		}
	}
	for path, code := range map[string]string{
		"range=2y":                                     "invalid_request",
		"metric=devices,devices;":                      "invalid_request",
		"from=yesterday":                               "invalid_request",
		"to=" + when[len("from="):][:20]:               "invalid_history_period",
		"from=2000-01-01T00:00:00Z":                    "trend_range_too_long",
		"from=2999-01-01T00:00:00Z":                    "future_moment",
		"of=lab":                                       "invalid_trend_group",
		"of=" + url.QueryEscape("filter:x' OR 1=1 --"): "unknown_filter",
		"of=" + url.QueryEscape("tag:\x00"):            "invalid_trend_group",
	} {
		if p := w.get(t, "/trends?"+path).problem(t); p.Status >= 500 || p.Code != code {
			t.Errorf("%s is answered %d %s, want %s", path, p.Status, p.Code, code)
		}
	}
	if r := w.as(t, "", "GET", "/trends", ""); r.status != 401 {
		t.Errorf("without a token: %d", r.status)
	}
}
