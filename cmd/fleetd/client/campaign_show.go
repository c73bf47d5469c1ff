package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"

	"fleetd/fleet/campaign"
)

// campaignView is what the commands print of a campaign for a person.
type campaignView struct {
	ID, Name, Reason, Q, Digest string
	State                       campaign.State
	PauseReason                 string `json:"pause_reason"`
	ReleaseID                   string `json:"release_id"`
	Wave, Targets, Skipped      int
	CreatedAt                   time.Time `json:"created_at"`
	Counts                      map[campaign.DeploymentState]int
	Waves                       []campaignWave
	Progress                    struct {
		Funnel []struct {
			Step  string
			Count int
		}
		Failures []struct {
			State, Reason string
			Count         int
			Sample        []string
		}
		Skipped []reasonCount
	}
}

type campaignWave struct {
	Name, State, Verdict, Gate string
	Size                       int
	Counts                     map[campaign.DeploymentState]int
}

type reasonCount struct {
	Reason, Detail string
	Count          int
}

// tally sums the devices up: those with an outcome, good and bad.
func tally(counts map[campaign.DeploymentState]int) (succeeded, failed, done int) {
	for state, n := range counts {
		switch {
		case state == campaign.DeploymentSkipped:
			continue
		case state == campaign.DeploymentSucceeded:
			succeeded += n
		case state.Failed():
			failed += n
		}
		if state.Final() {
			done += n
		}
	}
	return succeeded, failed, done
}

func (v campaignView) state() string {
	if v.PauseReason != "" {
		return fmt.Sprintf("%s (%s)", v.State, v.PauseReason)
	}
	return string(v.State)
}

// printCampaign prints a campaign.
func printCampaign(c *clientFlags, answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var v campaignView
	if err := json.Unmarshal(answer, &v); err != nil {
		return err
	}
	fmt.Printf("%s  %s\n%s", v.ID, terminal.Printable(v.Name), v.state())
	if v.Reason != "" {
		fmt.Printf(": %s", terminal.Printable(v.Reason))
	}
	succeeded, failed, done := tally(v.Counts)
	fmt.Printf("\n%d devices, %d done: %d succeeded, %d failed; %d left out\n", v.Targets, done, succeeded, failed,
		v.Skipped)
	if v.State == campaign.Draft || v.State == campaign.AwaitingApproval {
		fmt.Println("digest", terminal.Printable(v.Digest))
	}
	return v.details()
}

func (v campaignView) details() error {
	fmt.Println()
	var rows [][]string
	for i, w := range v.Waves {
		succeeded, failed, done := tally(w.Counts)
		rows = append(rows, []string{strconv.Itoa(i + 1), w.Name, w.State, strconv.Itoa(w.Size), strconv.Itoa(done),
			strconv.Itoa(succeeded), strconv.Itoa(failed), w.Verdict})
	}
	if err := terminal.Table("WAVE NAME STATE DEVICES DONE SUCCEEDED FAILED VERDICT", rows); err != nil {
		return err
	}
	if v.State != campaign.Draft {
		fmt.Println()
		rows = nil
		for _, s := range v.Progress.Funnel {
			rows = append(rows, []string{s.Step, strconv.Itoa(s.Count)})
		}
		if err := terminal.Table("STEP DEVICES", rows); err != nil {
			return err
		}
	}
	if err := v.failures(); err != nil {
		return err
	}
	return reasons(v.Progress.Skipped)
}

func (v campaignView) failures() error {
	if len(v.Progress.Failures) == 0 {
		return nil
	}
	fmt.Println()
	var rows [][]string
	for _, f := range v.Progress.Failures {
		rows = append(rows, []string{f.State, strconv.Itoa(f.Count), f.Reason, strings.Join(f.Sample, ",")})
	}
	return terminal.Table("FAILED COUNT REASON DEVICES", rows)
}

