package ui

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fleetd/fleet/campaign"
	"fleetd/web/i18n"
)

// What fleetd puts on record in English reads in the language of the page.
func TestSentencesOfRecord(t *testing.T) {
	verdict := campaign.JudgeAbort(campaign.DefaultAbortRules(), campaign.AbortTallies{
		ByState: map[campaign.DeploymentState]int{campaign.DeploymentRolledBack: 1},
		ByWave:  []map[campaign.DeploymentState]int{{campaign.DeploymentRolledBack: 1}}, WaveNames: []string{"canary"},
	})
	tests := []struct {
		lang         i18n.Lang
		reason, want string
	}{
		{i18n.Chinese, verdict.Sentence, "第 1 批（canary）中，1 台设备有 1 台已回滚（100%）；规则：首次出现即停止，样本至少 1 台"},
		{i18n.English, verdict.Sentence,
			"1 of 1 devices in wave 1 (canary) ended rolled back (100 %); the rule stops at the first of at least 1"},
		{i18n.Chinese, "the download broke off; 12 of 586 KiB were sent: write: broken pipe",
			"下载中断；已发送 12 / 586 KiB：write: broken pipe"},
		{i18n.Chinese, "the download broke off; 12 of 586 KiB were sent", "下载中断；已发送 12 / 586 KiB"},
		{i18n.Chinese, "power was lost", "power was lost"},
		{i18n.Chinese, "the device says: the device was retired", "设备报告：“the device was retired”"},
	}
	for _, tt := range tests {
		if got := reasonText(WithPage(t.Context(), Page{Lang: tt.lang}), tt.reason); got != tt.want {
			t.Errorf("%q reads %q, want %q", tt.reason, got, tt.want)
		}
	}
}

// foreignPart are the parts of a sentence that come from elsewhere, or from another
// function of fleetd's.
var foreignPart = regexp.MustCompile(`\{[a-z]+\}|; |: | \(|\) |%|waits for |no `)

// TestSentencesAreStillSaid finds messages whose sentence fleetd no longer
// writes: its longest part of its own stands in no source.
func TestSentencesAreStillSaid(t *testing.T) {
	var source strings.Builder
	for _, dir := range []string{"../../fleet", "../../fleet/firmware", "../../fleet/campaign", "../../fleet/rollout"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) < 10 {
			t.Fatalf("found %d files in %s: %v", len(files), dir, err)
		}
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(name, "_test.go") {
				source.Write(b)
			}
		}
	}
	for _, s := range sentences() {
		longest := ""
		for _, part := range foreignPart.Split(i18n.Raw(i18n.English, "said."+s.name, 2), -1) {
			if len(part) > len(longest) {
				longest = part
			}
		}
		if !strings.Contains(source.String(), longest) {
			t.Errorf("nothing says %q of said.%s", longest, s.name)
		}
	}
}
