package ui

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// The values are from published tables of the interval.
func TestWilson(t *testing.T) {
	for _, tt := range []struct {
		ok, of int
		want   string
	}{
		{0, 0, "0.000 1.000"}, {0, 10, "0.000 0.278"}, {10, 10, "0.722 1.000"}, {1, 1, "0.207 1.000"}, {5, 10, "0.237 0.763"},
		{98, 100, "0.930 0.994"}, {9_800, 10_000, "0.977 0.983"},
	} {
		lo, hi := campaign.Wilson(tt.ok, tt.of, z95)
		if got := fmt.Sprintf("%.3f %.3f", lo, hi); got != tt.want {
			t.Errorf("wilson(%d, %d) = %s, want %s", tt.ok, tt.of, got, tt.want)
		}
	}
}

func TestFunnel(t *testing.T) {
	b := CampaignBoard{Progress: campaign.Progress{
		ByState: map[campaign.DeploymentState]int{campaign.DeploymentQueued: 4, campaign.DeploymentDownloading: 3,
			campaign.DeploymentFailed: 2, campaign.DeploymentSucceeded: 1},
		Reached: map[campaign.FunnelStep]int{campaign.FunnelPlanned: 10, campaign.FunnelNotified: 6, campaign.FunnelGet: 6,
			campaign.FunnelDownloaded: 1, campaign.FunnelGoodbye: 1,
			campaign.FunnelBootPoll: 1, campaign.FunnelInitialize: 1, campaign.FunnelSucceeded: 1},
	}}
	got := ""
	for _, s := range b.funnel() {
		got += fmt.Sprintf("%s %d/%d/%d ", s.step, s.count, s.here, s.lost)
	}
	want := "planned 10/4/0 told 6/0/0 get 6/3/2 downloaded 1/0/0 goodbye 1/0/0 boot_poll 1/0/0 initialize 1/0/0 succeeded 1/0/0 "
	if got != want {
		t.Errorf("count/here/lost by step:\n%s\nwant\n%s", got, want)
	}
}

// A rule is shown with its figure for the wave or board where it is closest to firing.
func TestRuleFigures(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	failures := func(places ...int) campaign.Cohorts {
		c := campaign.Cohorts{Size: 484, ByWave: map[int]int{0: 184, 1: 300}, ByBoard: map[string]int{"a": 484}}
		for _, n := range places {
			c.Failures = append(c.Failures, campaign.CohortFailure{State: campaign.DeploymentRejected, Board: "a", At: now,
				InCampaign: n, InWave: n, InBoard: n})
		}
		return c
	}
	rule := campaign.AbortRule{Class: campaign.ClassAny, MinExecuted: 5, Percent: 10, Scope: campaign.ScopeCampaign}
	later := now.Add(time.Minute)
	for _, tt := range []struct {
		name      string
		edit      func(*campaign.AbortRule)
		cohorts   campaign.Cohorts
		overruled *time.Time
		en, zh    string
	}{
		{"no failure", nil, failures(), nil, "0 of 484 dispatched devices", "已下发 484 台，其中 0 台"},
		{"some", nil, failures(3, 90, 150), nil,
			"nearest: 3 of the first 150 devices dispatched, 2%; at least 0.5% with 99% confidence",
			"最接近：最先下发的 150 台中 3 台，2%；以 99% 的置信度不低于 0.5%"},
		{"the plain share", func(r *campaign.AbortRule) { r.Measure = campaign.MeasureShare }, failures(3, 90, 150), nil,
			"nearest: 1 of the first 5 devices dispatched, 20%", "最接近：最先下发的 5 台中 1 台，20%"},
		{"overruled", nil, failures(1, 2, 3), &later, "resumed despite these failures; evaluated again at the next failure",
			"已人工恢复；下次失败时重新判定"},
		{"a board", func(r *campaign.AbortRule) { r.Scope = campaign.ScopeBoard }, failures(7), nil, "board <span class=\"foreign\">a</span>", "板型 <span class=\"foreign\">a</span>"},
		{"a wave that has not begun", func(r *campaign.AbortRule) { r.Scope, r.Wave = campaign.ScopeWave, 3 }, failures(7), nil,
			"applies once 5 devices are dispatched", "满 5 台后生效"},
	} {
		r := rule
		if tt.edit != nil {
			tt.edit(&r)
		}
		b := CampaignBoard{Campaign: campaign.Campaign{OverruledAt: tt.overruled, Plan: campaign.Plan{
			AbortRules: []campaign.AbortRule{r}}}, Waves: make([]campaign.Wave, 3),
			Progress: campaign.Progress{Cohorts: tt.cohorts}}
		for lang, want := range map[i18n.Lang]string{i18n.English: tt.en, i18n.Chinese: tt.zh} {
			var html strings.Builder
			if err := b.Rules().Render(WithPage(t.Context(), Page{Lang: lang}), &html); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(html.String(), want) {
				t.Errorf("%s: the page lacks %q:\n%s", tt.name, want, html.String())
			}
		}
	}
}

