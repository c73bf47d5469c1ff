package forms

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

func TestRuleSurvivesItsForm(t *testing.T) {
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	if err != nil {
		t.Fatal(err)
	}
	full := enrolment.Rule{Name: "春季 🦊", Action: enrolment.RuleAccept, Boards: []string{"esp-box*", "atoms3r"},
		Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8::/32")},
		Devices:  []fleet.DeviceID{"a085e3112233", "a085e3112244"},
		From:     new(time.Date(2026, 12, 1, 18, 30, 0, 0, time.UTC)),
		Until:    new(time.Date(2026, 12, 9, 0, 0, 0, 0, time.UTC)), MaxDevices: 40, Tags: []string{"lab", "2F"}, Enabled: true}
	for _, rule := range []enrolment.Rule{full, {Name: "bare", Action: enrolment.RuleRefuse}} {
		got, err := FillRule(rule, shanghai).Read(shanghai)
		diff := cmp.Diff(rule, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{}))
		if diff != "" || err != nil {
			t.Errorf("%s comes back changed, with the error %v:\n%s", rule.Name, err, diff)
		}
	}
}
