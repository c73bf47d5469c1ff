package ui

import (
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/web/i18n"
)

// TestDeviceWords: a device's own sentence is marked as such in each language,
// and never taken for fleetd's.
func TestDeviceWords(t *testing.T) {
	ctx := WithPage(t.Context(), Page{Lang: i18n.Chinese})
	told := campaign.Deployment{State: campaign.DeploymentFailed, Class: campaign.FailureImage,
		Reason: "the device says: not sound"}
	if got := (DeploymentRow{Deployment: told}).detail(ctx); got != "设备报告：“not sound”" {
		t.Errorf("the row says %q", got)
	}
	if got := reasonText(ctx, "the device was retired"); got != "设备已退役" {
		t.Errorf("fleetd's own reason became %q", got)
	}
}

func TestReportsInTheTimeLine(t *testing.T) {
	ctx := WithPage(t.Context(), Page{Lang: i18n.English})
	for detail, want := range map[string]string{
		"accepted":    "that it took the order",
		"progress 50": "that it has 50% of the image",
		"done":        "that the new build has proved itself",
		"failed corrupt: the image's SHA-256: wrong": "a failure: The image is damaged or its checksum is wrong. “the image's SHA-256: wrong”",
		"failed new_in_3: nobody knows":              "a failure: new_in_3 “nobody knows”",
		"something new":                              "something new",
	} {
		got := detailOf(ctx, campaign.DeploymentEvent{Kind: fleet.EvidenceJob, Detail: detail})
		if strings.ReplaceAll(got, " %", "%") != want {
			t.Errorf("%q reads %q, want %q", detail, got, want)
		}
	}
}

func TestPercentOfTheDevice(t *testing.T) {
	ctx := WithPage(t.Context(), Page{Lang: i18n.English})
	percent := 40
	d := campaign.Deployment{State: campaign.DeploymentDownloading, BytesSent: 1 << 20, ImageSize: 2 << 20}
	stock := DeploymentRow{Deployment: d}.detail(ctx)
	d.Percent = &percent
	if got := (DeploymentRow{Deployment: d}).detail(ctx); !strings.HasPrefix(got, stock) || !strings.Contains(got,
		"the device has 40") || strings.Contains(stock, "the device has") {
		t.Errorf("stock: %q, reporting: %q", stock, got)
	}
	if downloaded(1, 2, nil) != 0.5 || downloaded(1, 2, &percent) != 0.4 {
		t.Error("the bar shows another share")
	}
}

// TestAcceptedOnCallPage: the step has words of its own.
func TestAcceptedOnCallPage(t *testing.T) {
	v := CallView{Call: fleet.Call{Evidence: []fleet.Evidence{{Kind: fleet.EvidenceSent}, {Kind: fleet.EvidenceJob,
		Detail: "accepted"}, {Kind: fleet.EvidenceConnect}}}}
	for _, s := range v.steps() {
		if !i18n.Has(s.key) {
			t.Errorf("no words for the step %q", s.key)
		}
	}
}
