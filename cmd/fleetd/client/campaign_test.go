package client

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleetd/fleet/campaign"
)

// The plan's file and the flags make one body; a field in neither is a mistake
// of the command line.
func TestCampaignBody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.json")
	everyone, lab := "", "tag:lab"
	tests := []struct {
		name, plan string
		flags      campaignCreate
		want, fail string
	}{
		{name: "flags alone", flags: campaignCreate{Name: "n", Release: "r", Query: &lab, Mode: "push", MaxInFlight: 3,
			Approval: true},
			want: `{"approval_required":true,"max_in_flight":3,"mode":"push","name":"n","q":"tag:lab","release_id":"r"}`},
		{name: "every device", flags: campaignCreate{Name: "n", Release: "r", Query: &everyone},
			want: `{"name":"n","q":"","release_id":"r"}`},
		{name: "file alone", plan: `{"name":"n","release_id":"r","devices":["a"],"windows":[{"cron":"0 2 * * *"}]}`,
			want: `{"devices":["a"],"name":"n","release_id":"r","windows":[{"cron":"0 2 * * *"}]}`},
		{name: "a flag goes before the file", plan: `{"name":"n","release_id":"r","devices":["a"]}`,
			flags: campaignCreate{Name: "m", Query: &lab},
			want:  `{"name":"m","q":"tag:lab","release_id":"r"}`},
		{name: "canaries by number", flags: campaignCreate{Name: "n", Release: "r", Query: &lab, Canary: "5"},
			want: `{"name":"n","q":"tag:lab","release_id":"r","waves":[{"count":5,"name":"canary"},{"name":"rest","percent":100}]}`},
		{name: "canaries by share", flags: campaignCreate{Name: "n", Release: "r", Query: &lab, Canary: "2.5%"},
			want: `{"name":"n","q":"tag:lab","release_id":"r","waves":[{"name":"canary","percent":2.5},{"name":"rest","percent":100}]}`},
		{name: "no canary", flags: campaignCreate{Name: "n", Release: "r", Query: &lab, Canary: "0"}, fail: "--canary"},
		{name: "all canaries", flags: campaignCreate{Name: "n", Release: "r", Query: &lab, Canary: "100%"}, fail: "--canary"},
		{name: "no number", flags: campaignCreate{Name: "n", Release: "r", Query: &lab, Canary: "NaN%"}, fail: "--canary"},
		{name: "no release", flags: campaignCreate{Name: "n", Query: &lab}, fail: "--release"},
		{name: "no devices", flags: campaignCreate{Name: "n", Release: "r"}, fail: "--q"},
		{name: "a broken file", plan: `{"name":`, fail: "not a JSON object"},
		{name: "a list", plan: `[]`, fail: "not a JSON object"},
		{name: "null", plan: `null`, fail: "null"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.plan != "" {
				if err := os.WriteFile(file, []byte(tt.plan), 0o600); err != nil {
					t.Fatal(err)
				}
				tt.flags.Plan = file
			}
			body, err := tt.flags.body()
			got, _ := json.Marshal(body)
			switch {
			case tt.fail == "" && (err != nil || string(got) != tt.want):
				t.Errorf("the body is %s (%v), want %s", got, err, tt.want)
			case tt.fail != "" && (err == nil || !strings.Contains(err.Error(), tt.fail)):
				t.Errorf("the error is %v, want one about %s", err, tt.fail)
			}
		})
	}
}

func TestTally(t *testing.T) {
	succeeded, failed, done := tally(map[campaign.DeploymentState]int{campaign.DeploymentSucceeded: 5,
		campaign.DeploymentFailed: 2, campaign.DeploymentUnhealthy: 1,
		campaign.DeploymentSkipped: 7, campaign.DeploymentVerifying: 3, campaign.DeploymentQueued: 4,
		campaign.DeploymentCanceled: 6})
	if succeeded != 5 || failed != 3 || done != 14 {
		t.Errorf("%d succeeded, %d failed, %d done; want 5, 3, 14", succeeded, failed, done)
	}
}