// Every code of the domain has a text in both languages.
func TestCampaignWords(t *testing.T) {
	var keys []string
	for _, s := range campaign.States {
		keys = append(keys, "campaign.state."+string(s), "campaign.say."+string(s))
	}
	for _, r := range []campaign.PauseReason{campaign.PausedByOperator, campaign.PausedByWindow,
		campaign.PausedByThreshold, campaign.PausedByGate, campaign.PausedBySystem} {
		keys = append(keys, "campaign.paused."+string(r), "campaign.say.paused."+string(r))
	}
	for _, s := range campaign.DeploymentStates {
		keys = append(keys, "campaign.dep."+string(s), "campaign.verdict."+string(s))
	}
	for _, c := range campaign.FailureClasses {
		keys = append(keys, "campaign.fail."+string(c), "campaign.verdict.class."+string(c))
	}
	for _, r := range firmware.SkipReasons {
		keys = append(keys, "campaign.skip."+string(r))
	}
	for _, s := range campaign.FunnelSteps {
		keys = append(keys, "campaign.step_name."+string(s))
	}
	for _, s := range []campaign.WaveState{campaign.WavePending, campaign.WaveRunning, campaign.WaveSoaking,
		campaign.WaveGated, campaign.WaveFinished, campaign.WaveFailed} {
		keys = append(keys, "campaign.wavestate."+string(s))
	}
	for _, key := range keys {
		if !i18n.Has(key) {
			t.Errorf("there is no message %s", key)
		}
	}
}

// In flight are the devices that the plan's limit counts: devices that only soak are not counted.
func TestTallyCountsInFlightAsTheLimitDoes(t *testing.T) {
	byState := make(map[campaign.DeploymentState]int)
	limited := 0
	for _, s := range campaign.DeploymentStates {
		byState[s] = 1
		if s.InFlight() {
			limited++
		}
	}
	c := NewCampaignTally(byState)
	if c.InFlight != limited || c.Verifying != 1 || c.total() != len(byState)-1 { // all but the skipped one
		t.Errorf("%+v of one device in each state; the limit counts %d in flight", c, limited)
	}
	for _, e := range c.entries() {
		n := 0
		for _, s := range DeploymentStates(e.group) {
			n += byState[s]
		}
		if n != e.count {
			t.Errorf("%s counts %d and leads to a list of %d", e.key, e.count, n)
		}
	}
}

// Before a resume after an abort rule the board explains its effect; the resume is the primary act
// only while the wave can still reach its success rate.
func TestResumeSaysWhatItDoes(t *testing.T) {
	open := map[campaign.DeploymentState]int{campaign.DeploymentFailed: 2, campaign.DeploymentQueued: 5,
		campaign.DeploymentVerifying: 1}
	over := map[campaign.DeploymentState]int{campaign.DeploymentFailed: 8}
	for _, tt := range []struct {
		wave    campaign.WaveState
		states  map[campaign.DeploymentState]int
		say     string
		primary bool
	}{
		{campaign.WaveRunning, open, "continues with the 6 devices left in wave 1, which needs 95%", true},
		{campaign.WaveFailed, open, "can no longer reach 95% success. “Resume” still updates the 6 devices left", false},
		{campaign.WaveFailed, over, "every device in it has had its turn", false},
	} {
		b := CampaignBoard{CanAct: true, Campaign: campaign.Campaign{State: campaign.Paused,
			PauseReason: campaign.PausedByThreshold},
			Waves:    []campaign.Wave{{State: tt.wave, Size: 8, Plan: campaign.WavePlan{SuccessPercent: 95}}, {}},
			Progress: campaign.Progress{ByWave: []map[campaign.DeploymentState]int{tt.states}}}
		ctx := WithPage(t.Context(), Page{Lang: i18n.English})
		if say := b.resumeSaying(ctx); !strings.Contains(say, tt.say) {
			t.Errorf("%s: says %q, want %q", tt.wave, say, tt.say)
		}
		var html strings.Builder
		if err := b.Actions().Render(ctx, &html); err != nil {
			t.Fatal(err)
		}
		_, form, _ := strings.Cut(html.String(), "/resume\"")
		form, _, _ = strings.Cut(form, "</form>")
		if strings.Contains(form, "btn-primary") != tt.primary {
			t.Errorf("%s: the form is %s", tt.wave, form)
		}
	}
}

