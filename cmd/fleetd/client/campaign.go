package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"fleetd/cmd/fleetd/terminal"
)

type CampaignCommand struct {
	Create      campaignCreate      `cmd:"" help:"Plan a campaign, and optionally start it."`
	List        campaignList        `cmd:"" help:"List campaigns."`
	Show        campaignShow        `cmd:"" help:"Show a campaign and its progress."`
	Deployments campaignDeployments `cmd:"" help:"List the devices of a campaign and their states."`
	Start       campaignStart       `cmd:"" help:"Start a campaign, or request its approval."`
	Approve     campaignApprove     `cmd:"" help:"Approve a campaign that somebody else planned."`
	Deny        campaignDeny        `cmd:"" help:"Deny the approval of a campaign."`
	Discard     campaignDiscard     `cmd:"" help:"Discard a campaign that has not started."`
	Pause       campaignPause       `cmd:"" help:"Pause a campaign: devices in flight continue, no others are notified."`
	Resume      campaignResume      `cmd:"" help:"Resume a paused campaign."`
	Advance     campaignAdvance     `cmd:"" help:"Open the next wave."`
	PullNow     campaignPullNow     `cmd:"" help:"Restart online devices that are waiting for their next boot."`
	Retry       campaignRetry       `cmd:"" help:"Retry failed devices."`
	Abort       campaignAbort       `cmd:"" help:"Abort a campaign; downloads in progress are cut off."`
	Rollback    campaignRollback    `cmd:"" help:"Roll the updated devices back to their earlier images."`
}

// campaignFlags are the flags of every command about one campaign.
type campaignFlags struct {
	clientFlags
	ID string `arg:"" help:"Id of the campaign."`
}

// act applies verb to the campaign and prints the result.
func (c *campaignFlags) act(ctx context.Context, verb string, body any) error {
	answer, err := c.do(ctx, http.MethodPost, campaignPath(c.ID, "/"+verb), body)
	return printCampaign(&c.clientFlags, answer, err)
}

func campaignPath(id, rest string) string { return "/campaigns/" + url.PathEscape(id) + rest }

type campaignStart struct{ campaignFlags }

func (c *campaignStart) Run(ctx context.Context) error { return c.act(ctx, "start", nil) }

type campaignResume struct{ campaignFlags }

func (c *campaignResume) Run(ctx context.Context) error { return c.act(ctx, "resume", nil) }

type campaignAdvance struct{ campaignFlags }

func (c *campaignAdvance) Run(ctx context.Context) error { return c.act(ctx, "advance", nil) }

type campaignPullNow struct{ campaignFlags }

func (c *campaignPullNow) Run(ctx context.Context) error { return c.act(ctx, "pull-now", nil) }

type campaignRollback struct{ campaignFlags }

func (c *campaignRollback) Run(ctx context.Context) error { return c.act(ctx, "rollback", nil) }

type campaignDiscard struct{ campaignFlags }

func (c *campaignDiscard) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodDelete, campaignPath(c.ID, ""), nil)
	return printCampaign(&c.clientFlags, answer, err)
}

type campaignApprove struct {
	campaignFlags
	Digest string `arg:"" help:"Digest of the plan that you reviewed, as printed by fleetd campaign show."`
}

func (c *campaignApprove) Run(ctx context.Context) error {
	return c.act(ctx, "approve", ApproveCampaignInputBody{Digest: c.Digest})
}

type campaignDeny struct {
	campaignFlags
	Reason string `arg:"" help:"Reason."`
}

func (c *campaignDeny) Run(ctx context.Context) error {
	return c.act(ctx, "deny", DenyCampaignInputBody{Reason: c.Reason})
}

type campaignPause struct {
	campaignFlags
	Reason string `arg:"" optional:"" help:"Reason."`
}

func (c *campaignPause) Run(ctx context.Context) error {
	return c.act(ctx, "pause", PauseCampaignInputBody{Reason: &c.Reason})
}

type campaignAbort struct {
	campaignFlags
	Rollback bool `help:"Roll the updated devices back once the campaign has stopped."`
}

func (c *campaignAbort) Run(ctx context.Context) error {
	return c.act(ctx, "abort", AbortCampaignInputBody{Rollback: &c.Rollback})
}

type campaignRetry struct {
	campaignFlags
	State  []string `help:"Retry only devices in these states: failed, timed_out, ... Default: every failure."`
	Device []string `help:"Retry only these devices."`
}

func (c *campaignRetry) Run(ctx context.Context) error {
	var body RetryCampaignInputBody
	if len(c.State) > 0 {
		body.States = &c.State
	}
	if len(c.Device) > 0 {
		body.Devices = &c.Device
	}
	return c.act(ctx, "retry", body)
}

