package ui

import (
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// TestDeviceReports: a device's own text is marked as foreign in each language, and never shown as
// fleetd's.
func TestDeviceReports(t *testing.T) {
	ctx := WithPage(t.Context(), Page{Lang: i18n.Chinese})
	reported := campaign.Deployment{State: campaign.DeploymentFailed, Class: campaign.FailureImage,
		Reason: fleet.Because(campaign.ReasonDeviceReported, "error", "", "detail", "the device was retired")}
	if got := i18n.Unmarked((DeploymentRow{Deployment: reported}).detail(ctx)); got != "设备报告：“the device was retired”" {
		t.Errorf("the row says %q", got)
	}
	if got := because(ctx, fleet.Because(campaign.ReasonRetired)); got != "设备已退役" {
		t.Errorf("fleetd's own reason became %q", got)
	}
}

// A recorded code is shown in the language of the page.
func TestReasonsOnRecord(t *testing.T) {
	verdict := campaign.JudgeAbort(campaign.DefaultAbortRules(), campaign.AbortEvidence{WaveNames: []string{"canary"},
		Cohorts: campaign.Cohorts{Size: 1, ByWave: map[int]int{0: 1}, Failures: []campaign.CohortFailure{
			{State: campaign.DeploymentRolledBack, InCampaign: 1, InWave: 1, InBoard: 1}}}})
	before := fleet.Because(campaign.ReasonRuleFired, "counted", 19, "of", 184, "scope",
		fleet.Because(campaign.ReasonScopeOfAll), "outcome", fleet.Because("outcome_any"), "share", "10.3",
		"limit", fleet.Because(campaign.ReasonLimitShare, "share", "10"), "sample", 5)
	cut := fleet.Because(campaign.ReasonBrokeOff, "sent_bytes", 12<<10, "image_bytes", 586<<10)
	why := fleet.Because(campaign.ReasonBrokeOffBecause, "sent_bytes", 12<<10, "image_bytes", 586<<10, "why",
		fleet.Because(firmware.TransferStuck))
	tests := []struct {
		lang   i18n.Lang
		reason fleet.Reason
		want   string
	}{
		{i18n.Chinese, verdict.Reason(), "第 1 批（canary）中已下发的 1 台设备有 1 台已回滚；规则：首次出现即停止"},
		{i18n.English, verdict.Reason(),
			"1 of 1 device dispatched in wave 1 (canary) ended rolled back; the rule stops at the first"},
		{i18n.English, before,
			"19 of 184 devices in the campaign ended failed (10.3%); the rule stops at 10% of at least 5"},
		{i18n.Chinese, cut, "下载中断；已发送 12.0 KiB / 586 KiB"},
		{i18n.Chinese, why, "下载中断；已发送 12.0 KiB / 586 KiB：设备不再接收数据"},
		{i18n.Chinese, fleet.Because("legacy", "detail", "power was lost"), "power was lost"},
		{i18n.Chinese, fleet.Because("skipped", "skip", "held"), "已被锁定"},
		{i18n.English, fleet.Because("skipped", "skip", "new_in_3"), "new_in_3"},
		{i18n.English, fleet.Reason{}, ""},
	}
	for _, tt := range tests {
		if got := because(WithPage(t.Context(), Page{Lang: tt.lang}), tt.reason); got != tt.want {
			t.Errorf("%v reads %q, want %q", tt.reason, got, tt.want)
		}
	}
}

func TestReportsInTheTimeLine(t *testing.T) {
	ctx := WithPage(t.Context(), Page{Lang: i18n.English})
	tests := []struct {
		reason fleet.Reason
		want   string
	}{
		{fleet.Because("job_accepted"), "that it accepted the order"},
		{fleet.Because("job_progress", "percent", 50), "that it has 50% of the image"},
		{fleet.Because("job_done"), "that the new build passed its trial"},
		{fleet.Because("job_failed", "error", "corrupt", "detail", "the image's SHA-256: wrong"),
			"a failure: The image is damaged or its checksum is wrong. “the image's SHA-256: wrong”"},
		{fleet.Because("job_failed", "error", "new_in_3", "detail", "nobody knows"), "a failure: new_in_3 “nobody knows”"},
		{fleet.Because("something_new"), "something_new"},
	}
	for _, tt := range tests {
		if got := because(ctx, tt.reason); strings.ReplaceAll(got, " %", "%") != tt.want {
			t.Errorf("%v reads %q, want %q", tt.reason, got, tt.want)
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
		"the device reports 40") || strings.Contains(stock, "the device reports") {
		t.Errorf("stock: %q, reporting: %q", stock, got)
	}
	if downloaded(1, 2, nil) != 0.5 || downloaded(1, 2, &percent) != 0.4 {
		t.Error("the bar shows another share")
	}
}

// The accepted step has its own text.
func TestAcceptedOnCallPage(t *testing.T) {
	v := CallView{Call: fleet.Call{Evidence: []fleet.Evidence{{Kind: fleet.EvidenceSent}, {Kind: fleet.EvidenceJob,
		Detail: "accepted"}, {Kind: fleet.EvidenceConnect}}}}
	for _, s := range v.steps() {
		if !i18n.Has(s.key) {
			t.Errorf("no words for the step %q", s.key)
		}
	}
}

// A device that is not updated is shown with the reason, and with what an operator can do. Of a plan that leaves the
// mode open, a device that is away needs no boot: it is notified when it connects.
func TestAdvice(t *testing.T) {
	ctx := WithPage(t.Context(), Page{Lang: i18n.English})
	in := func(d campaign.Deployment, h campaign.BlockReason, m firmware.DispatchMode) DeploymentView {
		return DeploymentView{Campaign: campaign.Campaign{Plan: campaign.Plan{Mode: m}}, Deployment: d, BlockReason: h,
			CanAct: true}
	}
	queued := campaign.Deployment{State: campaign.DeploymentQueued}
	for _, tt := range []struct {
		view          DeploymentView
		waits, advice string
	}{
		{in(queued, campaign.BlockAwaitsPoll, firmware.ModeAuto),
			"The device is offline or has no upgrade tool. It gets the image when it connects or boots.",
			"Check its power and network. If it is online, restart it."},
		{in(queued, campaign.BlockAwaitsPoll, firmware.ModePull),
			"Waiting for the device’s next boot, when it is offered the image.",
			"Restart the device, or press “Pull now” on the campaign’s page."},
		{in(queued, campaign.BlockWindow, firmware.ModeAuto), "Waiting for its window to open.", ""},
		{in(queued, campaign.BlockNone, firmware.ModeAuto), "", ""},
		{in(campaign.Deployment{State: campaign.DeploymentSkipped, Skip: firmware.SkipHeld}, "", firmware.ModeAuto), "",
			"Press “End hold” on the device’s page, then update it from there."},
		{in(campaign.Deployment{State: campaign.DeploymentRejected, Class: campaign.FailureRejected}, "", firmware.ModeAuto),
			"", "Remove the cause that the device reports, then press “Try again”."},
		{in(campaign.Deployment{State: campaign.DeploymentSucceeded}, "", firmware.ModeAuto), "", ""},
	} {
		d := tt.view.Deployment
		if waits, advice := tt.view.waits(ctx), tt.view.advice(ctx); waits != tt.waits || advice != tt.advice {
			t.Errorf("%s %s: %q, %q", d.State, tt.view.BlockReason, waits, advice)
		}
		tt.view.CanAct = false
		if advice := tt.view.advice(ctx); advice != "" {
			t.Errorf("%s: a viewer is advised: %q", d.State, advice)
		}
	}
}