// A wave of a paused campaign shows that it is paused, whatever its state.
func TestWaveOfAPausedCampaign(t *testing.T) {
	for _, state := range []campaign.WaveState{campaign.WaveRunning, campaign.WaveSoaking} {
		b := CampaignBoard{Campaign: campaign.Campaign{State: campaign.Paused, PauseReason: campaign.PausedByThreshold},
			Waves: []campaign.Wave{{State: state, Size: 8, Plan: campaign.WavePlan{SuccessPercent: 90}}},
			Progress: campaign.Progress{ByWave: []map[campaign.DeploymentState]int{{campaign.DeploymentSucceeded: 5,
				campaign.DeploymentRejected: 1, campaign.DeploymentQueued: 2}}}}
		for lang, want := range map[i18n.Lang][]string{
			i18n.English: {">paused<", "Paused: 6 of 8 judged, 0 continue."},
			i18n.Chinese: {">已暂停<", "已暂停：已判定 6 / 8"}} {
			var html strings.Builder
			if err := b.Wave(0).Render(WithPage(t.Context(), Page{Lang: lang}), &html); err != nil {
				t.Fatal(err)
			}
			for _, text := range want {
				if !strings.Contains(html.String(), text) {
					t.Errorf("%s: the wave lacks %q:\n%s", state, text, html.String())
				}
			}
		}
	}
}

// A release that the device rolled back is not offered, and the page names the paused campaign with
// the device.
func TestReleaseThatRolledBackHere(t *testing.T) {
	at := time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)
	d := campaign.Deployment{State: campaign.DeploymentRolledBack, UpdatedAt: at, FromVersion: "1.1.0", ToVersion: "1.2.0"}
	v := DeviceUpdates{CanAct: true, Outlook: campaign.Outlook{Deployment: &d,
		Campaign:   &campaign.Campaign{State: campaign.Paused, Plan: campaign.Plan{Name: "Autumn"}},
		RolledBack: []campaign.RolledBackRelease{{Release: firmware.Release{Version: "1.2.0"}, Deployment: d}}}}
	var html strings.Builder
	ctx := WithPage(t.Context(), Page{Lang: i18n.English, Zone: time.UTC})
	if err := v.View().Render(ctx, &html); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"The campaign “Autumn” (paused) includes this device", "rolled back on this device on",
		"Try it again…"} {
		if !strings.Contains(html.String(), text) {
			t.Errorf("the page lacks %q:\n%s", text, html.String())
		}
	}
	if strings.Contains(html.String(), "No open campaign") {
		t.Error("the page says that no open campaign has the device")
	}
}

// The devices that are left out are listed by board, each with its count and reason.
func TestLeftOutByBoard(t *testing.T) {
	noImage := func(board string, n int) firmware.Misfits {
		return firmware.Misfits{Reason: firmware.SkipNoImage, Board: board, Count: n,
			Detail: fleet.Because(firmware.FitRelease, "version", "1.2.0", "board", board, "chip", "esp32s3")}
	}
	all := []firmware.Misfits{noImage("bread-compact-wifi", 1675), noImage("esp-box-3", 1650), noImage("korvo", 2),
		{Reason: firmware.SkipHeld, Board: "korvo", Count: 3}}
	bare := slices.Clone(all)
	for i := range bare {
		bare[i].Detail = fleet.Reason{}
	}
	for name, tt := range map[string]struct {
		part templ.Component
		want []string
	}{
		"wizard": {misfits(all), []string{"3,327 no image for its board and chip " +
			"1,675 bread-compact-wifi release 1.2.0 has no image for bread-compact-wifi with esp32s3 " +
			"1,650 esp-box-3 release 1.2.0 has no image for esp-box-3 with esp32s3 " +
			"2 korvo release 1.2.0 has no image for korvo with esp32s3 3 on hold"}},
		"release": {FitView{Report: &firmware.FitReport{Matched: 3330, Misfits: all}}.report(), []string{
			"3,327 no image for its board and chip 1,675 bread-compact-wifi release 1.2.0 has no image for bread-compact-wifi",
			"1,650 esp-box-3 release 1.2.0 has no image for esp-box-3", "3,330 devices do not fit"}},
		"campaign": {CampaignBoard{Progress: campaign.Progress{Skipped: bare}}.Skips(), []string{
			"3,327 no image for its board and chip 1,675 bread-compact-wifi 1,650 esp-box-3 2 korvo 3 on hold"}},
	} {
		var html strings.Builder
		if err := tt.part.Render(WithPage(t.Context(), Page{Lang: i18n.English}), &html); err != nil {
			t.Fatal(err)
		}
		text := plain(html.String())
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s reads %q, want %q", name, text, want)
			}
		}
	}
}

// Devices that rolled back a release are not among the devices that it fits.
func TestFitSaysWhoRolledItBack(t *testing.T) {
	for lang, want := range map[i18n.Lang]string{
		i18n.English: "1 device fits 2 devices rolled it back The image fits; a campaign would try it again.",
		i18n.Chinese: "1 台设备适用 2 台设备曾回滚 适用；升级活动会再次尝试。"} {
		var html strings.Builder
		v := FitView{Report: &firmware.FitReport{Matched: 3, Fit: 1, RolledBack: 2}}
		if err := v.report().Render(WithPage(t.Context(), Page{Lang: lang}), &html); err != nil {
			t.Fatal(err)
		}
		if text := plain(html.String()); !strings.Contains(text, want) {
			t.Errorf("%s: the card reads %q, want %q", lang, text, want)
		}
	}
}

// plain returns the text of a page, without its tags.
func plain(html string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(html, " ")), " ")
}