type campaignCreate struct {
	clientFlags
	Plan        string  `help:"JSON file with the plan, as for POST /campaigns; other flags override it." type:"existingfile" placeholder:"FILE"`
	Name        string  `help:"Name of the campaign."`
	Release     string  `help:"Id of the release." placeholder:"ID"`
	Query       *string `name:"q" help:"Filter that picks the devices: board:bread-compact-wifi tag:lab. If empty: every device." placeholder:"FILTER"`
	Canary      string  `help:"Size of the first wave, before all others: 5, or 2%." placeholder:"N|P%"`
	MaxInFlight int     `help:"Maximum number of devices in flight at once." placeholder:"N"`
	Mode        string  `help:"How devices are notified." enum:",auto,push,pull" default:"" placeholder:"auto|push|pull"`
	Approval    bool    `help:"Require approval by a second person."`
	Start       bool    `help:"Start the campaign at once, or request its approval."`
	DryRun      bool    `help:"Only print what the campaign would do."`
}

func (c *campaignCreate) Run(ctx context.Context) error {
	plan, err := c.body()
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	if c.DryRun {
		answer, err := c.do(ctx, http.MethodPost, "/campaigns/dry-run", plan)
		return printDryRun(&c.clientFlags, answer, err)
	}
	answer, err := c.do(ctx, http.MethodPost, "/campaigns", plan)
	if err == nil && c.Start {
		answer, err = c.started(ctx, answer)
	}
	return printCampaign(&c.clientFlags, answer, err)
}

// started starts the new campaign. If that fails, the error names the stored
// draft.
func (c *campaignCreate) started(ctx context.Context, made json.RawMessage) (json.RawMessage, error) {
	var v Campaign
	if err := json.Unmarshal(made, &v); err != nil {
		return nil, err
	}
	answer, err := c.do(ctx, http.MethodPost, campaignPath(v.ID, "/start"), nil)
	if err != nil {
		return nil, fmt.Errorf("the campaign %s is stored as a draft but was not started: %w", v.ID, err)
	}
	return answer, nil
}

// body returns the plan from the file, with the values of the flags.
func (c *campaignCreate) body() (map[string]any, error) {
	plan := map[string]any{}
	if c.Plan != "" {
		data, err := os.ReadFile(c.Plan)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(data, &plan); err != nil {
			return nil, fmt.Errorf("--plan %s is not a JSON object: %w", c.Plan, err)
		}
		if plan == nil {
			return nil, fmt.Errorf("--plan %s contains null", c.Plan)
		}
	}
	for name, v := range map[string]string{"name": c.Name, "release_id": c.Release, "mode": c.Mode} {
		if v != "" {
			plan[name] = v
		}
	}
	if c.Query != nil {
		plan["q"] = *c.Query
		delete(plan, "devices")
	}
	if c.MaxInFlight != 0 {
		plan["max_in_flight"] = c.MaxInFlight
	}
	if c.Approval {
		plan["approval_required"] = true
	}
	if err := c.canary(plan); err != nil {
		return nil, err
	}
	return plan, c.complete(plan)
}

// canary makes two waves: a few devices, then the others.
func (c *campaignCreate) canary(plan map[string]any) error {
	if c.Canary == "" {
		return nil
	}
	first := WavePlan{Name: new("canary")}
	if p, ok := strings.CutSuffix(c.Canary, "%"); ok {
		n, err := strconv.ParseFloat(p, 64)
		if err != nil || !(n > 0 && n < 100) {
			return fmt.Errorf("--canary %q is not a percentage; write for example 2%%", c.Canary)
		}
		first.Percent = &n
	} else {
		n, err := strconv.Atoi(c.Canary)
		if err != nil || n < 1 {
			return fmt.Errorf("--canary %q is not a number of devices; write for example 5, or 2%%", c.Canary)
		}
		first.Count = new(int64(n))
	}
	plan["waves"] = []WavePlan{first, {Name: new("rest"), Percent: new(100.0)}}
	return nil
}

// complete returns an error that names what both the file and the flags leave
// out.
func (c *campaignCreate) complete(plan map[string]any) error {
	for _, need := range []struct{ field, flag string }{{"name", "--name"}, {"release_id", "--release"}} {
		if plan[need.field] == nil {
			return fmt.Errorf("give %s, or %s in the file of --plan", need.flag, need.field)
		}
	}
	if plan["q"] == nil && plan["devices"] == nil {
		return errors.New("name the devices: give --q, or q or devices in the file of --plan")
	}
	return nil
}
