package campaign_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/i18n"
)

// said returns a reason as people read it.
func said(r fleet.Reason) string { return i18n.Because(i18n.English, time.UTC, "reason.", r) }

// saidError returns what a health check found, as people read it.
func saidError(err error) string {
	if failed, ok := errors.AsType[*campaign.CheckError](err); ok {
		return said(failed.Reason)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// reportOf returns the device's own text if the reason has it.
func reportOf(r fleet.Reason) (text string, reported bool) {
	text, _ = r.Params["detail"].(string)
	return text, campaign.ReportedByDevice(r)
}

// mustBeKnown: the table has every stored code with all of its parameters.
func mustBeKnown(t interface{ Errorf(string, ...any) }, r fleet.Reason) {
	if r.Is("") && len(r.Params) == 0 {
		return
	}
	names, known := campaign.Reasons[r.Code]
	if !known || len(names) != len(r.Params) {
		t.Errorf("the reason %v is not in the table with these parameters", r)
	}
	for name, value := range r.Params {
		if !slices.Contains(names, name) {
			t.Errorf("%s is no parameter of %s", name, r.Code)
		}
		if nested, ok := value.(fleet.Reason); ok {
			mustBeKnown(t, nested)
		}
	}
}

func TestParseRefusal(t *testing.T) {
	tests := []struct{ message, code, text string }{
		{"busy: an upgrade is under way", "busy", "an upgrade is under way"},
		{"refused: no: never", "refused", "no: never"},
		{"Missing valid argument: url", "", "Missing valid argument: url"},
		{"busy", "", "busy"},
		{"", "", ""},
	}
	for _, tt := range tests {
		if code, text := campaign.ParseRefusal(tt.message); code != tt.code || text != tt.text {
			t.Errorf("%q is %q, %q; want %q, %q", tt.message, code, text, tt.code, tt.text)
		}
	}
}
