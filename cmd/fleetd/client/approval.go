package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

type ApprovalCommand struct {
	List    approvalList    `cmd:"" help:"List calls and bulk calls that wait for a decision."`
	Approve approvalApprove `cmd:"" help:"Approve a call or a bulk call that another person or program requested."`
	Deny    approvalDeny    `cmd:"" help:"Deny a call or a bulk call."`
}

const approvalHeading = "ID STATE TOOL ARGUMENTS TARGET ASKED-BY PURPOSE EXPIRES DECIDED-BY"

func (a CallApproval) row() []string {
	target := orEmpty(a.DeviceID)
	if target == "" {
		target = fmt.Sprintf("%d devices", a.Targets)
	}
	decided := ""
	if a.DecidedBy != nil {
		decided = a.DecidedBy.Name
	}
	arguments, _ := json.Marshal(a.Arguments) // cannot fail: it was JSON
	return []string{a.ID, a.State, a.Tool, string(arguments), target, a.AskedBy.Name, a.Purpose,
		a.ExpiresAt.Format(time.DateTime), decided}
}

type approvalList struct {
	clientFlags
	State string `help:"List only approvals in this state, or all." enum:"waiting,approved,denied,expired,withdrawn,all" default:"waiting"`
	Limit int    `help:"Print at most this many." default:"1000"`
}

func (c *approvalList) Run(ctx context.Context) error {
	params := url.Values{}
	if c.State != "all" {
		params.Set("state", c.State)
	}
	items, err := c.all(ctx, "/approvals", params, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, approvalHeading, CallApproval.row)
}

type approvalApprove struct {
	clientFlags
	ID     string `arg:"" help:"Id of the approval."`
	Reason string `help:"Reason, stored with the decision."`
}

func (c *approvalApprove) Run(ctx context.Context) error {
	return shown(&c.clientFlags, approvalHeading, CallApproval.row)(c.do(ctx, http.MethodPost,
		"/approvals/"+url.PathEscape(c.ID)+"/approve", DecideInputBody{Reason: &c.Reason}))
}

type approvalDeny struct {
	clientFlags
	ID     string `arg:"" help:"Id of the approval."`
	Reason string `arg:"" optional:"" help:"Reason, shown to the requester."`
}

func (c *approvalDeny) Run(ctx context.Context) error {
	return shown(&c.clientFlags, approvalHeading, CallApproval.row)(c.do(ctx, http.MethodPost,
		"/approvals/"+url.PathEscape(c.ID)+"/deny", DecideInputBody{Reason: &c.Reason}))
}
