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

// tally counts the devices that succeeded, those that failed, and all in a
// final state. It leaves out skipped devices.
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

// stateText returns a campaign's state, with the reason for a pause.
func stateText(state campaign.State, pause *string) string {
	if orEmpty(pause) != "" {
		return fmt.Sprintf("%s (%s)", state, *pause)
	}
	return string(state)
}

// printCampaign prints a campaign.
func printCampaign(c *clientFlags, answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var v Campaign
	if err := json.Unmarshal(answer, &v); err != nil {
		return err
	}
	fmt.Printf("%s  %s\n%s", v.ID, terminal.Printable(v.Name), stateText(v.State, v.PauseReason))
	if v.Reason != "" {
		fmt.Printf(": %s", terminal.Printable(v.Reason))
	}
	succeeded, failed, done := tally(v.Counts)
	fmt.Printf("\n%d devices, %d done: %d succeeded, %d failed; %d left out\n", v.Targets, done, succeeded, failed,
		v.Skipped)
	if v.Within != "" {
		fmt.Println("limited to", terminal.Printable(v.Within))
	}
	if by := v.TakenOverBy; by != nil {
		fmt.Println("taken over by", terminal.Printable(by.Name))
	}
	if v.NoRollback != "" {
		fmt.Println("no rollback:", terminal.Printable(v.NoRollback))
	}
	if v.State == campaign.Draft || v.State == campaign.AwaitingApproval {
		fmt.Println("digest", terminal.Printable(v.Digest))
	}
	return v.details()
}

func (v Campaign) details() error {
	fmt.Println()
	var rows [][]string
	for i, w := range v.Waves {
		succeeded, failed, done := tally(w.Counts)
		rows = append(rows, []string{strconv.Itoa(i + 1), orEmpty(w.Name), w.State, itoa(w.Size), strconv.Itoa(done),
			strconv.Itoa(succeeded), strconv.Itoa(failed), w.Verdict})
	}
	if err := terminal.Table("WAVE NAME STATE DEVICES DONE SUCCEEDED FAILED VERDICT", rows); err != nil {
		return err
	}
	if v.State != campaign.Draft {
		fmt.Println()
		rows = nil
		for _, s := range v.Progress.Funnel {
			rows = append(rows, []string{s.Step, itoa(s.Count)})
		}
		if err := terminal.Table("STEP DEVICES", rows); err != nil {
			return err
		}
	}
	if err := v.failures(); err != nil {
		return err
	}
	var skipped [][]string
	for _, r := range v.Progress.Skipped {
		skipped = append(skipped, []string{r.Reason, r.Board, itoa(r.Count), ""})
	}
	return leftOut(skipped)
}

func (v Campaign) failures() error {
	if len(v.Progress.Failures) == 0 {
		return nil
	}
	fmt.Println()
	var rows [][]string
	for _, f := range v.Progress.Failures {
		rows = append(rows, []string{f.State, itoa(f.Count), f.Reason, strings.Join(f.Sample, ",")})
	}
	return terminal.Table("FAILED COUNT REASON DEVICES", rows)
}

// leftOut prints the devices that get no image, and why.
func leftOut(rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Println()
	return terminal.Table("LEFT_OUT BOARD COUNT DETAIL", rows)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// printDryRun prints the effects that a campaign would have.
func printDryRun(c *clientFlags, answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var v DryRun
	if err := json.Unmarshal(answer, &v); err != nil {
		return err
	}
	if v.Within != "" {
		fmt.Printf("limited to %s\n", terminal.Printable(v.Within))
	}
	fmt.Printf("%d devices match, %d would get an image, %d of them are offline\n\n", v.Matched, v.Targets, v.Offline)
	var rows [][]string
	for i, w := range v.Waves {
		rows = append(rows, []string{strconv.Itoa(i + 1), orEmpty(w.Name), itoa(w.Size), orEmpty(w.Gate)})
	}
	if err := terminal.Table("WAVE NAME DEVICES GATE", rows); err != nil {
		return err
	}
	rows = nil
	for _, m := range v.Skipped {
		rows = append(rows, []string{m.Reason, m.Board, itoa(m.Count), m.Detail})
	}
	if err := leftOut(rows); err != nil {
		return err
	}
	for _, conflict := range v.Conflicts {
		fmt.Printf("\n%s has %d of these devices waiting and %d in progress", terminal.Printable(conflict.Name), conflict.Waiting,
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
	State []string `help:"List only campaigns in these states."`
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
	return listed(&c.clientFlags, items, "ID NAME STATE WAVE DEVICES CREATED", func(v CampaignItem) []string {
		wave := fmt.Sprintf("%d/%d", v.Wave+1, len(v.Waves))
		return []string{v.ID, v.Name, stateText(v.State, v.PauseReason), wave, itoa(v.Targets),
			v.CreatedAt.Format(time.DateTime)}
	})
}

type campaignDeployments struct {
	campaignFlags
	State  []string `help:"List only devices in these states."`
	Class  string   `help:"List only devices with this class of failure."`
	Board  string   `help:"List only devices with this board."`
	Device string   `help:"List only this device."`
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
	return listed(&c.clientFlags, items, "DEVICE BOARD WAVE STATE ATTEMPTS FROM TO REASON", func(v Deployment) []string {
		wave := ""
		if v.Wave != nil {
			wave = itoa(*v.Wave + 1)
		}
		reason := v.Reason
		if reason == "" {
			reason = orEmpty(v.Skip)
		}
		return []string{v.DeviceID, v.Board, wave, v.State, itoa(v.Attempts), v.FromVersion, v.ToVersion, reason}
	})
}