func reasons(list []reasonCount) error {
	if len(list) == 0 {
		return nil
	}
	fmt.Println()
	var rows [][]string
	for _, r := range list {
		rows = append(rows, []string{r.Reason, strconv.Itoa(r.Count), r.Detail})
	}
	return terminal.Table("LEFT_OUT COUNT DETAIL", rows)
}

// printDryRun prints what a campaign would do.
func printDryRun(c *clientFlags, answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var v struct {
		Matched, Targets, Offline int
		Waves                     []campaignWave
		Skipped                   []reasonCount
		Warnings                  []struct{ Code, Detail string }
		Conflicts                 []struct {
			Name            string
			Waiting, Active int
		}
	}
	if err := json.Unmarshal(answer, &v); err != nil {
		return err
	}
	fmt.Printf("%d devices match, %d would get an image, %d of them are offline\n\n", v.Matched, v.Targets, v.Offline)
	var rows [][]string
	for i, w := range v.Waves {
		rows = append(rows, []string{strconv.Itoa(i + 1), w.Name, strconv.Itoa(w.Size), w.Gate})
	}
	if err := terminal.Table("WAVE NAME DEVICES GATE", rows); err != nil {
		return err
	}
	if err := reasons(v.Skipped); err != nil {
		return err
	}
	for _, conflict := range v.Conflicts {
		fmt.Printf("\n%s has %d of these devices waiting and %d under way", terminal.Printable(conflict.Name), conflict.Waiting,
			conflict.Active)
	}
	for _, w := range v.Warnings {
		fmt.Printf("\nwarning: %s: %s", terminal.Printable(w.Code), terminal.Printable(w.Detail))
	}
	if len(v.Conflicts)+len(v.Warnings) > 0 {
		fmt.Println()
	}
	return nil
}

type campaignList struct {
	clientFlags
	State []string `help:"Only in these states."`
	Limit int      `help:"Print at most this many." default:"1000"`
}

func (c *campaignList) Run(ctx context.Context) error {
	params := url.Values{}
	if len(c.State) > 0 {
		params.Set("state", strings.Join(c.State, ","))
	}
	items, err := c.all(ctx, "/campaigns", params, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, "ID NAME STATE WAVE DEVICES CREATED", func(v campaignView) []string {
		wave := fmt.Sprintf("%d/%d", v.Wave+1, len(v.Waves))
		return []string{v.ID, v.Name, v.state(), wave, strconv.Itoa(v.Targets), v.CreatedAt.Format(time.DateTime)}
	})
}

type campaignDeployments struct {
	campaignFlags
	State  []string `help:"Only in these states."`
	Class  string   `help:"Only with this class of failure."`
	Board  string   `help:"Only of this board."`
	Device string   `help:"Only this device."`
	Limit  int      `help:"Print at most this many." default:"1000"`
}

func (c *campaignDeployments) Run(ctx context.Context) error {
	params := url.Values{}
	for name, v := range map[string]string{"state": strings.Join(c.State, ","), "class": c.Class, "board": c.Board,
		"device": c.Device} {
		if v != "" {
			params.Set(name, v)
		}
	}
	items, err := c.all(ctx, campaignPath(c.ID, "/deployments"), params, c.Limit)
	if err != nil {
		return err
	}
	type view struct {
		DeviceID           string `json:"device_id"`
		Board, State, Skip string
		Wave               *int
		Attempts           int
		FromVersion        string `json:"from_version"`
		ToVersion          string `json:"to_version"`
		FailureClass       string `json:"failure_class"`
		Reason             string
	}
	return listed(&c.clientFlags, items, "DEVICE BOARD WAVE STATE ATTEMPTS FROM TO REASON", func(v view) []string {
		wave := ""
		if v.Wave != nil {
			wave = strconv.Itoa(*v.Wave + 1)
		}
		reason := v.Reason
		if reason == "" {
			reason = v.Skip
		}
		return []string{v.DeviceID, v.Board, wave, v.State, strconv.Itoa(v.Attempts), v.FromVersion, v.ToVersion, reason}
	})
}
